"""Turns at something of which few may use it at once, fair between principals."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from tailrace.fair_queue import FairQueue, Flow


class Turns:
    """A number of places.

    Attributes:
        _free: places that are not taken.
        _waiting: those who wait for one.
    """

    def __init__(self, places: int) -> None:
        self._free = places
        self._waiting: FairQueue[asyncio.Future[None]] = FairQueue()

    @contextlib.asynccontextmanager
    async def take(self, flow: Flow, cost: float) -> AsyncIterator[None]:
        """Wait for a place and have it while the block runs. `cost` is what it will take, in any
        unit."""
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.push(flow, granted, cost)
        self._grant()
        try:
            await granted
        except asyncio.CancelledError:
            if not self._waiting.remove(flow, granted):
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
        while self._free and (taken := self._waiting.pop()) is not None:
            self._free -= 1
            if not taken[1].done():
                taken[1].set_result(None)
