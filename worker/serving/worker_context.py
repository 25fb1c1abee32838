"""The parts that all responses of one worker share."""

from __future__ import annotations

import asyncio
import functools
import math
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import msgspec

from tailrace import log
from tailrace.log import files, interfaces
from tailrace.log.identity import LogIdentity
from tailrace.protocol import images, records, segments
from tailrace.protocol.broker_clock import BrokerClock
from worker.engines import base
from worker.log import tail
from worker.prefixes import held_prefixes
from worker.queue import slots
from worker.serving import (
    activity_writer,
    cached_answers,
    fork_sources,
    history_writer,
    metering,
    replays,
    stall_detector,
    takeover,
)
from worker.serving.response_state import ResponseState
from worker.text import flush_scheduler

# A gateway reconnects and appends a CANCEL within about a second.
SETTLE_S = 3.0


@dataclass(slots=True)
class WorkerContext:
    """The worker's parts and limits.

    Attributes:
        incarnation: names this process in its claims.
        models: model names that are served here.
        model: the one that this worker loads, as clients know it.
        stands_in_for: models of other pools that it answers for (log rule §22).
        writer: appends every record of this worker.
        tail: the folds of the token partitions.
        identity: checks that the log is still the one this worker started on.
        clock: bound on the broker's time.
        engine_slots: slots of the engine.
        trials: the one slot for a trial (see `takeover`).
        replays: reads again what former owners wrote.
        ranges: reads files from the log.
        forks: reads the beginnings of forks.
        answers: cached answers.
        prefixes: the beginnings of conversations that the engine holds.
        file_lock: held while a request's files are read.
        scheduler: decides when frames are written.
        stall_detector: signs of life of the engine.
        draining: no new claims; set once, when the worker drains.
        living: gives the processes of the pool that run responses, by their heartbeats.
        strangers: gives the live processes of related pools, by their heartbeats; None while these
            are not known.
        others: gives the models (revision, tokenizer) of the pool's other ready processes, by their
            heartbeats.
        steady_s: for how long the broker has answered without a failure.
        pause_s: longest pause of a preempted response; 0: none is preempted.
        not_offered: fields that the engine does not accept, by its trials (`field_trials`).
        monotonic: local time in seconds.
    """

    incarnation: str
    models: frozenset[str]
    engine: base.Engine
    writer: interfaces.RecordWriter
    tail: tail.Tail
    identity: LogIdentity
    clock: BrokerClock
    engine_slots: slots.Slots
    trials: slots.Slots
    scheduler: flush_scheduler.FlushScheduler
    metering: metering.Metering
    histories: history_writer.HistoryWriter
    activity: activity_writer.ActivityWriter
    stall_detector: stall_detector.StallDetector
    ranges: interfaces.RangeReader
    forks: fork_sources.ForkSources
    answers: cached_answers.CachedAnswers = field(default_factory=cached_answers.CachedAnswers)
    replays: replays.Replays = field(default_factory=replays.Replays)
    prefixes: held_prefixes.HeldPrefixes = field(default_factory=held_prefixes.HeldPrefixes)
    file_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    draining: bool = False
    living: Callable[[], Collection[str]] = frozenset
    model: str = ""
    stands_in_for: frozenset[str] = frozenset()
    strangers: Callable[[], Collection[str] | None] = lambda: None
    others: Callable[[], Collection[tuple[str, str]]] = frozenset
    steady_s: Callable[[], float] = lambda: math.inf
    pause_s: float = 10.0
    not_offered: frozenset[str] = frozenset()
    monotonic: Callable[[], float] = time.monotonic

    @property
    def leaving(self) -> bool:
        """No new claims: the worker drains, or its engine is gone."""
        return self.draining or self.engine.dead.is_set()

    async def with_files(self, request: records.Request) -> records.Request:
        """The request with the files that it names.

        Raises:
            Refused: a file is gone.
            Transient: the log does not answer.
        """
        if not images.has_files(request.messages):
            return request
        try:
            # One after another: a file is in memory several times while it is read.
            async with self.file_lock:
                reader = functools.partial(files.read, self.ranges)
                messages = await files.with_files(reader, request.messages)
        except log.HistoryLost as error:
            raise base.Refused("file_lost", "A file of this request is no longer kept.") from error
        except log.LogUnavailable as error:
            raise base.Transient("the log does not answer") from error
        return msgspec.structs.replace(request, messages=messages)

    def broker_now_ms(self) -> float:
        """Lower bound of the broker's time in ms."""
        return self.clock.now_ms(self.monotonic())

    def settling_ms(self) -> float:
        """The rest of the time in which gateways append what they could not append while the broker
        was away."""
        return max(0.0, (SETTLE_S - self.steady_s()) * 1000)

    def claimant(self, response: ResponseState) -> takeover.Self:
        """This process as it claims `response`."""
        engine = self.engine
        return takeover.Self(
            self.incarnation,
            engine.model_rev,
            engine.tokenizer_digest,
            engine.parser_name(response.request),
            response.abandoned,
            self.living(),
            response.deliveries[0].topic,
            self.strangers(),
            self.others(),
            self._continues(response),
        )

    def _continues(self, response: ResponseState) -> bool:
        able = self.engine.ids_are_tokens and "continuation" in self.engine.features
        return response.continues and able and segments.request_allows(response.request)

    def served_model(self, request: records.Request) -> str:
        """The model that its claims name; empty where it is the requested one."""
        other = request.model in self.stands_in_for and request.model not in self.models
        return self.model if other else ""
