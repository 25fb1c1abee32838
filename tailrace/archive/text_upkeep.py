"""What the archive's process does for the texts that are searched, beside the fold."""

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
TELL_S: Final = 10.0  # between two lines of the log
MERGE_S: Final = 10.0  # between two merges: each reads all words
PAUSE_S: Final = 0.02  # between two transactions, so that the fold has its turn


class Persist(Protocol):
    """Asks until the database answers."""

    async def __call__(self, ask: Callable[[], Awaitable[T]], /) -> T: ...


class TextUpkeep:
    """Makes the texts of what was archived before there were any, and has SQLite forget the words
    of erased ones. Each step is a transaction, and what a kill leaves is done by the next start."""

    def __init__(self, engine: AsyncEngine, persist: Persist) -> None:
        self._engine = engine
        self._persist = persist
        # Set while words of erased texts may be in the file; so also at the start.
        self._erased = asyncio.Event()
        self._erased.set()

    def erased(self) -> None:
        """Texts were erased."""
        self._erased.set()

    async def run(self) -> None:
        """Do both until cancelled."""
        await self._index_older()
        if self._engine.dialect.name != "sqlite":
            return  # PostgreSQL vacuums by itself
        while True:
            await self._erased.wait()
            self._erased.clear()
            more = True
            while more:
                more = await self._persist(self._merge)
                await asyncio.sleep(PAUSE_S)
            await asyncio.sleep(MERGE_S)

    async def _index_older(self) -> None:
        told_at, left = -TELL_S, 1
        while left:
            left = await self._persist(self._older)
            told = told_at > 0
            if (left and time.monotonic() - told_at >= TELL_S) or (told and not left):
                told_at = time.monotonic()
                telemetry.log(telemetry.Action.INDEXING, conversations_left=left)
            await asyncio.sleep(PAUSE_S)

    async def _older(self) -> int:
        async with database.writing(self._engine) as connection:
            return await text_rows.index_older(connection, CONVERSATIONS_AT_ONCE)

    async def _merge(self) -> bool:
        async with database.writing(self._engine) as connection:
            return await text_rows.merge(connection)
