"""Announces to all open connections that the service leaves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

# Sockets end within this time, so that their clients do not all reconnect in one instant.
SPREAD_S: Final = 5.0
# For close frames and the last writes, after every connection was asked to end.
CLOSE_S: Final = 2.0
_TICK_S: Final = 0.05


class Draining:
    """Set once, when the service must stop. Sockets and streams then end, and their clients
    resume elsewhere.

    Attributes:
        callbacks: called when it begins. With thousands of sockets a callback for each is cheaper
            than a task that waits.
    """

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.callbacks: set[Callable[[], None]] = set()

    def begin(self) -> None:
        """Begin; idempotent."""
        if not self._event.is_set():
            self._event.set()
            for callback in list(self.callbacks):
                callback()

    @property
    def begun(self) -> bool:
        """Whether it has begun."""
        return self._event.is_set()

    async def wait(self) -> None:
        """Until it begins."""
        await self._event.wait()


async def until_zero(count: Callable[[], int], deadline_s: float) -> None:
    """Wait until `count` is 0, or the deadline. It polls, because it runs once per process."""
    end = time.monotonic() + deadline_s
    while count() and time.monotonic() < end:  # noqa: ASYNC110
        await asyncio.sleep(_TICK_S)
