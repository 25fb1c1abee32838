"""The shares of model revisions of each pool, and the rollback of a new revision that is worse.

Each gateway judges by the responses that it submitted, and publishes its verdict in Redis. Without
Redis each judges for itself. A pool without `canary` is ignored.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gateway.cache import Cache
from gateway.load import revisions, worker_registry
from tailrace import settings, telemetry
from tailrace.settings.shapes import Pool
from tailrace.store import canaries as store

REFRESH_S: Final = 0.5
MAX_OUT: Final = 100  # returned revisions of all pools; more are not adopted
PUBLISH_S: Final = 5.0  # verdicts are published again, because Redis may have lost them


@dataclass(frozen=True, slots=True)
class _Out:
    """Why a revision gets no requests, until when (monotonic seconds), and under which terms."""

    terms: str
    reason: str
    until: float


class Canaries:
    """The revisions of all pools.

    Attributes:
        _records: outcomes of each revision, by pool.
        _out: returned revisions, by pool and revision.
        _published_at: when they were last published (monotonic seconds).
        _metric_pools: pools in the metric.
    """

    def __init__(
        self,
        pools: settings.CurrentPools,
        workers: worker_registry.WorkerRegistry,
        cache: Cache,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pools = pools
        self._workers = workers
        self._cache = cache
        self._clock = clock
        self._records: dict[str, dict[str, revisions.Record]] = {}
        self._out: dict[tuple[str, str], _Out] = {}
        self._published_at = -math.inf
        self._metric_pools: set[str] = set()

    async def run(self) -> None:
        """Publish and read until cancelled."""
        while True:
            await self.exchange()
            await asyncio.sleep(REFRESH_S)

    async def exchange(self) -> None:
        """Adopt the verdicts of others, publish those of this gateway, and drop expired ones."""
        pools = [pool for pool in self._pools.catalog.pools if pool.canary is not None]
        self._forget()
        if pools:
            now = self._clock()
            for (name, revision), entry in (await self._cache.returned_revisions()).items():
                pool = self._pool(name)
                skip = (name, revision) in self._out or len(self._out) >= MAX_OUT
                if pool is None or skip:
                    continue
                if entry.terms == revisions.terms(pool):
                    # A verdict without an end is published for a day at a time.
                    for_s = entry.for_s if pool.canary_bounds.retry_s else math.inf
                    self._return(pool, revision, entry.reason, now + for_s)
            if self._out and now - self._published_at >= PUBLISH_S:
                self._published_at = now
                for (name, revision), mine in self._out.items():
                    for_s = min(mine.until - now, store.MOST_S)
                    verdict = store.Returned(mine.terms, mine.reason, for_s)
                    await self._cache.publish_returned(name, revision, verdict)
        self._show(pools)

    def partitions(
        self, name: str, scope: str, messages: Sequence[Mapping[str, Any]]
    ) -> frozenset[int]:
        """The partitions for a new request, by the shares; empty: any."""
        pool = self._pool(name)
        if pool is None or not messages:
            return frozenset()
        candidates, parts = self._shares(pool)
        revision = revisions.pick(parts, revisions.point_of(scope, messages))
        return next((each.partitions for each in candidates if each.name == revision), frozenset())

    def reports_revision(self, name: str) -> bool:
        """Whether responses of the pool report their revision."""
        return self._pool(name) is not None

    def on_first_token(self, name: str, revision: str, seconds: float) -> None:
        """Record the first token of a response."""
        if (record := self._record(name, revision)) is not None:
            record.add_first_token(self._clock(), seconds)
            self._judge(name)

    def on_end(self, name: str, revision: str, *, failed: bool) -> None:
        """Record the end of a response, or that it stalled."""
        if (record := self._record(name, revision)) is not None:
            record.add_outcome(self._clock(), failed=failed)
            self._judge(name)

    def report(self) -> dict[str, Any]:
        """For `/ready`: the share of each revision of pools with `canary`; for a returned one the
        reason, and seconds until it is tried again (null: never automatically)."""
        self._forget()
        return {
            pool.name: {name: self._state(pool.name, name, part) for name, part in parts.items()}
            for pool in self._pools.catalog.pools
            if pool.canary is not None and (parts := self._shares(pool)[1])
        }

    def _state(self, pool: str, revision: str, part: float) -> dict[str, Any]:
        state: dict[str, Any] = {"share": round(part, 4)}
        if (out := self._out.get((pool, revision))) is not None:
            remaining_s = out.until - self._clock()
            state |= {
                "returned": out.reason,
                "retry_s": round(remaining_s, 1) if remaining_s < math.inf else None,
            }
        return state

    def _pool(self, name: str) -> Pool | None:
        """The pool, if it has shares of revisions."""
        pool = self._pools.catalog.pool(name)
        return pool if pool is not None and pool.canary is not None else None

    def _shares(self, pool: Pool) -> tuple[list[revisions.Revision], dict[str, float]]:
        candidates = revisions.from_heartbeats(self._workers.standing(pool.name))
        out = [revision for name, revision in self._out if name == pool.name]
        assert pool.canary is not None
        return candidates, revisions.shares(pool.canary, candidates, out)

    def _record(self, name: str, revision: str) -> revisions.Record | None:
        """The record of a revision; None if its pool has no shares."""
        if self._pool(name) is None or not revision:
            return None
        standing = {
            each.name for each in revisions.from_heartbeats(self._workers.standing(name))
        } | {revision}
        records = {k: v for k, v in self._records.get(name, {}).items() if k in standing}
        self._records[name] = records
        return records.setdefault(revision, revisions.Record())

    def _judge(self, name: str) -> None:
        """Return the newest revision if it is worse than the others that get requests."""
        pool = self._pool(name)
        assert pool is not None
        self._forget()
        newest, *others = [rev for rev, part in self._shares(pool)[1].items() if part > 0] or [""]
        records = self._records[name]
        if newest not in records or not others:
            return
        before = [records[rev] for rev in others if rev in records]
        reason = revisions.worse(pool, records[newest], before, self._clock())
        if reason:
            retry_s = pool.canary_bounds.retry_s
            self._return(pool, newest, reason, self._clock() + (retry_s or math.inf))
            self._published_at = -math.inf

    def _return(self, pool: Pool, revision: str, reason: str, until: float) -> None:
        self._out[pool.name, revision] = _Out(revisions.terms(pool), reason, until)
        self._records.get(pool.name, {}).pop(revision, None)
        telemetry.REVISIONS_RETURNED.labels(pool=pool.name, reason=reason).inc()
        telemetry.log(
            telemetry.Action.REVISION_RETURNED, pool=pool.name, revision=revision, reason=reason
        )

    def _forget(self) -> None:
        """Drop verdicts that have expired or belong to other terms."""
        now = self._clock()
        for (name, revision), out in list(self._out.items()):
            pool = self._pool(name)
            if pool is not None and out.until > now and out.terms == revisions.terms(pool):
                continue
            del self._out[name, revision]
            telemetry.log(telemetry.Action.REVISION_TRIED, pool=name, revision=revision)

    def _show(self, pools: Sequence[Pool]) -> None:
        for pool in pools:
            newest = next(iter(self._shares(pool)[1].values()), 0.0)
            telemetry.REVISION_SHARE.labels(pool=pool.name).set(newest)
        for name in self._metric_pools - {pool.name for pool in pools}:
            telemetry.REVISION_SHARE.remove(name)
        self._metric_pools = {pool.name for pool in pools}
