"""Counts of each principal's responses at other gateways, so that the limit covers all gateways.

They are published and read once a second, for principals with many responses only, so a request
costs nothing. Without Redis the limit holds per gateway.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Final

from gateway.cache import Cache
from gateway.load import admission
from tailrace.store.redis_store import digest

REFRESH_S: Final = 1.0
MANY: Final = 16  # fewer responses of one principal are not published


class PrincipalCounts:
    """The counts of the other gateways.

    Attributes:
        _elsewhere: by digest of the principal; empty while Redis is down.
    """

    def __init__(self, cache: Cache, running: admission.Running, name: str) -> None:
        """`name`: identifies this gateway."""
        self._cache = cache
        self._running = running
        self._name = name
        self._elsewhere = Counter[str]()

    async def run(self) -> None:
        """Publish and read until cancelled."""
        published = False
        while True:
            busy = self._running.busy(MANY)
            if busy or published:
                await self._cache.publish_running(self._name, busy)
            published = bool(busy)
            self._elsewhere = await self._cache.running_elsewhere(self._name)
            await asyncio.sleep(REFRESH_S)

    def elsewhere(self, principal: str) -> int:
        """Responses of the principal at other gateways."""
        return self._elsewhere[digest(principal)] if self._elsewhere else 0
