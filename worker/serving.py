"""Serving one response, from its request to DONE in the log (log rule W1–W7).

    look at the fold -> wait | claim -> (barrier) -> generate -> END -> look again …  until the fold says DONE

A `Serving` lives as long as this worker has to do with the response; redeliveries of the same
request join it. Every way out of an attempt leads back to the fold, which alone says what is true.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import secrets
import time
from dataclasses import dataclass, field

from tailrace import log, telemetry
from tailrace.protocol import fold, ids, records, topics
from worker import (
    clock,
    commit_tracker,
    flush_scheduler,
    generation,
    metering,
    slots,
    tail,
    takeover,
)
from worker.attempt import Attempt, StallDetector, Stop
from worker.engines import base

MAX_RETRIES = 3  # attempts that failed in the engine, by this process
RETRY_S = 0.5  # before the second attempt; doubled each time
DONE_S = 30.0  # how long an acknowledged END may take to show up in the tail
UNAVAILABLE_S = 0.5
# at the latest, when only the time decides: what is known of the broker's clock may get better
# while we wait
LOOK_AGAIN_S = 2.0
_NO_LIMIT = 2**31

EXPIRED = ("expired", "The request waited longer than its time to live and was not started.")
ENGINE_FAILED = ("server_error", "The model engine failed while it generated this response.")
ATTEMPTS = ("server_error", "Every attempt to generate this response failed.")
MODEL_CHANGED = ("server_error", "The model was replaced while it generated this response.")
LETTERS = {
    ATTEMPTS: "attempts_exhausted",
    ENGINE_FAILED: "engine_failed",
    MODEL_CHANGED: "model_changed",
}  # END's error -> the dead letter's reason


@dataclass(frozen=True, slots=True)
class Delivery:
    """Where a request was read, and the tracker of the assignment it was read under."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    tracker: commit_tracker.Tracker
    headers: log.Headers


@dataclass(slots=True)
class WorkerContext:
    """What all servings of a worker share.

    Attributes:
        engine_slots: slots of the engine.
        last_attempt_slot: the one slot for a last attempt (see `takeover`).
        draining: no new claims; set once, at SIGTERM.
    """

    name: str
    incarnation: str
    models: frozenset[str]
    engine: base.Engine
    writer: log.Writer
    tail: tail.Tail
    clock: clock.BrokerClock
    engine_slots: slots.Slots
    last_attempt_slot: slots.Slots
    scheduler: flush_scheduler.FlushScheduler
    metering: metering.Metering
    tag: bytes
    stall_detector: StallDetector
    draining: bool = False

    @property
    def leaving(self) -> bool:
        """No new claims: this worker goes, or its engine is gone."""
        return self.draining or self.engine.dead.is_set()


class Outcome(enum.Enum):
    """How serving a response ended here."""

    DONE = "done"  # the log says DONE
    # its beginning is no longer in the log, or it is of another log: treated as finished
    LOST = "lost"
    LEFT = "left"  # to whoever owns the partition now


@dataclass(slots=True)
class Plan:
    """A claim about to be made: `prompt` to generate from, or how to `end` at once. `last`: the
    last attempt that counts."""

    prev: str | None
    prompt: list[int] = field(default_factory=list)
    end: str = ""  # END's reason; empty: generate
    error: tuple[str, str] | None = None
    last: bool = False


