"""Rows of the archive as answers: histories, metadata, lists."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeVar

import msgspec
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from tailrace.archive import (
    conversation_rows,
    database,
    folding,
    set_aside,
    tables,
    text_rows,
    text_search,
)
from tailrace.archive.fold import CHAT
from tailrace.archive.reader import Archived, ArchiveUnavailable, Match, UnknownPlace, Wanted
from tailrace.protocol import conversations, topics

T = TypeVar("T")

ANSWER_S: Final = 5.0
BEHIND_S: Final = 5.0  # how long the archive may take to fold what was acknowledged
LOOK_AGAIN_S: Final = 0.02

_metadata = msgspec.json.Decoder(dict[str, str])


class SqlReader:
    """Reads one archive; see `reader.Reader`."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def stop(self) -> None:
        await self._engine.dispose()

    async def find(self, rid: str, owner: str) -> Archived | None:
        rows = tables.RESPONSES.c
        question = sa.select(rows.history, rows.metadata).where(
            rows.rid == rid, rows.owner == owner
        )

        async def ask(connection: AsyncConnection) -> Archived | None:
            row = (await connection.execute(question)).first()
            return _archived(row[0], row[1]) if row is not None else None

        return await self._ask(ask)

    async def several(self, rids: Sequence[str], owner: str) -> dict[str, Archived]:
        rows = tables.RESPONSES.c
        question = sa.select(rows.rid, rows.history, rows.metadata).where(
            rows.rid.in_(rids), rows.owner == owner
        )

        async def ask(connection: AsyncConnection) -> dict[str, Archived]:
            found = {}
            for rid, value, metadata in (await connection.execute(question)).all():
                found[rid] = _archived(value, metadata)
                await asyncio.sleep(0)  # others have their turn in between
            return found

        return await self._ask(ask)

    async def present(self, rids: Sequence[str], owner: str) -> set[str]:
        rows = tables.RESPONSES.c
        question = sa.select(rows.rid).where(rows.rid.in_(rids), rows.owner == owner)

        async def ask(connection: AsyncConnection) -> set[str]:
            return set((await connection.execute(question)).scalars())

        return await self._ask(ask)

    async def metadata(self, rids: Sequence[str], owner: str) -> dict[str, dict[str, str]]:
        rows = tables.CHANGES.c
        question = sa.select(rows.rid, rows.metadata).where(rows.rid.in_(rids), rows.owner == owner)

        async def ask(connection: AsyncConnection) -> dict[str, dict[str, str]]:
            found = (await connection.execute(question)).all()
            return {rid: _metadata.decode(metadata) for rid, metadata in found}

        return await self._ask(ask)

    async def conversation(
        self, name: str, log: str, partition: int, *, contents: bool = False
    ) -> tuple[conversations.Conversation, int | None]:
        async def ask(
            connection: AsyncConnection,
        ) -> tuple[conversations.Conversation, int | None]:
            # One state of the database: rows and position belong together.
            if connection.dialect.name == "postgresql":
                await connection.execution_options(isolation_level="REPEATABLE READ")
            known = await folding.positions(connection, log)
            found = await conversation_rows.read(connection, [name], contents=contents)
            # What is set aside of it is in the log only, and so is what follows.
            aside = await set_aside.first(connection, log, topics.CONVERSATIONS, name)
            below = known.get((topics.CONVERSATIONS, partition))
            return found[name], below if aside is None else aside

        return await self._ask(ask)

    async def conversations(
        self, owner: str, after: str | None, limit: int
    ) -> list[conversations.Conversation]:
        async def ask(connection: AsyncConnection) -> list[conversations.Conversation] | None:
            return await conversation_rows.listed(connection, owner, after=after, limit=limit + 1)

        found = await self._ask(ask)
        if found is None:
            raise UnknownPlace(after)
        return found

    async def search(self, owner: str, asked: str, after: str | None, limit: int) -> list[Match]:
        async def ask(connection: AsyncConnection) -> list[Match]:
            if connection.dialect.name == "postgresql":
                await connection.execution_options(isolation_level="REPEATABLE READ")
            return await text_search.matches(connection, owner, asked, after=after, limit=limit + 1)

        return await self._ask(ask)

    async def file(self, key: str) -> bytes | None:
        question = sa.select(tables.FILES.c.value).where(tables.FILES.c.key == key)

        async def ask(connection: AsyncConnection) -> bytes | None:
            found = (await connection.execute(question)).scalar_one_or_none()
            return bytes(found) if found is not None else None

        return await self._ask(ask)

    async def listed(self, wanted: Wanted) -> list[list[Archived]]:
        async def ask(connection: AsyncConnection) -> list[list[Archived]]:
            first = await _first_choices(connection, wanted)
            return await _with_their_choices(connection, first)

        return await self._ask(ask)

    async def wait_folded(self, log: str, topic: str, ends: Mapping[int, int]) -> None:
        question = self._positions(log)
        give_up = time.monotonic() + BEHIND_S
        while True:  # no deadline around it: a question that is cancelled costs its connection
            next_of = await question()
            if all(next_of.get((topic, p), 0) >= end for p, end in ends.items()):
                return
            if time.monotonic() >= give_up:
                raise ArchiveUnavailable("it is behind the log")
            await asyncio.sleep(LOOK_AGAIN_S)

    def _positions(self, log: str) -> Callable[[], Awaitable[dict[folding.Place, int]]]:
        return lambda: self._ask(lambda connection: folding.positions(connection, log))

    async def _ask(self, question: Callable[[AsyncConnection], Awaitable[T]]) -> T:
        if not database.is_there(self._engine):
            raise ArchiveUnavailable("its file is not there")
        try:
            async with asyncio.timeout(ANSWER_S), self._engine.connect() as connection:
                return await question(connection)
        except TimeoutError:
            raise ArchiveUnavailable(f"no answer in {ANSWER_S:.0f} s") from None
        except database.ERRORS as error:
            raise ArchiveUnavailable(type(error).__name__) from error


