"""One attempt's I/O: the engine's steps in, TOK frames and one END out. Decisions are
`worker.generation`'s."""

from __future__ import annotations

import asyncio
import enum
import time

from tailrace import log, telemetry
from tailrace.protocol import records, topics
from worker import clock, flush_scheduler, generation
from worker.engines import base

STALL_CHECK_S = 1.0
STOOD_STILL_S = (
    3 * STALL_CHECK_S
)  # a look that comes so late says that this process did not run, not that the engine was silent
# different responses given up in a row, without a sign of life between: then it is the engine
HUNG = 2
ABORT_S = 5.0  # for the engine to let go of an attempt
# how much longer one response may be silent while the engine speaks for others: a long queue is no
# stall
ALONE_FACTOR = 10


_APPEND_SECONDS = telemetry.STAGE_SECONDS.labels(stage="append")


class StallDetector:
    """Signs of life of the engine as a whole.

    Attributes:
        tokens: ids it made since the start.
        at: monotonic time of its last sign; 0 before.
        _given_up: responses whose attempts were given up since.
    """

    def __init__(self, stall_s: float) -> None:
        self.tokens = 0
        self.at = 0.0
        self._stall_s = stall_s
        self._given_up: set[str] = set()

    def beat(self, tokens: int, now: float) -> None:
        """The engine said something, for whichever response."""
        self.tokens += tokens
        self.at = now
        self._given_up.clear()

    def give_up(self, rid: str, now: float, *, last: bool = False) -> base.EngineError:
        """An attempt at `rid` stalled; what that says about the engine. One response may be at
        fault itself, several are not; nor is one that has seen two workers die, and those that wait
        for its place must not spend their last attempts on an engine that it hung."""
        self._given_up.add(rid)
        silent = now - self.at > self._stall_s
        hangs = len(self._given_up) >= HUNG or (last and silent)
        return (
            base.EngineDead("the engine hangs")
            if hangs
            else base.Transient("the engine said nothing for too long")
        )

    def stalled(self, last: float, now: float) -> bool:
        """Whether a response that last heard from the engine at `last` must be given up."""
        return now - max(last, self.at) > self._stall_s or now - last > self._stall_s * ALONE_FACTOR


class Stop(enum.Enum):
    """Why an attempt ended before its time."""

    OVER = "over"  # the fold says DONE, or another owns it (log rule W6)
    APPEND_FAILED = "append_failed"  # an append failed (W4)
    DRAIN = "drain"  # the worker leaves
    STALLED = "stalled"  # the engine said nothing for too long


class Attempt:
    """Runs one `Generation` in the engine. `interrupt` may be called by anyone, any number of
    times; the first reason counts.

    Attributes:
        stopped: why it was interrupted; None while it was not.
        cached_tokens, usage: what the engine said of it; None or 0 before.
        _reader: the task that reads the engine; None outside `run`.
        _began, _last: when the engine was asked, and when it last said something.
        _sent: frames were sent before; the first goes out at once.
    """

    def __init__(
        self,
        made: generation.Generation,
        partition: int,
        writer: log.Writer,
        scheduler: flush_scheduler.FlushScheduler,
        broker_clock: clock.BrokerClock,
    ) -> None:
        self.generation = made
        self.stopped: Stop | None = None
        self.cached_tokens = 0
        self.usage: records.Usage | None = None
        self._partition = partition
        self._writer = writer
        self._scheduler = scheduler
        self._clock = broker_clock
        self._reader: asyncio.Task[None] | None = None
        self._began = self._last = 0.0
        self._sent = False

    @property
    def useless(self) -> bool:
        """Nothing it could still write would have an effect, or may be written."""
        return self.stopped in (Stop.OVER, Stop.APPEND_FAILED)

    async def run(
        self,
        engine: base.Engine,
        job: base.GenerationInput,
        stall_detector: StallDetector,
        *,
        last: bool = False,
    ) -> None:
        """Read the engine until the generation is over or interrupted; frames are written on the
        way. `last`: no attempt that counts is left.

        Raises:
            EngineError: the engine failed, or said nothing for too long.
        """
        if self.stopped is not None or self.generation.phase is not generation.Phase.RUNNING:
            return
        self._began = self._last = looked = time.monotonic()
        self._reader = asyncio.create_task(self._read(engine, job, stall_detector))
        try:
            while not self._reader.done() and self.stopped is None:
                await asyncio.wait((self._reader,), timeout=STALL_CHECK_S)
                now = time.monotonic()
                if now - looked > STOOD_STILL_S:
                    self._last = now
                looked = now
                if stall_detector.stalled(self._last, now):
                    self.interrupt(Stop.STALLED)
            await asyncio.wait((self._reader,), timeout=ABORT_S)
        finally:
            self._reader.cancel()  # without effect unless we are being cancelled ourselves
        self._settle(self._reader)
        if self.stopped is Stop.STALLED:
            raise stall_detector.give_up(self.generation.rid, time.monotonic(), last=last)

    def _settle(self, reader: asyncio.Task[None]) -> None:
        if not reader.done():
            raise base.EngineDead("the engine does not stop when told to")
        if (
            not reader.cancelled()
            and (error := reader.exception()) is not None
            and self.stopped is None
        ):
            raise error

    def interrupt(self, reason: Stop) -> None:
        """Stop; the engine is told at once."""
        if self.stopped is None:
            self.stopped = reason
            if self._reader is not None:
                self._reader.cancel()

    def write(
        self, record: records.TokenRecord, headers: log.Headers = ()
    ) -> asyncio.Future[log.Appended]:
        """Append a record of this attempt; should that fail, the nonce is dead."""
        started = time.monotonic()
        sent = self._writer.append(
            topics.TOKENS, self._partition, record.rid, records.encode(record), headers
        )
        sent.add_done_callback(lambda done: self._written(done, started))
        return sent

    def flush(self) -> None:
        """Write what is pending; nothing any more once the nonce is dead or the response over."""
        self._scheduler.cancel(self.flush)
        if not self.useless:
            for frame in self.generation.frames(time.time() * 1000):
                self.write(frame)
                telemetry.FRAMES.inc()
                telemetry.FRAME_TOKENS.observe(len(frame.ids))

    def _written(self, sent: asyncio.Future[log.Appended], started: float) -> None:
        if sent.cancelled():
            return
        if sent.exception() is not None:
            self.interrupt(Stop.APPEND_FAILED)
            return
        now = time.monotonic()
        self._clock.acknowledged(sent.result().timestamp, now)
        self._scheduler.acknowledged(now - started)
        _APPEND_SECONDS.observe(now - started)

    async def _read(
        self, engine: base.Engine, job: base.GenerationInput, stall_detector: StallDetector
    ) -> None:
        def on_step(step: base.Step) -> bool:
            if self.stopped is not None:
                return False
            self._last = time.monotonic()
            self._on_step(step)
            stall_detector.beat(len(step.ids), self._last)
            return self.generation.phase is generation.Phase.RUNNING

        await engine.generate(job, on_step)
        if self.generation.phase is generation.Phase.RUNNING and self.stopped is None:
            raise base.Transient("the engine ended without an end")

    def _on_step(self, step: base.Step) -> None:
        if step.cached_tokens is not None:
            self.cached_tokens = step.cached_tokens
        self.usage = step.usage or self.usage
        self.generation.push(step.ids, step.finish)
        if not self.generation.pending:
            return
        if not self._sent:
            self._sent = True
            telemetry.STAGE_SECONDS.labels(stage="prefill").observe(self._last - self._began)
            self.flush()
        else:
            self._scheduler.schedule(self.flush)
