"""The workers' heartbeats in Redis, as the gateway last read them.

They are a hint for admission and for people. A request is taken without them.
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
BUSY_REFRESH_S: Final = 0.25  # of pools in which requests wait: their workers tell more often, too
# A Redis that was emptied a moment ago tells of no worker until their next heartbeats.
ABSENT_S: Final = 2.0
# A worker that was not heard of for so long, which is three heartbeats, is taken for lost, although
# its last one is still valid. If Redis answered: it may not have taken heartbeats either.
SILENT_S: Final = 3.0
# How long what was known of the work ahead counts while Redis tells nothing. Afterwards requests
# are taken as if nothing was ahead, and wait in the log.
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
            shown_state = (
                "loading" if state == "loading" else "ready" if state == "ready" else "none"
            )
            return {
                "state": shown_state,
                "workers": len(workers),
                "detail": str(worker.get("detail", ""))[:200],
            }
    return {"state": "none", "workers": len(workers), "detail": ""}


def served_partitions(workers: Sequence[Mapping[str, Any]]) -> frozenset[int]:
    """The partitions whose requests a ready worker takes now. Empty while nothing is known: without
    heartbeats, while workers load, in the middle of a rebalance."""
    return frozenset(
        p
        for worker in workers
        if worker.get("state") == "ready"
        for p in backlog.partitions_of(worker)
    )


class WorkerRegistry:
    """Reads the heartbeats of all pools once a second, and four times while requests wait.

    Attributes:
        _known: the last heartbeats by pool; empty while Redis is away.
        _standing: the last heartbeats of ready workers by pool. They stay while Redis is away.
        _told_at: when Redis told of a ready worker last, by pool (monotonic seconds).
        _absent_since: pools without a ready worker, and since when (monotonic seconds). None while
            Redis is away.
        _unanswered_at: when Redis did not answer last, by pool (monotonic seconds).
        _backlogs, _served: what follows from the last heartbeats, by pool. Every request needs it.
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
        """What Redis says of a pool; None: it does not answer."""
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
        # That Redis is away, or was emptied, does not mean no backlog.
        current: Sequence[Beat] = beats or []
        if not current and now - self._ready_at.get(pool, -math.inf) < BACKLOG_S:
            current = self.standing(pool)
        placements = self.backlog(pool).placements
        placements.refresh()
        self._backlogs[pool] = backlog.from_heartbeats(current, placements)

    def absent(self, pool: str) -> bool:
        """Whether it is known that no worker of the pool is ready."""
        since = self._absent_since.get(pool)
        return since is not None and self._clock() - since >= ABSENT_S

    def standing(self, pool: str) -> Sequence[Beat]:
        """The ready workers of a pool, as they were last known."""
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
