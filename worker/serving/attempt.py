"""Input and output of one attempt: the engine's steps become TOK frames and one END.

`worker.text.generation` decides what to write.
"""

from __future__ import annotations

import asyncio
import enum
import time
from collections.abc import Callable

from tailrace import log, telemetry
from tailrace.log import interfaces
from tailrace.protocol import records, topics
from tailrace.protocol.broker_clock import BrokerClock
from worker.engines import base
from worker.serving.stall_detector import StallDetector
from worker.text import flush_scheduler, generation

STALL_CHECK_S = 1.0
# A check this late shows that this process stood still, not that the engine was silent.
STOOD_STILL_S = 3 * STALL_CHECK_S
# Least tokens of an answer before it may be paused (again), so that it makes progress. More would
# delay interactive requests at an engine with few slots and a slow pace.
PAUSABLE_AFTER = 4
ABORT_S = 5.0  # how long the engine may take to stop an attempt

_PREFILL_SECONDS = telemetry.STAGE_SECONDS.labels(stage="prefill")
_DECODE_SECONDS = telemetry.STAGE_SECONDS.labels(stage="decode")
_APPEND_SECONDS = telemetry.STAGE_SECONDS.labels(stage="append")


class Stop(enum.Enum):
    """Why an attempt was interrupted."""

    OVER = "over"  # the fold says DONE, or another worker owns the response (log rule W6)
    APPEND_FAILED = "append_failed"  # its fencing token writes nothing more (W4)
    DRAIN = "drain"  # the worker leaves
    PAUSED = "paused"  # preempted by another response
    STALLED = "stalled"  # the engine was silent for too long


