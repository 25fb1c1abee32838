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
from tailrace.archive.archived import (
    ArchivedResponse,
    ArchiveUnavailable,
    ListQuery,
    Match,
    UnknownPlace,
)
from tailrace.archive.fold import CHAT
from tailrace.protocol import conversations, topics

T = TypeVar("T")

ANSWER_S: Final = 5.0
FOLD_WAIT_S: Final = 5.0  # how long the archive may take to fold acknowledged records
POLL_S: Final = 0.02

_metadata = msgspec.json.Decoder(dict[str, str])


class SqlReader:
    """Reads one archive; see `reader.Reader`."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def stop(self) -> None:
        await self._engine.dispose()

    async def find(self, rid: str, owner: str) -> ArchivedResponse | None:
        rows = tables.RESPONSES.c
        question = sa.select(rows.history, rows.metadata).where(
            rows.rid == rid, rows.owner == owner
        )

        async def query(connection: AsyncConnection) -> ArchivedResponse | None:
            row = (await connection.execute(question)).first()
            return _decode(row[0], row[1]) if row is not None else None

        return await self._query(query)

    async def several(self, rids: Sequence[str], owner: str) -> dict[str, ArchivedResponse]:
        rows = tables.RESPONSES.c
        question = sa.select(rows.rid, rows.history, rows.metadata).where(
            rows.rid.in_(rids), rows.owner == owner
        )

        async def query(connection: AsyncConnection) -> dict[str, ArchivedResponse]:
            responses = {}
            for rid, value, metadata in (await connection.execute(question)).all():
                responses[rid] = _decode(value, metadata)
                await asyncio.sleep(0)  # others have their turn in between
            return responses

        return await self._query(query)

    async def present(self, rids: Sequence[str], owner: str) -> set[str]:
        rows = tables.RESPONSES.c
        question = sa.select(rows.rid).where(rows.rid.in_(rids), rows.owner == owner)

        async def query(connection: AsyncConnection) -> set[str]:
            return set((await connection.execute(question)).scalars())

        return await self._query(query)

    async def metadata(self, rids: Sequence[str], owner: str) -> dict[str, dict[str, str]]:
        rows = tables.CHANGES.c
        question = sa.select(rows.rid, rows.metadata).where(rows.rid.in_(rids), rows.owner == owner)

        async def query(connection: AsyncConnection) -> dict[str, dict[str, str]]:
            rows_ = (await connection.execute(question)).all()
            return {rid: _metadata.decode(metadata) for rid, metadata in rows_}

        return await self._query(query)

    async def conversation(
        self, name: str, log: str, partition: int, *, contents: bool = False
    ) -> tuple[conversations.Conversation, int | None]:
        async def query(
            connection: AsyncConnection,
        ) -> tuple[conversations.Conversation, int | None]:
            # One state of the database: rows and position belong together.
            if connection.dialect.name == "postgresql":
                await connection.execution_options(isolation_level="REPEATABLE READ")
            positions = await folding.positions(connection, log)
            states = await conversation_rows.read(connection, [name], contents=contents)
            # Records of it that are set aside, and those after them, are only in the log.
            aside = await set_aside.first(connection, log, topics.CONVERSATIONS, name)
            below = positions.get((topics.CONVERSATIONS, partition))
            return states[name], below if aside is None else aside

        return await self._query(query)

    async def conversations(
        self, owner: str, after: str | None, limit: int
    ) -> list[conversations.Conversation]:
        async def query(connection: AsyncConnection) -> list[conversations.Conversation] | None:
            return await conversation_rows.list_heads(
                connection, owner, after=after, limit=limit + 1
            )

        heads = await self._query(query)
        if heads is None:
            raise UnknownPlace(after)
        return heads

    async def search(self, owner: str, query: str, after: str | None, limit: int) -> list[Match]:
        async def run_search(connection: AsyncConnection) -> list[Match]:
            if connection.dialect.name == "postgresql":
                await connection.execution_options(isolation_level="REPEATABLE READ")
            return await text_search.matches(connection, owner, query, after=after, limit=limit + 1)

        return await self._query(run_search)

    async def file(self, key: str) -> bytes | None:
        question = sa.select(tables.FILES.c.value).where(tables.FILES.c.key == key)

        async def query(connection: AsyncConnection) -> bytes | None:
            value = (await connection.execute(question)).scalar_one_or_none()
            return bytes(value) if value is not None else None

        return await self._query(query)

    async def list_responses(self, query: ListQuery) -> list[list[ArchivedResponse]]:
        return await self._query(lambda connection: _listed(connection, query))

    async def wait_until_folded(self, log: str, topic: str, ends: Mapping[int, int]) -> None:
        question = self._positions(log)
        give_up = time.monotonic() + FOLD_WAIT_S
        while True:  # no deadline around it: a cancelled query costs its connection
            positions = await question()
            if all(positions.get((topic, p), 0) >= end for p, end in ends.items()):
                return
            if time.monotonic() >= give_up:
                raise ArchiveUnavailable("it is behind the log")
            await asyncio.sleep(POLL_S)

    def _positions(self, log: str) -> Callable[[], Awaitable[dict[folding.Place, int]]]:
        return lambda: self._query(lambda connection: folding.positions(connection, log))

    async def _query(self, question: Callable[[AsyncConnection], Awaitable[T]]) -> T:
        if not database.is_there(self._engine):
            raise ArchiveUnavailable("its file is not there")
        try:
            async with asyncio.timeout(ANSWER_S), self._engine.connect() as connection:
                return await question(connection)
        except TimeoutError:
            raise ArchiveUnavailable(f"no answer in {ANSWER_S:.0f} s") from None
        except database.ERRORS as error:
            raise ArchiveUnavailable(type(error).__name__) from error


async def _listed(connection: AsyncConnection, query: ListQuery) -> list[list[ArchivedResponse]]:
    """The choices of each completion of a list, in order. A completion is at the place of its first
    choice, and only listed if all of its choices are there."""
    rows, others = tables.RESPONSES.c, tables.RESPONSES.alias("others").c
    # Of those created in the same second, the one that ended first comes first.
    order = (rows.created_at, rows.ended_ms, rows.rid)
    question = sa.select(rows.completion, *order).where(
        rows.owner == query.owner, rows.kind == query.kind, rows.choice == 0
    )
    if query.kind == CHAT:
        good = sa.select(sa.func.count()).where(
            others.completion == rows.completion,
            others.owner == rows.owner,
            others.status != "failed",
        )
        question = question.where(good.scalar_subquery() == rows.choices)
    if query.model is not None:
        question = question.where(rows.model == query.model)
    labels = tables.LABELS.c
    for name, value in (query.metadata or {}).items():
        question = question.where(
            sa.exists().where(labels.rid == rows.rid, labels.name == name, labels.value == value)
        )
    if query.after is not None:
        place = sa.select(*order).where(
            rows.rid == query.after, rows.owner == query.owner, rows.kind == query.kind
        )
        last = (await connection.execute(place)).first()
        if last is None:
            raise UnknownPlace(query.after)
        current = sa.tuple_(*order)
        after_last = sa.tuple_(*map(sa.literal, last))
        question = question.where(
            current < after_last if query.newest_first else current > after_last
        )
    question = question.order_by(*(c.desc() if query.newest_first else c.asc() for c in order))
    page = question.limit(query.limit + 1).subquery("page").c
    # One statement: between two, what the first has found may be deleted.
    choices = (
        sa.select(rows.completion, rows.history, rows.metadata)
        .where(rows.completion == page.completion)
        .order_by(
            *(
                c.desc() if query.newest_first else c.asc()
                for c in (page.created_at, page.ended_ms, page.rid)
            ),
            rows.choice,
        )
    )
    groups: dict[str, list[ArchivedResponse]] = {}
    for name, value, metadata in (await connection.execute(choices)).all():
        groups.setdefault(name, []).append(_decode(value, metadata))
        await asyncio.sleep(0)  # others have their turn in between
    return [*groups.values()]


def _decode(value: bytes, metadata: str) -> ArchivedResponse:
    whole = text_rows.decompress(value)
    if whole is None:
        raise ArchiveUnavailable("a row cannot be read")
    return ArchivedResponse(whole, _metadata.decode(metadata))
