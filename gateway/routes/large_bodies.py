"""Admits large bodies one at a time, to bound this process's memory and CPU."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final

# After a large body was parsed and written, the next one waits for this multiple of that time, so
# that other requests get the CPU.
REST: Final = 2.0
LONGEST_REST_S: Final = 1.0


class LargeBodies:
    """One large body at a time."""

    def __init__(self) -> None:
        self._one = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for the turn, and hold it while the block runs."""
        await self._one.acquire()
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            yield
        finally:
            rest_s = min(REST * (loop.time() - began), LONGEST_REST_S)
            loop.call_later(rest_s, self._one.release)
