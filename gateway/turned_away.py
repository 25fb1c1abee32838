"""Counts the requests that a pool would have got if there had been room, and tells its workers.

A worker tells how long requests would wait by what it expects to come meanwhile. It sees only what
was let in, and who is turned away now comes as soon as there is room. So gateways tell how many
they refuse because of their deadlines, or send to other pools. Once a second, and nothing is added
to a request. Without Redis workers expect what came before.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from gateway import cache
from tailrace.fair_queue import waits_of
from tailrace.protocol import topics
from tailrace.store.turned_away import Count, Whose

REFRESH_S: Final = 1.0
KEPT_S: Final = 60.0  # a pool that nothing was turned away from for so long is forgotten
MOST: Final = 128  # principals of a pool and class whose requests are counted, the last ones

_NONE: Final = Count(0.0, 0.0)


class TurnedAway:
    """The counts of this gateway.

    Attributes:
        _counts: by pool, what was turned away since the pool was forgotten; principals in the order
            in which they asked last.
        _last: when something was turned away last, by pool (`clock`).
    """

    def __init__(
        self, cached: cache.Cache, name: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`name` tells this gateway from the others."""
        self._cache = cached
        self._name = name
        self._clock = clock
        self._counts: dict[str, dict[Whose, Count]] = {}
        self._last: dict[str, float] = {}

    def note(
        self,
        pool: str,
        priority: topics.PriorityClass,
        principal: str,
        tokens: float,
    ) -> None:
        """A request of a principal was turned away that asks for so many tokens."""
        counts, rank = self._counts.setdefault(pool, {}), topics.CLASSES.index(priority)
        for whose in (Whose(rank), Whose(rank, waits_of(principal))):
            before = counts.pop(whose, _NONE)
            counts[whose] = Count(before.requests + 1, before.tokens + tokens)
        while len(counts) > len(topics.CLASSES) * (MOST + 1):
            del counts[next(whose for whose in counts if whose.name)]
        self._last[pool] = self._clock()

    async def run(self) -> None:
        """Tell until cancelled."""
        while True:
            for pool in [*self._counts]:
                if self._clock() - self._last[pool] > KEPT_S:
                    del self._counts[pool], self._last[pool]
                else:
                    await self._cache.tell_turned_away(pool, self._name, self._counts[pool])
            await asyncio.sleep(REFRESH_S)
