"""The worker's composition root: its parts, the order of its start, and its end."""

from __future__ import annotations

import asyncio
import importlib
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Any, Final

from tailrace import admin, engines, log, settings, telemetry
from tailrace.fair_queue import weight_in
from tailrace.log.health import Health
from tailrace.log.identity import LogIdentity
from tailrace.protocol import engine_fields, topics
from tailrace.protocol.broker_clock import BrokerClock
from tailrace.retry import retry_until
from tailrace.store.answers import Answers
from tailrace.store.offers import Late, Offers
from tailrace.store.prefixes import Prefixes
from tailrace.store.queues import Queues
from tailrace.store.workers import Workers
from tailrace.telemetry import gc_tuning
from worker.engines import base
from worker.group.foreign_requests import ForeignRequests
from worker.group.request_consumer import RequestConsumer
from worker.heartbeat.heartbeat import Heartbeat
from worker.heartbeat.status import State, Status
from worker.log.connections import Connections, connect
from worker.log.tail import Tail
from worker.prefixes.held_prefixes import HeldPrefixes
from worker.prefixes.prefix_publisher import PrefixPublisher
from worker.queue.offer_selection import Offer
from worker.queue.queue_publisher import QueuePublisher
from worker.queue.slots import Slots
from worker.serving.activity_writer import ActivityWriter
from worker.serving.cached_answers import CachedAnswers
from worker.serving.fork_sources import ForkSources
from worker.serving.history_writer import HistoryWriter
from worker.serving.metering import Metering
from worker.serving.running_responses import RunningResponses
from worker.serving.stall_detector import StallDetector
from worker.serving.worker_context import WorkerContext
from worker.sharing.handing_over import HandingOver, Handover
from worker.sharing.hedging import Hedging
from worker.sharing.stealing import Stealing
from worker.text.flush_scheduler import FlushScheduler
from worker.trials.field_trials import FieldTrials
from worker.trials.trial_results import TrialResults

SHUTDOWN_S = 10.0


# Members of a pool that an engine reads at its start.
ENGINE_MEMBERS: Final = (
    *("models", "max_model_len", "engine", "source", "engine_args", "adapters"),
    *("max_num_seqs", "cache"),
)


def member_changes(before: settings.Pool, now: settings.Pool | None) -> list[str]:
    """The members of a pool that changed and that a worker reads at its start. `now`: None if the
    pool is gone."""
    if now is None:
        return ["pool"]
    return [name for name in ENGINE_MEMBERS if getattr(before, name) != getattr(now, name)]


def engine_for(s: settings.WorkerSettings) -> base.Engine:
    """The engine that the settings name. Only its own module is imported, so that a worker without
    vLLM needs no torch."""
    engine: base.Engine = importlib.import_module(engines.find(s.engine).module).create(s)
    return engine


