"""Turns at a resource that only a few may use at once, fair between principals."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from tailrace.fair_queue import FairQueue, Flow


class Turns:
    """A number of slots.

    Attributes:
        _free: free slots.
        _waiting: callers that wait for one.
    """

    def __init__(self, places: int) -> None:
        self._free = places
        self._waiting: FairQueue[asyncio.Future[None]] = FairQueue()

    @contextlib.asynccontextmanager
    async def acquire(self, flow: Flow, cost: float) -> AsyncIterator[None]:
        """Wait for a slot and hold it while the block runs. `cost` is the work of the block, in any
        unit."""
        grant: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.push(flow, grant, cost)
        self._grant()
        try:
            await grant
        except asyncio.CancelledError:
            if not self._waiting.remove(flow, grant):
                self._give_back()
            raise
        try:
            yield
        finally:
            self._give_back()

    def _give_back(self) -> None:
        self._free += 1
        self._grant()

    def _grant(self) -> None:
        while self._free and (entry := self._waiting.pop()) is not None:
            self._free -= 1
            if not entry[1].done():
                entry[1].set_result(None)
