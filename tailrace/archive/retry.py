"""Folds again the records that were set aside: from the log, by their addresses."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from typing import Final

from sqlalchemy.ext.asyncio import AsyncEngine

from tailrace.archive import folding, set_aside
from tailrace.log import interfaces, marks
from tailrace.protocol import log_words

FOLDED: Final = "folded"
LOST: Final = "the log no longer has it"


async def retry(
    engine: AsyncEngine, log: str, replays: interfaces.RangeReader, erase: folding.Erase
) -> AsyncIterator[tuple[set_aside.Row, str]]:
    """Fold the records that are set aside, name by name. Yields each record's row with its outcome:
    `FOLDED`; `LOST`, which is no longer set aside; or the error with which it stays set aside.

    Raises:
        database.ERRORS, LogUnavailable: the rest was not tried.
    """
    archive = folding.Folding(engine, log, erase)
    async with engine.connect() as connection:
        rows_aside = await set_aside.rows(connection, log)
    names = [name for name, _ in itertools.groupby(rows_aside, key=lambda row: row.name)]
    for name in names:
        while True:
            async with engine.connect() as connection:
                rows = await set_aside.rows(connection, log, name)
            if not rows:
                break
            read = [(row, await _record(replays, row)) for row in rows]
            records = [record for _, record in read if record is not None]
            remaining = await archive.retry(rows, records)
            if remaining is None:  # the archive's process has set more of it aside meanwhile
                continue
            errors = {(each.partition, each.offset): each.error for each in remaining}
            for row, record in read:
                yield row, LOST if record is None else errors.get(row.place, FOLDED)
            break


async def _record(replays: interfaces.RangeReader, row: set_aside.Row) -> log_words.Record | None:
    """The record of a row, or None: retention or compaction removed it, or the log was rolled
    back."""
    mark = marks.Mark.parse(row.mark)
    record = await marks.record_at(replays, row.name[0], row.partition, row.offset)
    return record if record is not None and mark is not None and mark.names(record) else None