async def _first_choices(connection: AsyncConnection, wanted: Wanted) -> list[tuple[str, int]]:
    """The (completion, choices) of what is listed, in order. A completion stands where its first
    choice does, and only if all of its choices are there."""
    rows, others = tables.RESPONSES.c, tables.RESPONSES.alias("others").c
    # Of those made in the same second, the one that ended first comes first.
    order = (rows.created_at, rows.ended_ms, rows.rid)
    question = sa.select(rows.completion, rows.choices).where(
        rows.owner == wanted.owner, rows.kind == wanted.kind, rows.choice == 0
    )
    if wanted.kind == CHAT:
        good = sa.select(sa.func.count()).where(
            others.completion == rows.completion,
            others.owner == rows.owner,
            others.status != "failed",
        )
        question = question.where(good.scalar_subquery() == rows.choices)
    if wanted.model is not None:
        question = question.where(rows.model == wanted.model)
    labels = tables.LABELS.c
    for name, value in (wanted.metadata or {}).items():
        question = question.where(
            sa.exists().where(labels.rid == rows.rid, labels.name == name, labels.value == value)
        )
    if wanted.after is not None:
        place = sa.select(rows.created_at, rows.ended_ms, rows.rid).where(
            rows.rid == wanted.after, rows.owner == wanted.owner, rows.kind == wanted.kind
        )
        found = (await connection.execute(place)).first()
        if found is None:
            raise UnknownPlace(wanted.after)
        mine = sa.tuple_(*order)
        behind = sa.tuple_(*map(sa.literal, found))
        question = question.where(mine < behind if wanted.newest_first else mine > behind)
    question = question.order_by(*(c.desc() if wanted.newest_first else c.asc() for c in order))
    found_rows = await connection.execute(question.limit(wanted.limit + 1))
    return [(completion, choices) for completion, choices in found_rows.all()]


async def _with_their_choices(
    connection: AsyncConnection, first: Sequence[tuple[str, int]]
) -> list[list[Archived]]:
    rows = tables.RESPONSES.c
    names = [completion for completion, _ in first]
    question = (
        sa.select(rows.completion, rows.history, rows.metadata)
        .where(rows.completion.in_(names))
        .order_by(rows.completion, rows.choice)
    )
    found: dict[str, list[Archived]] = {name: [] for name in names}
    for name, value, metadata in (await connection.execute(question)).all():
        found[name].append(_archived(value, metadata))
        await asyncio.sleep(0)  # others have their turn in between
    return [found[name] for name in names]


def _archived(value: bytes, metadata: str) -> Archived:
    whole = text_rows.unpacked(value)
    if whole is None:
        raise ArchiveUnavailable("a row cannot be read")
    return Archived(whole, _metadata.decode(metadata))
