"""Serving one response, from its request to DONE in the log (log rule W1–W7).

    read the fold -> wait | claim -> (barrier) -> generate -> END -> read it again …

The loop ends when the fold says DONE. Every way out of a claim leads back to the fold, which alone
says what is true. A `ResponseTask` lives while this worker deals with the response; redeliveries of
the same request join it.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Sequence

from tailrace import log, telemetry
from tailrace.protocol import fold, history, ids, records, topics
from tailrace.retry import retry_until
from worker.engines import base
from worker.log.appends import append_surely
from worker.log.tail_state import Entry
from worker.queue import slots
from worker.queue.delivery import Delivery
from worker.queue.read_ahead import Footprint, Key
from worker.serving import claim_plan, takeover, truncation, warming
from worker.serving.attempt import Stop
from worker.serving.claim_plan import ClaimPlan, Ending
from worker.serving.claim_runner import ClaimRunner
from worker.serving.claim_stop import pausable
from worker.serving.outcome import Outcome, record_done, record_lost
from worker.serving.response_state import ResponseState
from worker.serving.worker_context import WorkerContext

UNAVAILABLE_S = 0.5
# Longest wait when only time decides: the estimate of the broker's clock may improve meanwhile.
RECHECK_S = 2.0
# A gateway that appended a repeated key withdraws it in milliseconds; this covers a slow one.
REPEATED_S = 10.0
# After this wait a request is searched in the cached answers again.
ANSWER_S = 1.0


class ResponseTask:
    """Serves one response.

    Attributes:
        footprint: the memory of its request.
        response: the response; its deliveries are finished when serving ends with DONE or LOST.
        _claim: the running claim; None between claims.
        _entry: the tail's entry of the response; None outside `run`.
        _since: when this worker began to deal with it (monotonic).
    """

    def __init__(
        self, context: WorkerContext, request: records.Request, delivery: Delivery
    ) -> None:
        self.response = ResponseState(request, [delivery])
        self.footprint = Footprint(Key(delivery.topic, request.owner.key), delivery.size)
        self._context = context
        self._claim: ClaimRunner | None = None
        self._entry: Entry | None = None
        self._since = context.monotonic()

    def join(self, delivery: Delivery) -> None:
        """Add a redelivery of the same request, under a new assignment."""
        self.response.deliveries.append(delivery)

    def interrupt(self, reason: Stop) -> None:
        """Stop a running attempt. A waiting response reads the fold again."""
        if self._claim is not None:
            self._claim.interrupt(reason)
        elif self._entry is not None:
            self._entry.wake()

    async def run(self) -> Outcome:
        """Serve until the response is DONE, lost, or another worker's to serve.

        Raises:
            LogChanged: the log under this worker is another one.
            LogUnavailable: it is unknown whether the response belongs to another log.
        """
        response = self.response
        if ids.parse(response.rid).incarnation != self._context.identity.tag:
            # If this worker's own log was replaced, workers of the new log serve the request.
            await self._context.identity.check()
            return record_lost(response, "another log")
        parent = telemetry.trace_context(response.deliveries[0].headers)
        with (
            telemetry.span("serve", parent, response=response.rid),
            self._context.tail.hold(
                response.partition,
                response.rid,
                response.request.owner,
                keep=history.will_have_history(response.request),
            ) as entry,
        ):
            self._entry = entry
            entry.listener = lambda: self._on_change(entry)
            try:
                outcome = await self._serve(entry)
                if response.hedged:
                    _note_hedged(response, entry.fold)
                elif response.stolen:
                    _note_stolen(response, entry.fold)
                return outcome
            finally:
                self._entry = entry.listener = None
                response.release_slots()

    async def _serve(self, entry: Entry) -> Outcome:
        response, context = self.response, self._context
        while True:
            try:
                await retry_until(
                    lambda: context.tail.complete_entry(response.partition, response.rid),
                    on=log.LogUnavailable,
                    pause_s=UNAVAILABLE_S,
                )
            except log.HistoryLost:
                if context.leaving or not response.assigned:
                    return Outcome.LEFT
                await self._end_lost(entry)  # then its entry is complete
                continue
            self._on_change(entry)
            own = response.fencing_tokens
            if response.hedged and not own:
                hedge = await self._hedge(entry)
                if hedge is not None:
                    await self._run_claim(hedge, entry)
                elif response.hedged:
                    return Outcome.LEFT
                continue
            decision = self._decide(entry.fold)
            if response.stolen and not takeover.may_steal(
                entry.fold, decision, own, handed_over=response.handed_over
            ):
                return Outcome.LEFT
            if isinstance(decision, takeover.Finished):
                return await record_done(response, entry, context)
            if context.leaving or not (response.assigned or response.stolen):
                return Outcome.LEFT
            if isinstance(decision, takeover.Wait | takeover.HandOver):
                response.release_slots(tokens=0)
                response.wants_slot = False
                handing = isinstance(decision, takeover.HandOver)
                response.orphan_model = entry.fold.model if handing else None
                await entry.changed(min(decision.ms / 1000, RECHECK_S))
                response.wants_slot, response.orphan_model = True, None
                continue
            plan = await self._plan(decision, entry)
            if plan is not None:
                await self._run_claim(plan, entry)
            elif not response.patient and context.engine_slots not in response.held_slots:
                return Outcome.LEFT

    async def _end_lost(self, entry: Entry) -> None:
        """End a response whose beginning the log has lost, after its owner has stopped writing (log
        rule R5). A takeover is impossible: the accepted tokens are unknown."""
        response, context = self.response, self._context
        response.release_slots(tokens=0)
        response.wants_slot = False
        bound, since_ms = ids.parse(response.rid).offset, context.broker_now_ms()
        while entry.complete > bound and response.assigned and not context.leaving:
            grace_ms = takeover.GRACE_MS if entry.streams else takeover.PREFILL_GRACE_MS
            left_ms = max(entry.last_record_ms, since_ms) + grace_ms - context.broker_now_ms()
            if left_ms <= 0:
                await self._append_lost()
                since_ms, left_ms = context.broker_now_ms(), grace_ms  # for the tail to read it
            await entry.changed(min(left_ms / 1000, RECHECK_S))

    async def _append_lost(self) -> None:
        response = self.response
        telemetry.log(
            telemetry.Action.RECORD_UNREADABLE, response=response.rid, reason="history lost"
        )
        owner, echo = response.request.owner, response.request.echo
        record = records.Cancel(response.rid, owner, echo, failed="history_lost")
        place = (topics.TOKENS, response.partition, response.rid)
        await append_surely(self._context.writer, *place, records.encode(record))

    def _decide(self, state: fold.Fold) -> takeover.Decision:
        now_ms = self._context.broker_now_ms()
        withheld_ms = self._repeated_ms()
        if now_ms > self.response.answer_due_ms:
            # A gateway's answer that was due while the log was away may have been "unknown".
            withheld_ms = max(withheld_ms, self._context.settling_ms())
        return takeover.decide(
            state,
            self._context.claimant(self.response),
            now_ms=now_ms,
            expires_ms=self.response.expires_ms,
            withheld_ms=withheld_ms,
        )

    def _repeated_ms(self) -> float:
        """How long its gateway may still need to withdraw it, because an earlier request with its
        idempotency key is valid."""
        response, context = self.response, self._context
        if not response.repeats or context.tail.withdrawn(response.partition, response.repeats):
            return 0.0
        return max(0.0, (REPEATED_S - (context.monotonic() - self._since)) * 1000)

    async def _hedge(self, entry: Entry) -> ClaimPlan | None:
        """Try to be faster than the owner (log rule §26). Returns the claim by which the response
        continues here, once this worker's engine has a first token and the log still has none.
        None where the owner keeps it."""
        response, context = self.response, self._context
        if not warming.may(context, response, entry.fold):
            return None
        holder, pool = response.held_slots, context.engine_slots
        await self._acquire_slot(holder, pool, response.rank, entry, None)
        if pool not in holder:
            return None
        try:
            await self._encode(entry.fold)
            if not await warming.first_token(context, response, entry):
                return None
        except Exception as error:  # the owner may do better
            verdict = base.classify(error)
            telemetry.log(
                telemetry.Action.TASK_FAILED,
                response=response.rid,
                verdict=verdict.value,
                exc_info=error,
            )
            if verdict is base.Verdict.DIE:
                context.engine.dead.set()
            return None
        assert response.prompt_ids is not None
        return ClaimPlan(entry.fold.owner, response.prompt_ids, hedged=True)

    def _on_change(self, entry: Entry) -> None:
        """Ownership or phase changed: update the trackers and the running claim."""
        if entry.first >= 0:
            self.response.note_first_record(entry.first)
        if self._claim is not None:
            self._claim.check_ownership()

    async def _plan(
        self, decision: takeover.Claim | takeover.Close, entry: Entry
    ) -> ClaimPlan | None:
        """The plan of the next claim; None when the fold must be read again first."""
        ending = claim_plan.immediate_end(decision)
        if ending is not None:
            return ClaimPlan(decision.prev, ending=ending)
        assert isinstance(decision, takeover.Claim)
        response, context = self.response, self._context
        # It needs no slot, and is written also where all slots are in use.
        if decision.prev is None and (answer := await self._former_answer(entry.fold)) is not None:
            return ClaimPlan(None, response.prompt_ids or (), former_answer=answer)
        paused = context.monotonic() < response.paused_until
        rank = response.rank if decision.prev is None or paused else slots.STARTED
        needs = [(response.held_slots, context.engine_slots)] if response.request.generate else []
        if needs and (decision.last or decision.full_trial):
            needs.insert(0, (response.held_trial, context.trials))
        else:
            response.held_trial.release()
        for holder, pool in needs:
            if pool not in holder:
                await self._acquire_slot(holder, pool, rank, entry, decision.prev)
                return None  # everything may have changed during the wait
        # Only now, so that one principal's long prompts do not delay another one.
        try:
            await self._encode(entry.fold, continues=decision.continues)
        except base.Refused as error:
            ending = Ending("failed", (error.code, error.message), error.param)
            return ClaimPlan(decision.prev, response.prompt_ids or (), ending=ending)
        except base.EngineError:
            response.release_slots(tokens=0)
            pause_s = response.retry_pause_s()
            if pause_s is None:
                ending = claim_plan.ENGINE_FAILED
                return ClaimPlan(decision.prev, response.prompt_ids or (), ending=ending)
            await asyncio.sleep(pause_s)
            return None
        if decision.continues or (decision.prev is not None and entry.fold.former):
            return ClaimPlan(
                decision.prev,
                last=decision.last,
                full_trial=decision.full_trial,
                continues=decision.continues,
            )
        assert response.prompt_ids is not None
        if not response.request.generate:
            return ClaimPlan(decision.prev, response.prompt_ids, ending=claim_plan.WARM_UP)
        return ClaimPlan(
            decision.prev,
            response.prompt_ids,
            response.inputs,
            last=decision.last,
            full_trial=decision.full_trial,
            copied=self._copied(entry.fold),
        )

    async def _former_answer(self, state: fold.Fold) -> claim_plan.FormerAnswer | None:
        response, context = self.response, self._context
        now = context.monotonic()
        if now - response.last_lookup < ANSWER_S:
            return None
        response.last_lookup = now
        if response.request.model not in context.models:
            return None
        answer = await context.answers.find(response.request, context.engine)
        if answer is None:
            return None
        if context.engine.parser_name(response.request):
            try:
                await self._encode(state)  # a parser reads the prompt too
            except base.EngineError:
                return None  # generating reports the error
        prompt = response.prompt_ids
        if response.dropped or (prompt is not None and len(prompt) != answer.prompt_tokens):
            return None
        return claim_plan.FormerAnswer(answer.rid, answer.ids, answer.prompt_tokens)

    async def _encode(self, state: fold.Fold, *, continues: bool = False) -> None:
        """Encode the prompt once, and read the beginning of a fork if it must be written. A
        continuation of another model's text has another prompt, which is encoded after the barrier.

        Raises:
            EngineError: the prompt cannot be served, or the engine failed.
        """
        response, context = self.response, self._context
        if response.request.model not in context.models | context.stands_in_for:
            raise base.Refused(
                "model_not_found", f"The model `{response.request.model}` is not served here."
            )
        base.check_features(response.request, context.engine.features, context.not_offered)
        if continues or state.former:
            return
        prior_drop = state.first.dropped if state.first is not None else None
        if response.prompt_ids is None or prior_drop not in (None, response.dropped):
            with telemetry.STAGE_SECONDS.labels(stage="tokenise").time():
                if response.request.embed is None:
                    request = await context.with_files(response.request)
                    prompt = await truncation.encode(context.engine, request, prior_drop)
                    response.prompt_ids, response.dropped = prompt
                else:
                    response.inputs = await context.engine.encode_inputs(response.request)
                    response.prompt_ids = list(itertools.chain(*response.inputs))
        if response.request.fork is not None and _lacks_beginning(state):
            if response.copied is None:
                response.copied = await context.forks.beginning(response.request, context.engine)
            length = len(response.prompt_ids) + len(response.copied)
            base.check_length(length, context.engine.max_model_len)

    def _copied(self, state: fold.Fold) -> Sequence[int] | None:
        return self.response.copied if _lacks_beginning(state) else None

    async def _acquire_slot(
        self,
        holder: slots.HeldSlots,
        pool: slots.Slots,
        rank: int,
        entry: Entry,
        prev: str | None,
    ) -> None:
        """Wait for a slot to replace `prev`, or until the response is over, another worker has
        claimed it, or this worker leaves. A stolen response does not wait unless it has begun: its
        reader waits in the middle of the text. A paused one waits with its class until its pause is
        over."""

        async def wait(turn: slots.Turn) -> None:
            while (
                not turn.done()
                and (until is None or self._context.monotonic() < until)
                and response.patient
                and entry.fold.owner == prev
                and entry.fold.phase is not fold.Phase.DONE
                and not self._context.leaving
                and not self._expired(entry.fold)
            ):
                left_s = math.inf if until is None else until - self._context.monotonic()
                change = asyncio.ensure_future(entry.changed(max(0.0, min(1.0, left_s))))
                await asyncio.wait((turn, change), return_when=asyncio.FIRST_COMPLETED)
                change.cancel()

        response = self.response
        paused = prev is not None and rank != slots.STARTED
        until = response.paused_until if paused else None
        turn = pool.acquire(
            *(rank, response.flow, response.cost, response.rid),
            first=paused,
            batch=response.rank == slots.BATCH,
            pausable=pausable(self._context, response, entry.fold),
            again=response.paused_until > 0,
        )
        if prev is None and not turn.done():
            response.turn = turn
        try:
            with telemetry.span("queue"), telemetry.STAGE_SECONDS.labels(stage="queue").time():
                await holder.acquire(pool, turn, wait)
        finally:
            response.turn = None

    def _expired(self, state: fold.Fold) -> bool:
        """Whether it is too late to start it. Then it is ended, which needs no slot."""
        return state.owner is None and self._context.broker_now_ms() > self.response.expires_ms

    async def _run_claim(self, plan: ClaimPlan, entry: Entry) -> None:
        self._claim = claim = ClaimRunner(self._context, self.response, plan, entry)
        try:
            await claim.run()
        finally:
            self._claim = None
            self.response.release_slots(claim.engine_tokens, paused=claim.paused)


def _lacks_beginning(state: fold.Fold) -> bool:
    """Whether the log lacks a part of a fork's beginning. A whole beginning counts, whatever
    happened to the source."""
    return state.next == 0 or state.next < state.copied


def _note_hedged(response: ResponseState, state: fold.Fold) -> None:
    """Count the outcome of a response whose first token was late elsewhere."""
    if any(own in response.fencing_tokens for own, _ in state.claims):
        outcome = "won"
    else:
        owner_ahead = state.next or len(state.claims) > 1 or state.phase is fold.Phase.DONE
        outcome = "lost" if owner_ahead else "left"
    telemetry.HEDGED.labels(outcome=outcome).inc()
    telemetry.log(telemetry.Action.RESPONSE_HEDGED, response=response.rid, outcome=outcome)


def _note_stolen(response: ResponseState, state: fold.Fold) -> None:
    """Count the outcome of a request that this worker stole."""
    if any(own in response.fencing_tokens for own, _ in state.claims):
        outcome = "claimed"
    else:
        outcome = "lost_race" if response.fencing_tokens else "left"
    telemetry.STOLEN.labels(outcome=outcome).inc()
