"""The workers' heartbeats, as last read from Redis.

They are a hint for admission and for operators. A request is accepted without them.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from gateway.cache import Cache
from gateway.load import backlog
from tailrace import settings

REFRESH_S: Final = 1.0
BUSY_REFRESH_S: Final = (
    0.25  # of pools with waiting requests: their workers send heartbeats more often, too
)
# After a loss of Redis there are no workers until their next heartbeats.
ABSENT_S: Final = 2.0
# A worker without a heartbeat for this long (three heartbeats) counts as lost, although its last
# one is still valid. Only if Redis answered all the time: otherwise it may have refused heartbeats.
SILENT_S: Final = 3.0
# How long the last known backlog is used while Redis has no heartbeats. Afterwards requests are
# accepted as if the backlog were empty, and wait in the log.
BACKLOG_S: Final = 10.0

Beat = Mapping[str, Any]


def engine_state(workers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Summarise heartbeats for `/ready`.

    Returns: `state` (`none`, `loading` or `ready`), the number of `workers`, and the `detail` of
    the worker that decided the state.
    """
    states = [w.get("state") for w in workers]
    for state in ("ready", "loading", "failed"):
        if state in states:
            worker = workers[states.index(state)]
            public_state = (
                "loading" if state == "loading" else "ready" if state == "ready" else "none"
            )
            return {
                "state": public_state,
                "workers": len(workers),
                "detail": str(worker.get("detail", ""))[:200],
            }
    return {"state": "none", "workers": len(workers), "detail": ""}


def served_partitions(workers: Sequence[Mapping[str, Any]]) -> frozenset[int]:
    """The partitions with a ready worker. Empty while unknown: without heartbeats, while workers
    load, during a rebalance."""
    return frozenset(
        p
        for worker in workers
        if worker.get("state") == "ready"
        for p in backlog.partitions_of(worker)
    )


class WorkerRegistry:
    """Reads the heartbeats of all pools once a second, and four times while requests wait.

    Attributes:
        _heartbeats: the last heartbeats by pool; empty while Redis is down.
        _standing: the last heartbeats of ready workers by pool. They stay while Redis is down.
        _ready_at: when Redis last had a ready worker, by pool (monotonic seconds).
        _absent_since: pools without a ready worker, and since when (monotonic seconds). Empty while
            Redis is down.
        _silent_at: when Redis last did not answer, by pool (monotonic seconds).
        _backlogs, _partitions: computed from the last heartbeats, by pool. Every request reads
            them.
    """

    def __init__(
        self,
        cache: Cache,
        pools: settings.CurrentPools,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cache = cache
        self._pools = pools
        self._clock = clock
        self._heartbeats: dict[str, list[dict[str, Any]]] = {}
        self._standing: dict[str, list[Beat]] = {}
        self._ready_at: dict[str, float] = {}
        self._absent_since: dict[str, float] = {}
        self._silent_at: dict[str, float] = {}
        self._backlogs: dict[str, backlog.Backlog] = {}
        self._partitions: dict[str, frozenset[int]] = {}

    async def run(self) -> None:
        """Refresh until cancelled."""
        while True:
            names = self._pools.catalog.names
            self._heartbeats = {pool: self._heartbeats.get(pool, []) for pool in names}
            for pool in names:
                self.note(pool, await self._cache.workers(pool))
            busy = any(self.backlog(pool).busy for pool in names)
            await asyncio.sleep(BUSY_REFRESH_S if busy else REFRESH_S)

    def note(self, pool: str, beats: list[dict[str, Any]] | None) -> None:
        """Store the heartbeats of a pool; None: Redis did not answer."""
        self._heartbeats[pool] = beats or []
        now = self._clock()
        if beats is None:
            self._silent_at[pool] = now
        ready = [worker for worker in beats or [] if worker.get("state") == "ready"]
        answered_s = now - self._silent_at.get(pool, -math.inf)
        live = [
            worker
            for worker in ready
            if worker.get("silent_s", 0.0) < SILENT_S or answered_s < SILENT_S
        ]
        if live or beats is None:
            self._absent_since.pop(pool, None)
        else:
            self._absent_since.setdefault(pool, now - ABSENT_S if ready else now)
        if live:
            self._standing[pool], self._ready_at[pool] = [*live], now
        elif self.absent(pool):
            self._standing.pop(pool, None)
        self._partitions[pool] = served_partitions(beats or [])
        # A Redis that is down or was emptied does not mean an empty backlog.
        current: Sequence[Beat] = beats or []
        if not current and now - self._ready_at.get(pool, -math.inf) < BACKLOG_S:
            current = self.standing(pool)
        placements = self.backlog(pool).placements
        placements.refresh()
        self._backlogs[pool] = backlog.from_heartbeats(current, placements)

    def absent(self, pool: str) -> bool:
        """Whether the pool certainly has no ready worker."""
        since = self._absent_since.get(pool)
        return since is not None and self._clock() - since >= ABSENT_S

    def standing(self, pool: str) -> Sequence[Beat]:
        """The last known ready workers of a pool."""
        return self._standing.get(pool, ())

    def workers(self, pool: str) -> list[dict[str, Any]]:
        return self._heartbeats.get(pool, [])

    def partitions(self, pool: str) -> frozenset[int]:
        """See `served_partitions`."""
        return self._partitions.get(pool, frozenset())

    def backlog(self, pool: str) -> backlog.Backlog:
        """See `backlog.from_heartbeats`."""
        work = self._backlogs.get(pool)
        if work is None:
            work = self._backlogs[pool] = backlog.from_heartbeats([])
        return work

    def state(self) -> dict[str, Any]:
        return engine_state([w for pool in self._pools.catalog.names for w in self.workers(pool)])
