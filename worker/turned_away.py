"""What gateways turn away, as a part of what this worker expects to come. Best effort: Redis may be
away."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Final

from tailrace.store import turned_away as store
from tailrace.store.redis_store import StoreUnavailable
from tailrace.store.turned_away import Count, Whose
from worker.demand import Demand

LOOK_S: Final = 1.0
KEPT_S: Final = 60.0  # a gateway that was not seen for so long has begun to count anew

_NONE: Final = Count(0.0, 0.0)


class TurnedAway:
    """Looks once a second.

    Attributes:
        _counts: as each gateway told them last, and when that was (`clock`). None before the first
            look: that tells of what was turned away at any time before.
    """

    def __init__(
        self,
        told: store.TurnedAway,
        pool: str,
        demand: Demand,
        workers: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`workers`: gives the number of the pool's workers, among whom its requests are shared."""
        self._told = told
        self._pool = pool
        self._demand = demand
        self._workers = workers
        self._clock = clock
        self._counts: dict[str, tuple[float, Mapping[Whose, Count]]] | None = None

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        """Add what was turned away since the last look to what comes."""
        try:
            told = await self._told.listed(self._pool)
        except StoreUnavailable:
            return
        part = 1 / max(1, self._workers())
        for whose, (requests, tokens) in self._since(told).items():
            self._demand.turned_away(whose.rank, whose.name, requests * part, tokens * part)

    def _since(self, told: Mapping[str, Mapping[Whose, Count]]) -> dict[Whose, Count]:
        now, since = self._clock(), defaultdict[Whose, Count](lambda: _NONE)
        before, first = self._counts or {}, self._counts is None
        for gateway, counts in told.items():
            _, last = before.get(gateway, (now, {}))
            for whose, count in [] if first else counts.items():
                known = last.get(whose, _NONE)
                if count.requests < known.requests:
                    known = _NONE  # it counts anew
                more = Count(count.requests - known.requests, count.tokens - known.tokens)
                if more.requests > 0 and more.tokens >= 0:
                    found = since[whose]
                    since[whose] = Count(found.requests + more.requests, found.tokens + more.tokens)
        known_yet = {name: each for name, each in before.items() if each[0] > now - KEPT_S}
        self._counts = known_yet | {name: (now, counts) for name, counts in told.items()}
        return since