class Serving:
    """One response as served by this worker.

    Attributes:
        deliveries: where its request was read, oldest first; all are finished together.
        wanting: it has a slot of the engine, or will want one; not while another worker owns it,
            nor after its END.
        fencing_tokens, _abandoned: tokens this process claimed it with; those never to be used again.
        _attempt: the running attempt; None between attempts.
        _prompt: ids of the prompt; None before it was encoded.
        _retries: attempts that failed in the engine.
        _held_slots: pools it holds a slot of: the engine's, and the one for a last attempt.
        _entry: what the tail knows of it; None outside `run`.
        _cached: prompt tokens that the last attempt found in the engine's cache.
    """

    def __init__(
        self, context: WorkerContext, request: records.Request, delivery: Delivery
    ) -> None:
        self.request = request
        self.partition = delivery.partition
        self.deliveries = [delivery]
        self.wanting = True
        self.fencing_tokens: set[str] = set()
        self._worker = context
        self._abandoned: set[str] = set()
        self._attempt: Attempt | None = None
        self._prompt: list[int] | None = None
        self._retries = 0
        self._held_slots: set[slots.Slots] = set()
        self._entry: tail.Entry | None = None
        self._cached = 0

    @property
    def rid(self) -> str:
        """The response."""
        return self.request.rid

    def join(self, delivery: Delivery) -> None:
        """The same request was delivered again, under a new assignment."""
        self.deliveries.append(delivery)

    def interrupt(self, reason: Stop) -> None:
        """Stop a running attempt; one who waits looks again."""
        if self._attempt is not None:
            self._attempt.interrupt(reason)
        elif self._entry is not None:
            self._entry.wake()

    async def run(self) -> Outcome:
        """Serve until DONE, lost, or no longer ours to serve. On DONE and LOST the request's
        offsets are finished.

        Raises:
            LogChanged, LogUnavailable: whether it is of another log cannot be said here.
        """
        if ids.parse(self.rid).incarnation != self._worker.tag:
            # it may be this worker whose log is gone: then the request is for those who know the
            # new one
            await self._worker.tail.same_log()
            return self._lost("another log")
        context = telemetry.trace_context(self.deliveries[0].headers)
        with (
            telemetry.span("serve", context, response=self.rid),
            self._worker.tail.hold(self.partition, self.rid) as entry,
        ):
            self._entry = entry
            entry.listener = lambda: self._changed(entry)
            try:
                return await self._serve(entry)
            finally:
                self._entry = entry.listener = None
                self._release_slots()

    async def _serve(self, entry: tail.Entry) -> Outcome:
        while True:
            try:
                await self._worker.tail.known(self.partition, self.rid)
            except log.HistoryLost:
                return self._lost("history lost")
            except log.LogUnavailable:
                await asyncio.sleep(UNAVAILABLE_S)
                continue
            self._changed(entry)
            decision = self._decide(entry.fold)
            if isinstance(decision, takeover.Finished):
                return await self._done(entry)
            if self._worker.leaving or not any(d.tracker.valid for d in self.deliveries):
                return Outcome.LEFT
            if isinstance(decision, takeover.Wait):
                self.wanting = False
                await entry.changed(min(decision.ms / 1000, LOOK_AGAIN_S))
                self.wanting = True
                continue
            plan = await self._plan(decision, entry)
            if plan is not None:
                await self._carry_out(plan, entry)

    def _decide(self, state: fold.Fold) -> takeover.Decision:
        engine = self._worker.engine
        me = takeover.Self(
            self._worker.incarnation, engine.model_rev, engine.tokenizer_digest, self._abandoned
        )
        now_ms = self._worker.clock.now_ms(time.monotonic())
        return takeover.decide(state, me, now_ms=now_ms, expires_ms=self._expires_ms)

    @property
    def _expires_ms(self) -> float:
        return self.deliveries[0].timestamp + self.request.ttl_ms

    def _changed(self, entry: tail.Entry) -> None:
        """Ownership or phase changed: keep the trackers' knowledge, and stop an attempt that is
        over (W6)."""
        if entry.first >= 0:
            for delivery in self.deliveries:
                delivery.tracker.claimed(delivery.offset, entry.first)
        attempt = self._attempt
        if attempt is None:
            return
        over = (
            entry.fold.phase is fold.Phase.DONE
            or entry.seen.get(attempt.generation.fencing_token) is False
        )
        superseded = (
            entry.seen.get(attempt.generation.fencing_token) is True
            and entry.fold.owner != attempt.generation.fencing_token
        )
        if superseded:
            telemetry.log(telemetry.Action.RESPONSE_LOST, response=self.rid, seq=entry.fold.next)
        if over or superseded:
            attempt.interrupt(Stop.OVER)

    # ---- planning --------------------------------------------------------------------------------

    async def _plan(
        self, decision: takeover.Claim | takeover.Close, entry: tail.Entry
    ) -> Plan | None:
        """What the claim is for; None when the fold must be looked at again first."""
        if isinstance(decision, takeover.Close):
            error = MODEL_CHANGED if decision.reason == "model_changed" else ATTEMPTS
            return Plan(decision.prev, end="failed", error=error)
        if decision.expired:
            return Plan(decision.prev, end="expired", error=EXPIRED)
        try:
            if self.request.model not in self._worker.models:
                raise base.Refused(
                    "model_not_found", f"The model `{self.request.model}` is not served here."
                )
            if self._prompt is None:
                with telemetry.STAGE_SECONDS.labels(stage="tokenise").time():
                    self._prompt = await self._worker.engine.encode(self.request)
        except base.EngineError as e:
            return await self._failed_plan(e, decision.prev)
        if not self.request.generate:
            return Plan(decision.prev, self._prompt, end="warmup")
        for pool in (
            (self._worker.last_attempt_slot, self._worker.engine_slots)
            if decision.last
            else (self._worker.engine_slots,)
        ):
            if pool not in self._held_slots:
                await self._acquire_slot(pool, entry)
                return None  # waiting takes time in which everything may change
        return Plan(decision.prev, self._prompt, last=decision.last)

    async def _failed_plan(self, error: base.EngineError, prev: str | None) -> Plan | None:
        if isinstance(error, base.Refused):
            return Plan(prev, end="failed", error=(error.code, error.message))
        if await self._may_retry(error):
            return None
        return Plan(prev, end="failed", error=ENGINE_FAILED)

    async def _acquire_slot(self, pool: slots.Slots, entry: tail.Entry) -> None:
        """Wait for a slot, or until the response is over."""
        turn = pool.acquire(topics.CLASSES.index(self.deliveries[0].topic.rsplit(".", 1)[-1]))
        try:
            with telemetry.span("queue"), telemetry.STAGE_SECONDS.labels(stage="queue").time():
                await self._turn(turn, entry)
        except asyncio.CancelledError:
            pool.withdraw(turn)
            raise
        if turn.done():
            self._held_slots.add(pool)
        else:
            pool.withdraw(turn)

    async def _turn(self, turn: asyncio.Future[None], entry: tail.Entry) -> None:
        while (
            not turn.done() and entry.fold.phase is not fold.Phase.DONE and not self._worker.leaving
        ):
            changed = asyncio.ensure_future(entry.changed(1.0))
            await asyncio.wait((turn, changed), return_when=asyncio.FIRST_COMPLETED)
            changed.cancel()

    def _release_slots(self) -> None:
        while self._held_slots:
            self._held_slots.pop().release()

    # ---- one claim -------------------------------------------------------------------------------

    async def _carry_out(self, plan: Plan, entry: tail.Entry) -> None:
        """One claim, from CLAIM to the fold's verdict on its END. Whatever goes wrong, the caller
        looks at the fold again."""
        fencing_token = secrets.token_hex(16)
        self.fencing_tokens.add(fencing_token)
        claim = self._claim(fencing_token, plan)
        attempt = self._attempt = Attempt(
            self._generation(fencing_token, fold.Fold()),
            self.partition,
            self._worker.writer,
            self._worker.scheduler,
            self._worker.clock,
        )
        self._note_claim(plan, entry)
        try:
            sent = attempt.write(claim, telemetry.trace_headers())
            if plan.prev is not None:
                if not await self._barrier(attempt, fencing_token, sent):
                    return
                attempt.generation = self._generation(
                    fencing_token, entry.fold
                )  # from what was accepted up to our claim
            elif not self._worker.clock.settled:
                # the first acknowledgement tells the broker's time: only now can be said whether
                # this request is still wanted
                await sent
                if self._worker.clock.now_ms(time.monotonic()) > self._expires_ms:
                    plan.end, plan.error = "expired", EXPIRED
            if await self._generate(attempt, plan, entry):
                await self._end(attempt, plan, entry)
        except log.AppendFailed:
            self._abandoned.add(fencing_token)
        finally:
            self._attempt = None
            self._release_slots()

    def _note_claim(self, plan: Plan, entry: tail.Entry) -> None:
        state = entry.fold
        is_own = bool(state.claims) and state.claims[-1][1] == self._worker.incarnation
        kind = (
            "closing"
            if plan.end
            else "first"
            if plan.prev is None
            else "self"
            if is_own
            else "takeover"
        )
        telemetry.CLAIMS.labels(kind=kind).inc()
        if kind == "takeover":
            telemetry.TAKEOVERS.labels(tokens="some" if state.next else "none").inc()
        action = (
            telemetry.Action.RESPONSE_CLAIMED
            if kind == "first"
            else telemetry.Action.RESPONSE_TAKEN_OVER
        )
        telemetry.log(
            action,
            response=self.rid,
            partition=self.partition,
            kind=kind,
            seq=state.next,
            epoch=state.epoch + 1,
        )

    def _claim(self, fencing_token: str, plan: Plan) -> records.Claim:
        engine, delivery = self._worker.engine, self.deliveries[-1]
        return records.Claim(
            self.rid,
            fencing_token,
            plan.prev,
            self.request.owner,
            self._worker.incarnation,
            delivery.topic,
            delivery.offset,
            engine.model_rev,
            engine.tokenizer_digest,
            prompt_tokens=len(plan.prompt),
            echo=self.request.echo if plan.prev is None else {},
        )

    def _generation(self, fencing_token: str, state: fold.Fold) -> generation.Generation:
        engine, sampling = self._worker.engine, self.request.sampling
        return generation.Generation(
            rid=self.rid,
            fencing_token=fencing_token,
            detokenizer=engine.detokenizer(self.request),
            max_tokens=sampling.max_tokens if engine.ids_are_tokens else _NO_LIMIT,
            stop=sampling.stop,
            stop_ids=engine.stop_ids,
            accepted=list(state.ids),
            text_length=state.text_length,
            h=state.h,
        )

    async def _barrier(
        self, attempt: Attempt, fencing_token: str, sent: asyncio.Future[log.Appended]
    ) -> bool:
        """Read up to our own CLAIM (W3); False: stand down."""
        appended = await sent
        accepted = await self._worker.tail.barrier(
            self.partition, self.rid, fencing_token, appended.offset
        )
        if accepted is None:
            self._abandoned.add(fencing_token)
        return accepted is True and attempt.stopped is None

    async def _generate(self, attempt: Attempt, plan: Plan, entry: tail.Entry) -> bool:
        """Whether there is an END to write."""
        made, engine = attempt.generation, self._worker.engine
        if plan.end:
            made.close(plan.end)
            return True
        left = made.remaining if engine.ids_are_tokens else self.request.sampling.max_tokens
        job = base.GenerationInput(
            self.request,
            made.fencing_token,
            plan.prompt,
            list(entry.fold.ids) if plan.prev else (),
            left,
        )
        try:
            with telemetry.span("generate", so_far=len(job.output_so_far)):
                await attempt.run(engine, job, self._worker.stall_detector, last=plan.last)
        except Exception as error:
            return await self._engine_failed(attempt, plan, error)
        finally:
            self._cached = attempt.cached_tokens
        if attempt.stopped is None or (
            attempt.stopped is Stop.DRAIN and made.phase is generation.Phase.FINISHED
        ):
            return True
        await self._interrupted(attempt)
        return False

    async def _engine_failed(self, attempt: Attempt, plan: Plan, error: Exception) -> bool:
        verdict = base.classify(error)
        telemetry.log(
            telemetry.Action.TASK_FAILED, response=self.rid, verdict=verdict.value, exc_info=error
        )
        attempt.flush()  # what was generated is good
        if verdict is base.Verdict.FAIL:
            assert isinstance(error, base.Refused)
            plan.error = (error.code, error.message)
            attempt.generation.close("failed")
            return True
        if verdict is base.Verdict.DIE or self._worker.engine.dead.is_set():
            self._worker.engine.dead.set()
            await self._yield(attempt)
            return False
        self._abandoned.add(attempt.generation.fencing_token)
        self._release_slots()
        if await self._may_retry(error):
            return False
        self._abandoned.discard(attempt.generation.fencing_token)
        plan.error = ENGINE_FAILED
        attempt.generation.close("failed")
        return True

    async def _may_retry(self, error: Exception) -> bool:
        """Pause before another attempt; False when enough were made."""
        self._retries += 1
        if self._retries > MAX_RETRIES:
            return False
        await asyncio.sleep(RETRY_S * 2 ** (self._retries - 1))
        return True

    async def _interrupted(self, attempt: Attempt) -> None:
        fencing_token = attempt.generation.fencing_token
        if attempt.stopped is Stop.DRAIN:
            attempt.flush()
            await self._yield(attempt)
        else:
            attempt.generation.stand_down()
            if attempt.stopped is Stop.APPEND_FAILED:
                self._abandoned.add(fencing_token)

    async def _yield(self, attempt: Attempt) -> None:
        """Ask to be taken over now; the fencing token writes nothing after it. Not when the engine died:
        that counts as an attempt, as the worker's own death does, for else a request that kills
        engines would go through all of them."""
        fencing_token = attempt.generation.fencing_token
        seq = attempt.generation.stand_down()
        if self._worker.engine.dead.is_set():
            return
        with contextlib.suppress(log.AppendFailed):
            await attempt.write(records.Yield(self.rid, fencing_token, seq))

    # ---- the end ---------------------------------------------------------------------------------

    async def _end(self, attempt: Attempt, plan: Plan, entry: tail.Entry) -> None:
        """Write END and wait for the fold's verdict (W5)."""
        self._release_slots()
        self.wanting = False
        attempt.flush()
        made = attempt.generation
        if attempt.useless:
            self._abandoned.add(made.fencing_token)
            return
        usage = attempt.usage or self._usage(made.total, attempt.cached_tokens)
        appended = await attempt.write(made.end(usage, plan.error), telemetry.trace_headers())
        give_up = time.monotonic() + DONE_S
        while (
            entry.fold.phase is not fold.Phase.DONE
            and not attempt.useless
            and time.monotonic() < give_up
        ):
            if self._worker.tail.position(self.partition) > appended.offset >= 0:
                break  # it was read and had no effect
            await entry.changed(1.0)
        if entry.fold.phase is not fold.Phase.DONE:
            self._abandoned.add(made.fencing_token)

    def _usage(self, output: int, cached: int) -> records.Usage:
        """Counted by ids; where ids are characters only the engine could have counted."""
        prompt = len(self._prompt or ())
        return (
            records.Usage(prompt, output, min(cached, prompt))
            if self._worker.engine.ids_are_tokens
            else records.Usage()
        )

    def _dead_letter(self, reason: str, entry: tail.Entry) -> records.Dead:
        r, delivery = self.request, self.deliveries[-1]
        attempts = takeover.attempts(entry.fold.claims, entry.fold.yielded)
        return records.Dead(
            r.rid,
            r.owner,
            r.model,
            reason,
            attempts,
            delivery.topic,
            delivery.offset,
            records.prompt_digest(r.messages),
        )

    async def _done(self, entry: tail.Entry) -> Outcome:
        """The log says DONE. What is written about it is written before the offset is finished, so
        that a crash between repeats it rather than loses it: by everyone who finishes its request,
        for whoever ended it may have died right after, or have been this process before it lost the
        partition and got it back. It is a function of the log, so copies are equal; readers count a
        response id once."""
        state = entry.fold
        assert state.ended is not None
        by_us = state.owner in self.fencing_tokens
        if by_us:
            self._note_end(state)
        if state.first is not None:
            reason = LETTERS.get(state.ended.error) if state.ended.error is not None else None
            if reason is not None:
                await self._worker.metering.dead(self._dead_letter(reason, entry))
            await self._worker.metering.finished(self.request, state)
        if by_us and state.next:
            self._worker.metering.prefix(self.request, self.partition, self._cached)
        return self._finish(Outcome.DONE)

    def _lost(self, reason: str) -> Outcome:
        telemetry.log(telemetry.Action.RECORD_UNREADABLE, response=self.rid, reason=reason)
        return self._finish(Outcome.LOST)

    def _note_end(self, state: fold.Fold) -> None:
        assert state.ended is not None
        usage = state.ended.usage
        telemetry.RESPONSES_ENDED.labels(status=state.ended.status).inc()
        telemetry.TOKENS.labels(kind="prompt").inc(usage.input_tokens)
        telemetry.TOKENS.labels(kind="cached").inc(usage.cached_tokens)
        telemetry.TOKENS.labels(kind="output").inc(usage.output_tokens)
        telemetry.log(
            telemetry.Action.RESPONSE_ENDED,
            response=self.rid,
            status=state.ended.status,
            reason=state.ended.reason,
            epoch=state.epoch,
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            cached_tokens=usage.cached_tokens,
        )

    def _finish(self, outcome: Outcome) -> Outcome:
        for delivery in self.deliveries:
            delivery.tracker.finish(delivery.offset)
        return outcome
