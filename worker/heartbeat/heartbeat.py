"""Publishes this worker's state in Redis, for gateways and the pool's other workers. Best effort:
Redis may be away."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tailrace import telemetry
from tailrace.protocol import topics
from tailrace.settings import WorkerSettings
from tailrace.store.redis_store import StoreUnavailable
from tailrace.store.workers import Workers
from worker.engines import base
from worker.heartbeat.status import State, Status
from worker.queue.load import Load
from worker.queue.read_ahead import Overflow
from worker.queue.workload import Workload
from worker.serving.worker_context import WorkerContext

HEARTBEAT_S = 1.0
# While requests wait. With heartbeats a second apart, gateways alternately accepted too many
# requests and refused all.
BUSY_HEARTBEAT_S = 0.25
STRANGERS_S = 3.0  # for how long a process of another pool counts as alive after it was seen
_NEWEST_WEIGHT = 0.5  # of the newest interval in the smoothed token rate


def living(beats: Sequence[Mapping[str, Any]]) -> frozenset[str]:
    """The incarnations that run responses, by the pool's heartbeats."""
    return frozenset(
        incarnation
        for beat in beats
        if beat.get("state") in (State.READY.value, State.DRAINING.value)
        and isinstance(incarnation := beat.get("incarnation"), str)
    )


def models(beats: Sequence[Mapping[str, Any]], but: str) -> frozenset[tuple[str, str]]:
    """The models (revision, tokenizer) of ready workers, without the incarnation `but`."""
    return frozenset(
        (rev, tokenizer)
        for beat in beats
        if beat.get("state") == State.READY.value
        and beat.get("incarnation") != but
        and isinstance(rev := beat.get("model_rev"), str)
        and isinstance(tokenizer := beat.get("tokenizer_digest"), str)
    )


