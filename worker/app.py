"""The worker's composition root: what it is made of, in which order it starts, and how it
leaves."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import importlib
import time
import uuid
from typing import Any

from tailrace import engines, log, settings, telemetry
from tailrace.store.prefixes import Prefixes
from tailrace.store.redis_store import RedisStore, StoreUnavailable
from tailrace.store.workers import Workers
from tailrace.telemetry import gc_tuning, health
from worker import (
    attempt,
    clock,
    flush_scheduler,
    metering,
    request_consumer,
    serving,
    slots,
    tail,
)
from worker.engines import base

HEARTBEAT_S = 1.0
LAYOUT_RETRY_S = 1.0
HAND_OVER_S = 2.0  # of the drain: others need so long to take over the partitions of one who left
SHUTDOWN_S = 10.0


class State(enum.Enum):
    """What `/ready` and the heartbeat say."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


def engine_for(s: settings.WorkerSettings) -> base.Engine:
    """The engine that the settings name. Only its own module is imported, so that a worker without
    vLLM needs no torch."""
    made: base.Engine = importlib.import_module(engines.find(s.engine).module).create(s)
    return made


class App:
    """One worker process.

    Attributes:
        state, detail: for `/ready` and the heartbeat.
        writer: the one producer of this process.
        _leave: set when the worker shall go: by a signal, or because the engine died.
        _intake: None until the engine is ready.
        _rate: tokens per second over the last heartbeats.
    """

    def __init__(self, s: settings.WorkerSettings, engine: base.Engine | None = None) -> None:
        self._settings = s
        self._engine = engine or engine_for(s)
        self.state = State.LOADING
        self.detail = "starting"
        self._leave = asyncio.Event()
        self._clock = clock.BrokerClock()
        self._incarnation = f"{s.name}/{uuid.uuid4().hex[:12]}"
        self.writer = log.Writer(s.kafka, client_id=s.name, on_replaced=_producer_replaced)
        self._offsets = log.Offsets(s.kafka, client_id=f"{s.name}-offsets")
        self._tail = tail.Tail(s.kafka, self._offsets, self._clock, client_id=s.name)
        self._redis = RedisStore(s.redis)
        self._workers = Workers(self._redis)
        self._metering = metering.Metering(
            self.writer, Prefixes(self._redis), pool=s.pool, worker=s.name
        )
        self._consumer: request_consumer.RequestConsumer | None = None
        self._context: serving.WorkerContext | None = None
        self._rate = 0.0

    def leave(self) -> None:
        """Drain and go; the first step of an orderly end."""
        self._leave.set()

    async def run(self) -> int:
        """Serve until told to leave; the process's exit code."""
        chosen = self._settings
        telemetry.log(
            telemetry.Action.SERVICE_STARTED,
            pool=chosen.pool,
            engine=chosen.engine,
            model=chosen.model_name,
            incarnation=self._incarnation,
        )
        async with asyncio.TaskGroup() as tasks:
            background = [tasks.create_task(self._beat(), name="heartbeat")]
            if chosen.admin_port:
                listener = health.AdminServer(chosen.host, chosen.admin_port, self.readiness)
                background.append(tasks.create_task(listener.run(), name="admin"))
            try:
                await self._until_leaving(tasks, background)
            finally:
                await self._shut_down()
                for task in background:
                    task.cancel()
        telemetry.log(telemetry.Action.SERVICE_STOPPED, state=self.state.value, detail=self.detail)
        return 1 if self.state is State.FAILED else 0

    async def _until_leaving(
        self, tasks: asyncio.TaskGroup, background: list[asyncio.Task[Any]]
    ) -> None:
        serving_task = tasks.create_task(self._serve(tasks, background), name="serve")
        leaving = tasks.create_task(self._leave.wait(), name="leave")
        dead = tasks.create_task(self._engine.dead.wait(), name="engine-dead")
        background += [leaving, dead]
        await asyncio.wait((serving_task, leaving, dead), return_when=asyncio.FIRST_COMPLETED)
        if (
            serving_task.done()
            and not serving_task.cancelled()
            and serving_task.exception() is not None
        ):
            return
        if dead.done() and self.state is not State.FAILED:
            self._fail("the engine died")
        await self._drain()
        serving_task.cancel()

    async def _serve(self, tasks: asyncio.TaskGroup, background: list[asyncio.Task[Any]]) -> None:
        """Load the engine, then take requests until the drain stops the intake."""
        loading = time.monotonic()
        self.detail = "loading the engine"
        telemetry.log(
            telemetry.Action.ENGINE_LOADING,
            engine=self._settings.engine,
            model=self._settings.model,
        )
        try:
            await self._engine.start()
        except base.EngineDead as error:
            self._fail(f"the engine did not start: {error}")
            self._engine.dead.set()
            return
        telemetry.log(
            telemetry.Action.ENGINE_READY,
            seconds=round(time.monotonic() - loading, 1),
            model_rev=self._engine.model_rev,
        )
        telemetry.ENGINE_CAPACITY.set(self._engine.capacity)
        telemetry.ENGINE_READY.set(1)
        layout = await self._layout()
        gc_tuning.freeze()
        self._consumer = made = self._compose(layout, tasks)
        background.append(tasks.create_task(self.writer.run(), name="writer"))
        background.append(tasks.create_task(self._tail.run(layout.incarnation), name="tail"))
        self.state, self.detail = State.READY, ""
        await made.run()

    def _compose(
        self, layout: log.Layout, tasks: asyncio.TaskGroup
    ) -> request_consumer.RequestConsumer:
        s = self._settings
        engine_slots = slots.Slots(self._engine.capacity)
        self._context = context = serving.WorkerContext(
            name=s.name,
            incarnation=self._incarnation,
            models=frozenset(s.models),
            engine=self._engine,
            writer=self.writer,
            tail=self._tail,
            clock=self._clock,
            engine_slots=engine_slots,
            last_attempt_slot=slots.Slots(1),
            scheduler=flush_scheduler.FlushScheduler(lambda: engine_slots.running),
            metering=self._metering,
            tag=layout.tag,
            stall_detector=attempt.StallDetector(s.stall_s),
        )
        return request_consumer.RequestConsumer(
            s.kafka,
            self._offsets,
            context,
            tasks,
            pool=s.pool,
            session_timeout_ms=s.session_timeout_ms,
            partitions=layout.partitions,
        )

    async def _layout(self) -> log.Layout:
        while True:
            try:
                return await log.layout(self._settings.kafka)
            except log.LogUnavailable as error:
                self.detail = str(error)
                await asyncio.sleep(LAYOUT_RETRY_S)

    # ---- leaving ---------------------------------------------------------------------------------

    def _fail(self, detail: str) -> None:
        self.state, self.detail = State.FAILED, detail
        telemetry.ENGINE_READY.set(0)
        telemetry.log(telemetry.Action.ENGINE_FAILED, detail=detail)

    async def _drain(self) -> None:
        """Stop taking, finish what fits, commit, leave the group, yield the rest. Each step has its
        own deadline."""
        if self.state is not State.FAILED:
            self.state, self.detail = State.DRAINING, "leaving"
        telemetry.log(
            telemetry.Action.DRAIN_STARTED,
            responses=self._consumer.under_way if self._consumer else 0,
        )
        if self._context is None or self._consumer is None:
            return
        self._context.draining = True
        self._consumer.stop_taking()
        seconds = 0.0 if self.state is State.FAILED else self._settings.drain_s
        await self._consumer.finish(max(0.0, seconds - HAND_OVER_S))
        await self._consumer.leave()
        await self._consumer.hand_over(min(seconds, HAND_OVER_S))

    async def _shut_down(self) -> None:
        for stop in (
            self._metering.stop,
            self.writer.stop,
            self._offsets.stop,
            self._engine.shutdown,
            self._forget,
            self._redis.aclose,
        ):
            await _bounded(stop)

    async def _forget(self) -> None:
        with contextlib.suppress(StoreUnavailable):
            await self._workers.forget_worker(self._settings.pool, self._settings.name)

    # ---- what it says of itself ------------------------------------------------------------------

    async def _beat(self) -> None:
        """Heartbeats to Redis; best effort."""
        before, then = 0, time.monotonic()
        while True:
            tokens, now = (
                self._context.stall_detector.tokens if self._context else 0,
                time.monotonic(),
            )
            if now > then:
                self._rate = 0.5 * self._rate + 0.5 * (tokens - before) / (now - then)
            before, then = tokens, now
            with contextlib.suppress(StoreUnavailable):
                await self._workers.heartbeat(
                    self._settings.pool, self._settings.name, self._info()
                )
            await asyncio.sleep(HEARTBEAT_S)

    def _info(self) -> dict[str, Any]:
        engine_slots = self._context.engine_slots if self._context else None
        telemetry.ENGINE_RUNNING.set(engine_slots.running if engine_slots else 0)
        telemetry.ENGINE_WAITING.set(engine_slots.queued if engine_slots else 0)
        telemetry.ENGINE_TOKENS_PER_SECOND.set(self._rate)
        return {
            "state": self.state.value,
            "detail": self.detail,
            "model": self._settings.model_name,
            "capacity": self._engine.capacity,
            "running": engine_slots.running if engine_slots else 0,
            "queued": engine_slots.queued if engine_slots else 0,
            "tokens_per_s": round(self._rate, 1),
            "partitions": self._consumer.partitions if self._consumer else [],
        }

    def readiness(self) -> dict[str, Any]:
        """The JSON of `/ready`."""
        return {
            "ready": self.state is State.READY,
            "state": self.state.value,
            "detail": self.detail,
        }


def _producer_replaced(why: str) -> None:
    telemetry.PRODUCERS_REPLACED.labels(reason=why.partition(":")[0]).inc()
    telemetry.log(telemetry.Action.PRODUCER_REPLACED, reason=why)


async def _bounded(stop: Any) -> None:
    try:
        await asyncio.wait_for(stop(), SHUTDOWN_S)
    except Exception as error:  # one part that cannot be stopped must not keep the others running
        telemetry.log(
            telemetry.Action.TASK_FAILED, part=getattr(stop, "__qualname__", ""), exc_info=error
        )
