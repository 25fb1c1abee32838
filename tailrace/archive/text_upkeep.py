"""Work of the archive's process on searchable texts, besides the fold."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, Protocol, TypeVar

from sqlalchemy.ext.asyncio import AsyncEngine

from tailrace import telemetry
from tailrace.archive import database, text_rows

T = TypeVar("T")

CONVERSATIONS_AT_ONCE: Final = 20  # in one transaction; most have a few turns
REPORT_INTERVAL_S: Final = 10.0  # between two lines of the log
MERGE_S: Final = 10.0  # between two merges: each reads all words
PAUSE_S: Final = 0.02  # between two transactions, so that the fold has its turn


class Persist(Protocol):
    """Repeats a query until the database answers."""

    async def __call__(self, query: Callable[[], Awaitable[T]], /) -> T: ...


class TextUpkeep:
    """Builds the texts of conversations that were archived before there were texts, and has SQLite
    drop the words of erased ones. Each step is a transaction; after a kill the next start
    continues.
    """

    def __init__(self, engine: AsyncEngine, persist: Persist) -> None:
        self._engine = engine
        self._persist = persist
        # Set while words of erased texts may be in the file; so also at the start.
        self._erasure = asyncio.Event()
        self._erasure.set()

    def on_erasure(self) -> None:
        """Texts were erased."""
        self._erasure.set()

    async def run(self) -> None:
        """Do both until cancelled."""
        await self._index_older()
        if self._engine.dialect.name != "sqlite":
            return  # PostgreSQL vacuums by itself
        while True:
            await self._erasure.wait()
            self._erasure.clear()
            more = True
            while more:
                more = await self._persist(self._merge)
                await asyncio.sleep(PAUSE_S)
            await asyncio.sleep(MERGE_S)

    async def _index_older(self) -> None:
        reported_at, remaining = -REPORT_INTERVAL_S, 1
        while remaining:
            remaining = await self._persist(self._older)
            reported = reported_at > 0
            if (remaining and time.monotonic() - reported_at >= REPORT_INTERVAL_S) or (
                reported and not remaining
            ):
                reported_at = time.monotonic()
                telemetry.log(telemetry.Action.INDEXING, conversations_left=remaining)
            await asyncio.sleep(PAUSE_S)

    async def _older(self) -> int:
        async with database.writing(self._engine) as connection:
            return await text_rows.index_older(connection, CONVERSATIONS_AT_ONCE)

    async def _merge(self) -> bool:
        async with database.writing(self._engine) as connection:
            return await text_rows.merge(connection)
