"""How a service tells whatever it holds open that it is on its way out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

SPREAD_S = 5.0  # sockets end within it, so that their clients do not all come back in one instant


class Draining:
    """Set once, when the service is told to stop; sockets and streams then end so that clients
    resume elsewhere.

    Attributes:
        told: called when it begins; whoever has thousands of sockets cannot have a task wait for
            each.
    """

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.told: set[Callable[[], None]] = set()

    def begin(self) -> None:
        """Idempotent."""
        if not self._event.is_set():
            self._event.set()
            for tell in list(self.told):
                tell()

    @property
    def begun(self) -> bool:
        """Whether the service is on its way out."""
        return self._event.is_set()

    async def wait(self) -> None:
        """Until draining begins."""
        await self._event.wait()
