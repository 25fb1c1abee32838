"""Conversations whose texts have the words of a question."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.ext.asyncio import AsyncConnection

from tailrace.archive import conversation_rows, tables, text_rows, words
from tailrace.archive.reader import ArchiveUnavailable, Match, UnknownPlace
from tailrace.protocol import conversations

# Texts that have the words and are listed together. All of one conversation have room.
MAX_TEXTS: Final = conversations.MAX_NODES + 2
TOGETHER: Final = 8  # texts of a conversation that are read at once, if its newest is none


class _Place(NamedTuple):
    """A text: its number, and the node that it is of."""

    number: int
    node: str


class _Found(NamedTuple):
    """A conversation, and its texts that have the words, the newest first, its title last."""

    name: str
    texts: list[_Place]


async def matches(
    connection: AsyncConnection, owner: str, asked: str, *, after: str | None, limit: int
) -> list[Match]:
    """An owner's conversations that match (`reader.Reader.search`).

    Raises:
        ArchiveUnavailable: some of them have no texts yet.
        UnknownPlace: `after` is none of them.
    """
    await _require_texts(connection, owner)
    question = words.Question.parsed(asked)
    shown: dict[str, tuple[str, words.Snippet]] = {}
    more = bool(question.runs)
    while more and len(shown) < limit:
        found, more = await _candidates(connection, question, owner, after)
        for at in range(0, len(found), limit):
            shown |= await _confirmed(connection, question, found[at : at + limit])
            if len(shown) >= limit:
                break
        after = found[-1].name if found else None
    talks = await conversation_rows.heads(connection, list(shown)[:limit])
    return [
        Match(talks[name], node if _is_turn(node) else None, *snippet)
        for name, (node, snippet) in itertools.islice(shown.items(), limit)
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
) -> tuple[list[_Found], bool]:
    """The owner's conversations that may match, the last used one first, and whether there may be
    more behind them."""
    rows, texts = tables.CONVERSATIONS.c, tables.TEXTS.c
    place = (rows.updated_ms, rows.id)
    having = sa.select(tables.WORDS.c.rowid).where(_has(connection, question.terms(owner)))
    asked = (
        sa.select(rows.id, texts.number, texts.node)
        .select_from(tables.TEXTS.join(tables.CONVERSATIONS, rows.id == texts.id))
        .where(texts.number.in_(having), rows.owner == owner)
    )
    if after is not None:
        known = sa.select(*place).where(rows.id == after, rows.owner == owner)
        last = (await connection.execute(known)).first()
        if last is None:
            raise UnknownPlace(after)
        asked = asked.where(sa.tuple_(*place) < sa.tuple_(*map(sa.literal, last)))
    asked = asked.order_by(*(column.desc() for column in (*place, texts.place))).limit(MAX_TEXTS)
    listed = (await connection.execute(asked)).all()
    found: dict[str, _Found] = {}
    for name, number, node in listed:
        found.setdefault(name, _Found(name, [])).texts.append(_Place(number, node))
    whole = list(found.values())
    if len(listed) < MAX_TEXTS:
        return whole, False
    return whole[:-1] or whole, True  # the last one may have more


def _has(connection: AsyncConnection, terms: Sequence[words.Term]) -> sa.ColumnElement[bool]:
    """Whether a row of `words` has all of these. They are letters and digits, so that they mean
    nothing to either database, and are quoted all the same."""
    if connection.dialect.name == "postgresql":
        query = " & ".join(f"'{each.word}'" + (":*" if each.prefix else "") for each in terms)
        typed = sa.cast(sa.cast(query, sa.Text), postgresql.TSQUERY)
        return tables.WORDS.c.said.bool_op("@@")(typed)
    query = " AND ".join(f'"{each.word}"' + (" *" if each.prefix else "") for each in terms)
    return sa.literal_column("words").op("MATCH", is_comparison=True)(query)


async def _confirmed(
    connection: AsyncConnection, question: words.Question, found: Sequence[_Found]
) -> dict[str, tuple[str, words.Snippet]]:
    """Those that really match, by id: the newest text that does, and what to show of it."""
    best: dict[str, tuple[str, words.Snippet]] = {}
    left, at, count = found, 0, 1  # nearly always the first text does
    while left:
        tried = {each.name: each.texts[at : at + count] for each in left}
        read = await _texts(connection, [place for some in tried.values() for place in some])
        for name, some in tried.items():
            for place in some:
                await asyncio.sleep(0)  # others have their turn in between
                if (snippet := question.snippet(read[place.number])) is not None:
                    best[name] = place.node, snippet
                    break
        at, count = at + count, TOGETHER
        left = [each for each in left if each.name not in best and len(each.texts) > at]
    return {each.name: best[each.name] for each in found if each.name in best}


async def _texts(connection: AsyncConnection, places: Sequence[_Place]) -> dict[int, str]:
    rows = tables.TEXTS.c
    numbers = [place.number for place in places]
    question = sa.select(rows.number, rows.text).where(rows.number.in_(numbers))
    found = (await connection.execute(question)).all() if numbers else []
    return {number: bytes(text).decode() for number, text in found}
