"""The archive's fold as its process runs it, over records that a test puts together."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from tailrace import log
from tailrace.archive import conversation_rows, database, folding, migration, tables
from tailrace.protocol import history, topics
from tests.support import memory_log
from tests.support.histories import INCARNATION, Topics


async def dump(engine: AsyncEngine, *, marks: bool = True) -> bytes:
    """Every row of every table, without the numbers of texts, which are given as they come.

    `marks`: with those of positions. A position from before has one only once it moves.
    """
    async with engine.connect() as connection:
        found = []
        for table in tables.metadata.sorted_tables:
            numbered = tables.TEXTS.c.number, tables.WORDS.c.rowid
            left = {*numbered} if marks else {*numbered, tables.POSITIONS.c.mark}
            columns = [column for column in table.c if column not in left]
            question = sa.select(*columns)
            if table is tables.WORDS:
                of = tables.TEXTS.c
                question = sa.select(of.id, of.node, table.c.said).join_from(
                    table, tables.TEXTS, of.number == table.c.rowid, isouter=True
                )
            rows = (await connection.execute(question)).all()
            found.append((table.name, sorted(map(tuple, rows))))
        return repr(found).encode()


async def build(url: str, broker: memory_log.MemoryLog, *found: history.History) -> None:
    """Put these into `llm.history` of a log in memory, and fold all that it has there. Nothing of
    it is to be erased."""
    partitions = topics.partitions_of(topics.HISTORY)
    for each in found:
        for key, value in history.parts(each):
            broker.put(topics.HISTORY, history.partition(each.rid, partitions), key.encode(), value)
    engine = database.engine(url, create=True)
    await migration.migrate(engine)
    folded = folding.Folding(engine, broker.layout.incarnation, _no_tombstones)
    known = await folded.positions()
    for partition in range(partitions):
        start = known.get((topics.HISTORY, partition), 0)
        records = broker.records(topics.HISTORY, partition)[start:]
        if records:
            await folded.apply(records, {(topics.HISTORY, partition): start})
    await engine.dispose()


async def _no_tombstones(_: set[conversation_rows.Address]) -> None:
    raise AssertionError("nothing is erased here")


class Fold(folding.Folding):
    """Folds records from where the database stands, like the process."""

    def __init__(self, engine: AsyncEngine, into: Topics | None = None) -> None:
        self.erased: list[str] = []
        self._into = into
        super().__init__(engine, INCARNATION, self._tombstones)

    async def _tombstones(self, of: set[conversation_rows.Address]) -> None:
        for each in sorted(of):
            self.erased.append(each.key)
            if self._into is not None:
                self._into.put(each.topic, each.partition, each.key, None)

    async def all(self, batch: Sequence[log.Record]) -> folding.FoldResult:
        return await self.apply(batch, await self.starts(batch))

    async def starts(self, batch: Sequence[log.Record]) -> dict[tuple[str, int], int]:
        known = await self.positions()
        return {place: known.get(place, 0) for r in batch if (place := (r.topic, r.partition))}
