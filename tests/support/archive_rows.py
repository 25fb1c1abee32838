"""The archive's fold as its process runs it, over records that a test puts together."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from tailrace import log
from tailrace.archive import conversation_rows, folding, tables
from tests.support.histories import INCARNATION, Topics


async def dump(engine: AsyncEngine) -> bytes:
    """Every row of every table."""
    async with engine.connect() as connection:
        return repr(
            [
                (table.name, sorted(map(tuple, (await connection.execute(sa.select(table))).all())))
                for table in tables.metadata.sorted_tables
            ]
        ).encode()


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

    async def all(self, batch: Sequence[log.Record]) -> folding.Folded:
        return await self.apply(batch, await self.starts(batch))

    async def starts(self, batch: Sequence[log.Record]) -> dict[tuple[str, int], int]:
        known = await self.positions()
        return {place: known.get(place, 0) for r in batch if (place := (r.topic, r.partition))}