class Heartbeat:
    """Writes one heartbeat a second, and four while requests wait.

    Attributes:
        context: the worker's parts; None until the engine is ready.
        partitions: gives the partitions assigned now; none until the engine is ready.
        overflow: gives the requests of a class that are not in memory.
        living: incarnations of the pool's workers that run responses, as of the last heartbeat.
        models: models (revision, tokenizer) of the pool's other ready workers, as of then.
        workload: measurements from which the backlog is computed.
        _strangers: incarnations of related pools' workers, and when they were last seen (monotonic
            seconds); None while Redis is away.
        _began: when this process began (monotonic seconds).
        _wake: set to write the next heartbeat at once.
        _tokens_per_s: the engine's rate, smoothed over the last heartbeats.
    """

    def __init__(
        self,
        workers: Workers,
        settings: WorkerSettings,
        status: Status,
        engine: base.Engine,
        incarnation: str,
    ) -> None:
        self._workers = workers
        self._settings = settings
        self._status = status
        self._engine = engine
        self._incarnation = incarnation
        self.living: frozenset[str] = frozenset()
        self.models: frozenset[tuple[str, str]] = frozenset()
        self._began = time.monotonic()
        self._strangers: dict[str, float] | None = None
        self.context: WorkerContext | None = None
        self.partitions: Callable[[], list[int]] = list
        self.overflow: Callable[[int], Overflow] = lambda _rank: Overflow({}, 0)
        self._wake = asyncio.Event()
        self._tokens_per_s = 0.0
        self.workload = Workload()
        self._load = Load(self.workload)

    def publish_now(self) -> None:
        """Something changed that gateways should know before the next heartbeat is due."""
        self._wake.set()

    async def run(self) -> None:
        """Write heartbeats until cancelled."""
        loop = asyncio.get_running_loop()
        tokens_before, before = 0, loop.time()
        while True:
            tokens, now = self._tokens(), loop.time()
            if now - before > HEARTBEAT_S - BUSY_HEARTBEAT_S / 2:
                newest = (tokens - tokens_before) / (now - before)
                self._tokens_per_s += _NEWEST_WEIGHT * (newest - self._tokens_per_s)
                self.measure(now - before)
                tokens_before, before = tokens, now
            try:
                await self._workers.heartbeat(self._settings.pool, self._settings.name, self.info())
                beats = await self._workers.list_workers(self._settings.pool)
                self.living, self.models = living(beats), models(beats, self._incarnation)
                await self.note_strangers(loop.time())
            except StoreUnavailable:
                self.living, self.models, self._strangers = frozenset(), frozenset(), None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._pause_s):
                    await self._wake.wait()
            self._wake.clear()

    @property
    def _pause_s(self) -> float:
        """Seconds until the next heartbeat."""
        busy = self.context is not None and self.context.engine_slots.queued > 0
        return BUSY_HEARTBEAT_S if busy else HEARTBEAT_S

    @property
    def strangers(self) -> frozenset[str] | None:
        """Incarnations of related pools' workers that lived a moment ago; None while it is not
        known."""
        return None if self._strangers is None else frozenset(self._strangers)

    async def note_strangers(self, now: float) -> None:
        """Note which workers exist. Redis may have been emptied a moment ago, so one missing entry
        proves nothing."""
        times = self._strangers or {}
        for pool in self._settings.related:
            for beat in await self._workers.list_workers(pool):
                if isinstance(incarnation := beat.get("incarnation"), str):
                    times[incarnation] = now
        self._strangers = {name: at for name, at in times.items() if at > now - STRANGERS_S}

    async def forget(self) -> None:
        """Remove this worker's entry at once, instead of when it expires."""
        with contextlib.suppress(StoreUnavailable):
            await self._workers.forget_worker(self._settings.pool, self._settings.name)

    def measure(self, seconds: float) -> None:
        """Account for the seconds since the last call."""
        if self.context is not None:
            self._load.measure(self.context.engine_slots, self._tokens(), seconds)

    def info(self) -> dict[str, Any]:
        """The heartbeat's content; updates the engine's metrics."""
        slots = self.context.engine_slots if self.context else None
        running, queued = (slots.running, slots.queued) if slots else (0, 0)
        telemetry.ENGINE_RUNNING.labels(pool=self._settings.pool).set(running)
        telemetry.ENGINE_WAITING.set(queued)
        telemetry.ENGINE_TOKENS_PER_SECOND.set(self._tokens_per_s)
        self._status.tokens_per_s = self._tokens_per_s
        load = self._load.report(
            slots, [self.overflow(rank) for rank in range(len(topics.CLASSES))]
        )
        self._note(load)
        return {
            "incarnation": self._incarnation,
            "state": self._status.state.value,
            "detail": self._status.summary,
            "model": self._settings.model_name,
            "model_rev": self._engine.model_rev,
            "tokenizer_digest": self._engine.tokenizer_digest,
            "age_s": round(time.monotonic() - self._began),
            "stands_in_for": sorted(self._settings.stands_in_for),
            "features": sorted(self._engine.features),
            "not_offered": sorted(self.context.not_offered) if self.context else [],
            "counting_digest": self._engine.counting_digest,
            "max_model_len": self._engine.max_model_len,
            "capacity": self._engine.capacity,
            "running": running,
            "queued": queued,
            "tokens_per_s": round(self._tokens_per_s, 1),
            "partitions": self.partitions(),
            **load,
        }

    def _note(self, load: Mapping[str, Any]) -> None:
        """Export the backlog as metrics."""
        pool = self._settings.pool
        telemetry.BACKLOG_TOKENS.labels(pool=pool, kind="running").set(load["running_tokens"])
        for name, waiting in zip(topics.CLASSES, load["waiting_tokens"], strict=True):
            telemetry.BACKLOG_TOKENS.labels(pool=pool, kind=name).set(waiting)
        telemetry.DRAIN_RATE.labels(pool=pool).set(load["drain_rate"])

    def _tokens(self) -> int:
        return self.context.stall_detector.tokens if self.context else 0