class App:
    """One worker process.

    Attributes:
        status: for `/ready` and the heartbeat.
        pools: as they are now.
        writer: the one producer of this process.
        _leaving: set when the worker must end.
        _began: when the worker was created (monotonic).
        _arguments_refused: the engine does not accept the pool's `engine_args`.
        _engine_started: set once its start, with the trials of its fields, has succeeded or failed.
        _context, _responses, _consumer: None until the engine is ready.
    """

    def __init__(
        self,
        s: settings.WorkerSettings,
        engine: base.Engine | None = None,
        connections: Connections | None = None,
    ) -> None:
        self._settings = s
        self._engine = engine or engine_for(s)
        self._connections = connections or connect(s)
        self._incarnation = f"{s.name}/{uuid.uuid4().hex[:12]}"
        self.status = Status()
        self.pools = settings.CurrentPools(s.pools, on_change=self._on_pools)
        if isinstance(self._engine, base.Remote):
            remote = self._engine
            self.status.trouble = lambda: remote.trouble
        self.writer = self._connections.writer
        self._metering = Metering(self.writer, price=self._price)
        self._answers = CachedAnswers(
            Answers(self._connections.redis_cache), s.pool, self._answers_live_s
        )
        self._heartbeat = Heartbeat(
            Workers(self._connections.redis), s, self.status, self._engine, self._incarnation
        )
        self._leaving = asyncio.Event()
        self._arguments_refused = False
        self._engine_started = asyncio.Event()
        self._began = time.monotonic()
        self._context: WorkerContext | None = None
        self._responses: RunningResponses | None = None
        self._consumer: RequestConsumer | None = None

    def _on_pools(self, catalog: settings.Catalog) -> None:
        name = self._settings.pool
        before, now = self._settings.pools.pool(name), catalog.pool(name)
        members = member_changes(before, now) if before is not None else []
        if set(catalog.stands_in_for(name)) != set(self._settings.stands_in_for):
            members.append("fallback of another pool")
        if members:
            telemetry.log(telemetry.Action.RESTART_NEEDED, pool=name, members=members)

    def _price(self, model: str) -> settings.Price | None:
        """The price of a model, as it is now. It may belong to another pool, which answered a
        request of this one."""
        match = self.pools.catalog.find(model)
        return match[0].price if match is not None else None

    def _answers_live_s(self) -> float:
        """For how long the pool's answers may be used again, as it is now; 0: never."""
        pool = self.pools.catalog.pool(self._settings.pool)
        cache = pool.cached_answers if pool is not None else None
        return cache.ttl_s if cache is not None else 0.0

    def leave(self) -> None:
        """Drain and end; the first step of an orderly end."""
        self._leaving.set()

    async def run(self) -> int:
        """Serve until `leave`. Returns the process's exit code.

        Raises:
            settings.Misconfigured: the admin address is taken.
        """
        s = self._settings
        admin_server = (
            admin.AdminServer(s.host, s.admin_port, self.status.readiness) if s.admin_port else None
        )
        telemetry.log(
            telemetry.Action.SERVICE_STARTED,
            pool=s.pool,
            engine=s.engine,
            model=s.model_name,
            incarnation=self._incarnation,
        )
        async with asyncio.TaskGroup() as tasks:
            background = [
                tasks.create_task(self._heartbeat.run(), name="heartbeat"),
                tasks.create_task(self.pools.run(), name="pools"),
            ]
            if admin_server is not None:
                background.append(tasks.create_task(admin_server.run(), name="admin"))
            try:
                await self._until_leaving(tasks, background)
            finally:
                await self._shut_down()
                for task in background:
                    task.cancel()
        telemetry.log(
            telemetry.Action.SERVICE_STOPPED,
            state=self.status.state.value,
            detail=self.status.detail,
        )
        if self._arguments_refused:
            return 2
        return 1 if self.status.failed else 0

    async def _until_leaving(
        self, tasks: asyncio.TaskGroup, background: list[asyncio.Task[Any]]
    ) -> None:
        serving = tasks.create_task(self._serve(tasks, background), name="serve")
        leaving = tasks.create_task(self._leaving.wait(), name="leave")
        dead = tasks.create_task(self._engine_dead(), name="engine-dead")
        background += [leaving, dead]
        await asyncio.wait((serving, leaving, dead), return_when=asyncio.FIRST_COMPLETED)
        if serving.done() and not serving.cancelled() and serving.exception() is not None:
            return
        if dead.done() and not self.status.failed:
            self.status.fail("the engine died")
        await self._drain()
        serving.cancel()

    async def _engine_dead(self) -> None:
        """Wait for the engine's end. One that ends in a trial is started again."""
        await self._engine_started.wait()
        await self._engine.dead.wait()

    async def _serve(self, tasks: asyncio.TaskGroup, background: list[asyncio.Task[Any]]) -> None:
        """Load the engine, then read requests until the drain stops it."""
        not_offered = await self._start_engine()
        self._engine_started.set()
        if not_offered is None:
            return
        layout = await self._layout()
        gc_tuning.freeze()
        context, consumer = self._compose(layout, tasks)
        context.not_offered = self.status.not_offered = not_offered
        background.append(tasks.create_task(context.writer.run(), name="writer"))
        background.append(tasks.create_task(context.tail.run(), name="tail"))
        health = Health(lambda: self._connections.offsets.ends(topics.TOKENS, [0]))
        background.append(tasks.create_task(health.run(), name="health"))
        publisher = QueuePublisher(
            Queues(self._connections.redis),
            self._settings.pool,
            self._settings.models,
            context.engine_slots,
            self._heartbeat.workload,
            consumer.set_aside,
            consumer.overflow,
        )
        background.append(tasks.create_task(publisher.run(), name="queue-publisher"))
        prefixes = PrefixPublisher(
            Prefixes(self._connections.redis_cache),
            context.prefixes,
            pool=self._settings.pool,
            incarnation=self._incarnation,
        )
        background.append(tasks.create_task(prefixes.run(), name="prefix-publisher"))
        context.steady_s = lambda: health.steady_s
        self.status.kafka = lambda: (
            health.answers
            and self._connections.reader.answers
            and consumer.answers
            and self.writer.connected
            and not self.writer.stalled
        )
        self.status.features = self._engine.features
        self.status.parsers = self._engine.parsers
        assert self._responses is not None
        foreign = ForeignRequests(
            *(context, self._responses, consumer, self._connections.offsets),
            partitions=layout.partitions,
        )
        handing = self._handing_over(context, foreign)
        background.append(tasks.create_task(handing.run(), name="handing-over"))
        hedging = self._hedging(consumer, foreign)
        background.append(tasks.create_task(hedging.run(), name="hedging"))
        if self._settings.steal_after_s:
            stealing = self._stealing(context, consumer, foreign)
            background.append(tasks.create_task(stealing.run(), name="stealing"))
        self.status.change(State.READY)
        self.status.cold_start_s = round(time.monotonic() - self._began, 3)
        telemetry.COLD_START_SECONDS.set(self.status.cold_start_s)
        await consumer.run()

    async def _start_engine(self) -> frozenset[str] | None:
        """Load the engine and try its fields. Returns those that it does not accept; None if it did
        not start."""
        loading = time.monotonic()
        self.status.detail = "loading the engine"
        telemetry.log(
            telemetry.Action.ENGINE_LOADING,
            engine=self._settings.engine,
            model=self._settings.model,
        )
        try:
            await self._engine.start()
            not_offered = await self._try_fields()
        except base.EngineDead as error:
            self._arguments_refused = isinstance(error, base.ArgumentRefused)
            self.status.fail(f"the engine did not start: {error}")
            self._engine.dead.set()
            return None
        telemetry.log(
            telemetry.Action.ENGINE_READY,
            seconds=round(time.monotonic() - loading, 1),
            model_rev=self._engine.model_rev,
            parsers=list(self._engine.parsers),
            features=sorted(self._engine.features),
        )
        telemetry.ENGINE_CAPACITY.set(self._engine.capacity)
        telemetry.ENGINE_READY.set(1)
        return not_offered

    async def _try_fields(self) -> frozenset[str]:
        """The fields that the engine does not accept. Raises EngineDead."""
        key = self._engine.trial_key()
        if key is None:
            return frozenset()
        self.status.detail = "trying what the engine takes"
        began = time.monotonic()
        folder = self._settings.trials
        trials = FieldTrials(
            self._engine, TrialResults(folder, key and f"{key} {engine_fields.digest()}")
        )
        await trials.run()
        for name, verdict in trials.not_offered.items():
            telemetry.ENGINE_FIELD_NOT_OFFERED.labels(field=name, reason=verdict.value).set(1)
        telemetry.log(
            telemetry.Action.ENGINE_TRIED,
            seconds=round(time.monotonic() - began, 3),
            not_offered=[f"{name}: {why.value}" for name, why in trials.not_offered.items()],
            untried=trials.undecided,
        )
        return frozenset(trials.not_offered)

    async def _layout(self) -> log.Layout:
        def waiting(reason: str) -> None:
            self.status.detail = reason

        layout = await log.wait_for_layout(self._connections.layout, waiting)
        # A record for a missing topic would fail all others in flight.
        await retry_until(
            lambda: self._connections.offsets.partitions(topics.HISTORY),
            on=log.LogUnavailable,
            pause_s=log.RETRY_S,
            failed=lambda error: waiting(f"{error}: run `tailrace topics apply`"),
        )
        return layout

    def _compose(
        self, layout: log.Layout, tasks: asyncio.TaskGroup
    ) -> tuple[WorkerContext, RequestConsumer]:
        s, connections = self._settings, self._connections
        identity, clock = LogIdentity(layout, connections.layout), BrokerClock()
        engine_slots = Slots(
            self._engine.capacity,
            share=s.principal_share,
            limit=s.principal_limit,
            batch_share=s.batch_share,
            weight=weight_in(s.weights),
        )
        if isinstance(self._engine, base.Remote):
            self._engine.on_limit = engine_slots.restrict
        tail = Tail(connections.reader, connections.replays, connections.offsets, identity, clock)
        context = WorkerContext(
            incarnation=self._incarnation,
            models=frozenset(s.models),
            model=s.model_name,
            stands_in_for=frozenset(s.stands_in_for),
            engine=self._engine,
            writer=self.writer,
            tail=tail,
            identity=identity,
            clock=clock,
            engine_slots=engine_slots,
            trials=Slots(1),
            scheduler=FlushScheduler(),
            metering=self._metering,
            histories=HistoryWriter(self.writer, tail, connections.replays),
            activity=ActivityWriter(self.writer),
            stall_detector=StallDetector(s.stall_s),
            ranges=connections.replays,
            forks=ForkSources(connections.replays, connections.offsets, identity),
            pause_s=s.pause_s,
            answers=self._answers,
            prefixes=HeldPrefixes(self._engine.cached_blocks),
        )
        responses = RunningResponses(context, tasks)
        consumer = RequestConsumer(
            connections.group_consumer,
            connections.offsets,
            connections.replays,
            context,
            responses,
            tasks,
            pool=s.pool,
            partitions=layout.partitions,
        )
        self._context, self._responses, self._consumer = context, responses, consumer
        context.living = lambda: self._heartbeat.living
        context.strangers = lambda: self._heartbeat.strangers
        context.others = lambda: self._heartbeat.models
        self._heartbeat.context = context
        self._heartbeat.partitions = lambda: consumer.partitions
        self._heartbeat.overflow = consumer.overflow
        return context, consumer

    def _stealing(
        self, context: WorkerContext, consumer: RequestConsumer, foreign: ForeignRequests
    ) -> Stealing:
        s, workload = self._settings, self._heartbeat.workload
        assert self._responses is not None
        consumer.starts_per_s = lambda: workload.starts_per_s
        return Stealing(
            Offers(self._connections.redis, Offer),
            context,
            self._responses,
            consumer,
            foreign,
            workload,
            pool=s.pool,
            name=s.name,
            after_s=s.steal_after_s,
            engine_ok=lambda: not self.status.trouble(),
        )

    def _handing_over(self, context: WorkerContext, foreign: ForeignRequests) -> HandingOver:
        assert self._responses is not None
        return HandingOver(
            Offers(self._connections.redis, Handover, "handover"),
            context,
            self._responses,
            foreign,
            pool=self._settings.pool,
            name=self._settings.name,
            engine_ok=lambda: not self.status.trouble(),
        )

    def _hedging(self, consumer: RequestConsumer, foreign: ForeignRequests) -> Hedging:
        assert self._responses is not None
        remote = isinstance(self._engine, base.Remote)
        return Hedging(
            Offers(self._connections.redis, Late, "hedges"),
            self._responses,
            consumer,
            foreign,
            pool=self._settings.pool,
            enabled=lambda: self._hedges() and not remote,
            engine_ok=lambda: not self.status.trouble(),
        )

    def _hedges(self) -> bool:
        """Whether a second worker may start on late requests of the pool, as it is now."""
        pool = self.pools.catalog.pool(self._settings.pool)
        return pool is not None and pool.hedge.share > 0

    # ---- leaving ---------------------------------------------------------------------------------

    async def _drain(self) -> None:
        """Leave the group, so that other workers get the requests; finish running responses within
        the deadline; yield the rest. Each step has its own deadline."""
        if not self.status.failed:
            self.status.change(State.DRAINING, "leaving")
        telemetry.log(
            telemetry.Action.DRAIN_STARTED, responses=len(self._responses) if self._responses else 0
        )
        if self._context is None or self._responses is None or self._consumer is None:
            return
        self._context.draining = True
        drain_s = 0.0 if self.status.failed else self._settings.drain_s
        end = time.monotonic() + drain_s
        self._heartbeat.publish_now()  # gateways place no more requests here
        await self._consumer.leave()
        await self._responses.hand_over(max(0.0, end - time.monotonic()))

    async def _shut_down(self) -> None:
        for stop in (
            self._answers.stop,
            self.writer.stop,
            self._connections.offsets.stop,
            self._engine.shutdown,
            self._heartbeat.forget,
            self._connections.redis.aclose,
            self._connections.redis_cache.aclose,
        ):
            await _stop_in_time(stop)


async def _stop_in_time(stop: Callable[[], Awaitable[None]]) -> None:
    try:
        async with asyncio.timeout(SHUTDOWN_S):
            await stop()
    except Exception as error:  # a part that cannot be stopped must not keep the others running
        telemetry.log(
            telemetry.Action.TASK_FAILED, part=getattr(stop, "__qualname__", ""), exc_info=error
        )