class Attempt:
    """Runs one `Generation` in the engine and writes its records.

    `interrupt` may be called at any time and any number of times; the first reason counts.

    Attributes:
        generation: turns the engine's output into records.
        stop_reason: why the attempt was interrupted; None while it was not.
        cached_tokens: prompt tokens in the engine's cache; 0 before the engine reports them.
        usage: the engine's own count; None if the engine reports none.
        _reader: the task that reads the engine; None outside `run`.
        _began: when the engine was called.
        _last_step: when the engine last made a step.
        _pending_since: when the engine made the first token that waits for a frame; 0 before any.
        _streaming: a frame was written. The first frame is written at once.
    """

    def __init__(
        self,
        initial: generation.Generation,
        partition: int,
        writer: interfaces.RecordWriter,
        scheduler: flush_scheduler.FlushScheduler,
        broker_clock: BrokerClock,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.generation = initial
        self.stop_reason: Stop | None = None
        self.cached_tokens = 0
        self.usage: records.Usage | None = None
        self._partition = partition
        self._writer = writer
        self._scheduler = scheduler
        self._clock = broker_clock
        self._monotonic = monotonic
        self._reader: asyncio.Task[None] | None = None
        self._began = self._last_step = 0.0
        self._pending_since = 0.0
        self._streaming = False

    @property
    def useless(self) -> bool:
        """Whether no further record may be written or would have an effect."""
        return self.stop_reason in (Stop.OVER, Stop.APPEND_FAILED)

    @property
    def stalled(self) -> bool:
        """The engine was silent for too long."""
        return self.stop_reason is Stop.STALLED

    def interrupted(self) -> bool:
        """Whether it was interrupted. May be called in any thread."""
        return self.stop_reason is not None

    async def run(
        self,
        engine: base.Engine,
        job: base.GenerationInput,
        stall_detector: StallDetector,
        on_progress: Callable[[], None],
        *,
        last: bool = False,
    ) -> None:
        """Read the engine until the generation is over or interrupted; writes frames on the way.
        `on_progress` is called once, after PAUSABLE_AFTER tokens. `last`: no further attempt that
        counts remains.

        Raises:
            EngineError: the engine failed, or was silent for too long.
        """
        if self.stop_reason is not None or self.generation.phase is not generation.Phase.RUNNING:
            return
        self._began = self._last_step = last_check = self._monotonic()
        self._reader = asyncio.create_task(self._read(engine, job, stall_detector, on_progress))
        try:
            while not self._reader.done() and self.stop_reason is None:
                await asyncio.wait((self._reader,), timeout=STALL_CHECK_S)
                now = self._monotonic()
                if now - last_check > STOOD_STILL_S:
                    self._last_step = now
                last_check = now
                if stall_detector.stalled(self._last_step, now):
                    self.interrupt(Stop.STALLED)
            await asyncio.wait((self._reader,), timeout=ABORT_S)
        finally:
            self._reader.cancel()  # has an effect only when this task itself is cancelled
        self._raise_failure(self._reader)
        if self.stalled:
            if stall_detector.give_up(self.generation.rid, self._monotonic(), last=last):
                raise base.EngineDead("the engine hangs")
            raise base.Transient("the engine said nothing for too long")

    def _raise_failure(self, reader: asyncio.Task[None]) -> None:
        if not reader.done():
            raise base.EngineDead("the engine does not stop when cancelled")
        if (
            not reader.cancelled()
            and (error := reader.exception()) is not None
            and self.stop_reason is None
        ):
            raise error

    def interrupt(self, reason: Stop) -> None:
        """Stop the engine at once."""
        if self.stop_reason is None:
            self.stop_reason = reason
            if self._reader is not None:
                self._reader.cancel()

    def begin_with(self, replacement: generation.Generation) -> None:
        """Write frames of `replacement` from now on; its pending frames at once."""
        self.generation = replacement
        if replacement.pending:
            self._pending_since = self._monotonic()
            self.flush()

    def write(
        self, record: records.TokenRecord, headers: log.Headers = ()
    ) -> asyncio.Future[log.Appended]:
        """Append a record of this attempt. A failed append interrupts the attempt."""
        started = self._monotonic()
        append = self._writer.append(
            topics.TOKENS, self._partition, record.rid, records.encode(record), headers
        )
        self._scheduler.on_append()
        append.add_done_callback(lambda done: self._on_append(done, started))
        return append

    def flush(self) -> None:
        """Write what is pending; nothing once the attempt is useless."""
        self._scheduler.cancel(self.flush)
        if not self.useless:
            if self.generation.pending:
                _DECODE_SECONDS.observe(self._monotonic() - self._pending_since)
            for frame in self.generation.frames(time.time() * 1000):
                self.write(frame)
                telemetry.FRAMES.inc()
                telemetry.FRAME_TOKENS.observe(len(frame.ids))

    def _on_append(self, append: asyncio.Future[log.Appended], started: float) -> None:
        now = self._monotonic()
        failed = append.cancelled() or append.exception() is not None
        self._scheduler.on_appended(None if failed else now - started)
        if failed:
            if not append.cancelled():
                self.interrupt(Stop.APPEND_FAILED)
            return
        self._clock.observe_acknowledgement(append.result().timestamp, now)
        _APPEND_SECONDS.observe(now - started)

    async def _read(
        self,
        engine: base.Engine,
        job: base.GenerationInput,
        stall_detector: StallDetector,
        on_progress: Callable[[], None],
    ) -> None:
        # Where ids are characters, their number estimates the number of tokens.
        per_token = 1 if engine.ids_are_tokens else records.CHARACTERS_PER_TOKEN
        remaining = PAUSABLE_AFTER

        def on_step(step: base.Step) -> bool:
            if self.stop_reason is not None:
                return False
            self._last_step = self._monotonic()
            self._on_step(step)
            stall_detector.record_output(len(step.ids) / per_token, self._last_step)
            nonlocal remaining
            if 0 < remaining <= len(step.ids):
                on_progress()
            remaining -= len(step.ids)
            return self.generation.phase is generation.Phase.RUNNING

        await engine.generate(job, on_step)
        if self.generation.phase is generation.Phase.RUNNING and self.stop_reason is None:
            raise base.Transient("the engine ended without an end")

    def _on_step(self, step: base.Step) -> None:
        if step.cached_tokens is not None:
            self.cached_tokens = step.cached_tokens
        self.usage = step.usage or self.usage
        waiting = self.generation.pending
        self.generation.push(step.ids, step.finish, step.logprobs, step.vectors)
        if not self.generation.pending:
            return
        if not waiting:
            self._pending_since = self._last_step
        if not self._streaming:
            self._streaming = True
            _PREFILL_SECONDS.observe(self._last_step - self._began)
            self.flush()
        else:
            self._scheduler.schedule(self.flush)
