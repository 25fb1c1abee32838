"""Conversations whose texts have the words of a query."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.ext.asyncio import AsyncConnection

from tailrace.archive import conversation_rows, tables, text_rows, words
from tailrace.archive.archived import ArchiveUnavailable, Match, UnknownPlace
from tailrace.protocol import conversations

# Texts that have the words and are listed together: at least all of one conversation.
MAX_TEXTS: Final = conversations.MAX_NODES + 2
TOGETHER: Final = 8  # texts of a conversation that are read at once, if its newest does not match


class _Place(NamedTuple):
    """A text: its number, and its node."""

    number: int
    node: str


class _Candidate(NamedTuple):
    """A conversation, and its texts that have the words, the newest first, its title last."""

    name: str
    texts: list[_Place]


async def matches(
    connection: AsyncConnection, owner: str, query: str, *, after: str | None, limit: int
) -> list[Match]:
    """An owner's conversations that match (`reader.Reader.search`).

    Raises:
        ArchiveUnavailable: some of them have no texts yet.
        UnknownPlace: `after` is not one of them.
    """
    await _require_texts(connection, owner)
    question = words.Question.parse(query)
    results: dict[str, tuple[str, words.Snippet]] = {}
    more = bool(question.runs)
    while more and len(results) < limit:
        candidates, more = await _candidates(connection, question, owner, after)
        for at in range(0, len(candidates), limit):
            results |= await _confirm(connection, question, candidates[at : at + limit])
            if len(results) >= limit:
                break
        after = candidates[-1].name if candidates else None
    heads = await conversation_rows.heads(connection, list(results)[:limit])
    return [
        Match(heads[name], node if _is_turn(node) else None, *snippet)
        for name, (node, snippet) in itertools.islice(results.items(), limit)
    ]


def _is_turn(node: str) -> bool:
    return node != text_rows.TITLE and not node.startswith(conversations.NODE_PREFIX)


async def _require_texts(connection: AsyncConnection, owner: str) -> None:
    rows, waiting = tables.CONVERSATIONS.c, tables.UNINDEXED.c
    question = (
        sa.select(sa.func.count())
        .select_from(tables.UNINDEXED.join(tables.CONVERSATIONS, rows.id == waiting.id))
        .where(rows.owner == owner)
    )
    if (await connection.execute(question)).scalar_one():
        raise ArchiveUnavailable("texts of older conversations are being made searchable")


async def _candidates(
    connection: AsyncConnection, question: words.Question, owner: str, after: str | None
) -> tuple[list[_Candidate], bool]:
    """The owner's conversations that may match, the last used one first, and whether more may
    follow."""
    rows, texts = tables.CONVERSATIONS.c, tables.TEXTS.c
    place = (rows.updated_ms, rows.id)
    having = sa.select(tables.WORDS.c.rowid).where(_has(connection, question.terms(owner)))
    query = (
        sa.select(rows.id, texts.number, texts.node)
        .select_from(tables.TEXTS.join(tables.CONVERSATIONS, rows.id == texts.id))
        .where(texts.number.in_(having), rows.owner == owner)
    )
    if after is not None:
        place_query = sa.select(*place).where(rows.id == after, rows.owner == owner)
        last = (await connection.execute(place_query)).first()
        if last is None:
            raise UnknownPlace(after)
        query = query.where(sa.tuple_(*place) < sa.tuple_(*map(sa.literal, last)))
    query = query.order_by(*(column.desc() for column in (*place, texts.place))).limit(MAX_TEXTS)
    result = (await connection.execute(query)).all()
    by_name: dict[str, _Candidate] = {}
    for name, number, node in result:
        by_name.setdefault(name, _Candidate(name, [])).texts.append(_Place(number, node))
    candidates = list(by_name.values())
    if len(result) < MAX_TEXTS:
        return candidates, False
    return candidates[:-1] or candidates, True  # the last one may have more


def _has(connection: AsyncConnection, terms: Sequence[words.Term]) -> sa.ColumnElement[bool]:
    """Whether a row of `words` has all of these. They are letters and digits, so neither database
    treats them as syntax; they are quoted nevertheless."""
    if connection.dialect.name == "postgresql":
        query = " & ".join(f"'{each.word}'" + (":*" if each.prefix else "") for each in terms)
        tsquery = sa.cast(sa.cast(query, sa.Text), postgresql.TSQUERY)
        return tables.WORDS.c.said.bool_op("@@")(tsquery)
    query = " AND ".join(f'"{each.word}"' + (" *" if each.prefix else "") for each in terms)
    return sa.literal_column("words").op("MATCH", is_comparison=True)(query)


async def _confirm(
    connection: AsyncConnection, question: words.Question, candidates: Sequence[_Candidate]
) -> dict[str, tuple[str, words.Snippet]]:
    """Those that really match, by id: the newest text that matches, and its snippet."""
    best: dict[str, tuple[str, words.Snippet]] = {}
    remaining, at, count = candidates, 0, 1  # nearly always the first text matches
    while remaining:
        attempts = {each.name: each.texts[at : at + count] for each in remaining}
        read = await _texts(connection, [place for places in attempts.values() for place in places])
        for name, places in attempts.items():
            for place in places:
                await asyncio.sleep(0)  # others have their turn in between
                if (snippet := question.snippet(read[place.number])) is not None:
                    best[name] = place.node, snippet
                    break
        at, count = at + count, TOGETHER
        remaining = [each for each in remaining if each.name not in best and len(each.texts) > at]
    return {each.name: best[each.name] for each in candidates if each.name in best}


async def _texts(connection: AsyncConnection, places: Sequence[_Place]) -> dict[int, str]:
    rows = tables.TEXTS.c
    numbers = [place.number for place in places]
    question = sa.select(rows.number, rows.text).where(rows.number.in_(numbers))
    values = (await connection.execute(question)).all() if numbers else []
    return {number: bytes(text).decode() for number, text in values}
