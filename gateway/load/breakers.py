"""The circuit breakers of all pools, shared with the other gateways.

Without Redis each gateway has its own. A pool without a ready worker is not published, because each
gateway sees that in the heartbeats.
"""

from __future__ import annotations

import asyncio
import collections
import random
import time
from collections.abc import Callable
from typing import Any, Final

from gateway.cache import Cache
from gateway.load import breaker, worker_registry
from gateway.load.breaker import State
from tailrace import settings, telemetry
from tailrace.store import breakers as store

REFRESH_S: Final = 0.5
NO_WORKER: Final = "no_worker"
NO_WORKER_RETRY_S: Final = 5.0
_LEVELS: Final = {State.CLOSED: 0, State.HALF_OPEN: 1, State.OPEN: 2}


class Breakers:
    """One breaker for each pool.

    Attributes:
        _breakers: by pool. Those of removed pools stay: their requests may still run.
        _away: pools without a ready worker at the last check.
        _unpublished: pools whose breaker opened here and is not in Redis yet.
        _last_states: the state of each pool in the metric and the log.
    """

    def __init__(
        self,
        pools: settings.CurrentPools,
        workers: worker_registry.WorkerRegistry,
        cache: Cache,
        name: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        luck: Callable[[], float] = random.random,
    ) -> None:
        """`name`: identifies this gateway."""
        self._pools = pools
        self._workers = workers
        self._cache = cache
        self._name = name
        self._clock = clock
        self._luck = luck
        self._breakers = collections.defaultdict[str, breaker.Breaker](breaker.Breaker)
        self._away: set[str] = set()
        self._unpublished: set[str] = set()
        self._last_states: dict[str, State] = {}

    async def run(self) -> None:
        """Publish and read until cancelled."""
        while True:
            await self.exchange()
            await asyncio.sleep(REFRESH_S)

    async def exchange(self) -> None:
        """Publish breakers that opened here, and adopt those that opened elsewhere."""
        for pool in sorted(self._unpublished):
            own = self._breakers[pool]
            entry = store.Open(self._name, own.openings, own.reason, own.wait_s(self._clock()))
            if entry.for_s <= 0 or await self._cache.publish_breaker(pool, entry):
                self._unpublished.discard(pool)
        for pool, entry in (await self._cache.open_breakers()).items():
            if pool not in self._pools.catalog.names or entry.by == self._name:
                continue
            own = self._breakers[pool]
            if own.state(self._clock()) is not State.OPEN:
                own.adopt(entry.opened, entry.reason, entry.for_s, self._clock())
        for pool in self._pools.catalog.names:
            self.state(pool)

    def state(self, pool: str) -> State:
        """Whether the pool gets requests."""
        own = self._breakers[pool]
        if self._workers.absent(pool):
            self._away.add(pool)
        elif pool in self._away:
            self._away.discard(pool)
            if own.state(self._clock()) is State.CLOSED:
                own.half_open()
        state = State.OPEN if pool in self._away else own.state(self._clock())
        self._show(pool, state)
        return state

    def admits(self, pool: str) -> bool:
        """Whether a request may go to the pool now. True counts as a request sent."""
        return self.state(pool) is not State.OPEN and self._breakers[pool].admits(self._clock())

    def wait_s(self, pool: str) -> float:
        """Seconds until the pool is tried again; 0 if it is tried now."""
        if self.state(pool) is not State.OPEN:
            return 0.0
        wait_s = self._breakers[pool].wait_s(self._clock())
        return max(wait_s, NO_WORKER_RETRY_S) if pool in self._away else wait_s

    def reason(self, pool: str) -> str:
        """Why the pool does not get every request; empty if it does."""
        if self.state(pool) is State.CLOSED:
            return ""
        return NO_WORKER if pool in self._away else self._breakers[pool].reason or NO_WORKER

    def record(self, pool: str, failure: str = "") -> None:
        """Record a success of the pool, or a failure with its reason."""
        if failure:
            telemetry.POOL_FAILURES.labels(pool=pool, reason=failure).inc()
        if self._breakers[pool].record(failure, self._clock(), self._luck()):
            self._unpublished.add(pool)
        self.state(pool)

    def release(self, pool: str) -> None:
        """A request of the pool ended without evidence about it."""
        self._breakers[pool].release()

    def report(self) -> dict[str, Any]:
        """For `/ready`: state, reason and seconds until the next try, by pool."""
        return {
            pool: {
                "state": self.state(pool).value,
                "reason": self.reason(pool),
                "retry_s": round(self.wait_s(pool), 1),
            }
            for pool in self._pools.catalog.names
        }

    def _show(self, pool: str, state: State) -> None:
        telemetry.POOL_BREAKER.labels(pool=pool).set(_LEVELS[state])
        if self._last_states.get(pool, State.CLOSED) is state:
            return
        self._last_states[pool] = state
        own = self._breakers[pool]
        telemetry.log(
            telemetry.Action.BREAKER_CHANGED,
            pool=pool,
            state=state.value,
            reason=NO_WORKER if pool in self._away else own.reason,
            opened=own.openings,
        )
