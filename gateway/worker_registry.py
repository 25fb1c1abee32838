"""The workers' heartbeats in Redis, as the gateway last read them.

They are a hint for admission and for people. A request is taken without them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from gateway import backlog, cache
from tailrace import settings

REFRESH_S: Final = 1.0


def engine_state(workers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Summarise heartbeats for `/ready`.

    Returns: `state` (`none`, `loading` or `ready`), the number of `workers`, and the `detail` of
    the worker that decided the state.
    """
    states = [w.get("state") for w in workers]
    for state in ("ready", "loading", "failed"):
        if state in states:
            worker = workers[states.index(state)]
            shown = "loading" if state == "loading" else "ready" if state == "ready" else "none"
            return {
                "state": shown,
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
        if worker.get("state") == "ready" and isinstance(worker.get("partitions"), list)
        for p in worker["partitions"]
        if type(p) is int
    )


class WorkerRegistry:
    """Reads the heartbeats of all pools once a second.

    Attributes:
        _known: the last heartbeats by pool; empty while Redis is away.
    """

    def __init__(self, cached: cache.Cache, pools: settings.CurrentPools) -> None:
        self._cache = cached
        self._pools = pools
        self._known: dict[str, list[dict[str, Any]]] = {}

    async def run(self) -> None:
        """Refresh until cancelled."""
        while True:
            names = self._pools.catalog.names
            self._known = {pool: self._known.get(pool, []) for pool in names}
            for pool in names:
                self._known[pool] = await self._cache.workers(pool)
            await asyncio.sleep(REFRESH_S)

    def workers(self, pool: str) -> list[dict[str, Any]]:
        return self._known.get(pool, [])

    def served(self, pool: str) -> frozenset[int]:
        """See `served_partitions`."""
        return served_partitions(self.workers(pool))

    def backlog(self, pool: str) -> backlog.Backlog:
        """See `backlog.of`."""
        return backlog.of(self.workers(pool))

    def state(self) -> dict[str, Any]:
        return engine_state([w for pool in self._pools.catalog.names for w in self.workers(pool)])
