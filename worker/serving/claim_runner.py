"""One claim in the log: CLAIM, barrier, END, and the fold's verdict on it (log rule W2–W7)."""

from __future__ import annotations

import asyncio
import time

from tailrace import log, telemetry
from tailrace.protocol import fold, records
from worker.log.tail_state import Entry
from worker.serving import claim_plan
from worker.serving.attempt import Stop
from worker.serving.claim_plan import ClaimPlan
from worker.serving.claim_state import ClaimState
from worker.serving.engine_run import EngineRun
from worker.serving.response_state import ResponseState
from worker.serving.worker_context import WorkerContext

DONE_S = 30.0  # how long an acknowledged END may take to appear in the tail


class ClaimRunner:
    """Carries one claim out. Whatever goes wrong, the caller reads the fold again."""

    def __init__(
        self, context: WorkerContext, response: ResponseState, plan: ClaimPlan, entry: Entry
    ) -> None:
        self._claim = ClaimState(context, response, plan, entry)
        self._engine_run = EngineRun(self._claim)

    @property
    def engine_tokens(self) -> float:
        """See `ClaimState.engine_tokens`."""
        return self._claim.engine_tokens

    @property
    def paused(self) -> bool:
        """Whether it was preempted by another response."""
        return self._claim.attempt.stop_reason is Stop.PAUSED

    def interrupt(self, reason: Stop) -> None:
        """Stop at the next token boundary."""
        self._claim.attempt.interrupt(reason)

    def check_ownership(self) -> None:
        """Stop when the response is over or another worker owns it (W6). Called at every change of
        the fold."""
        claim, state = self._claim, self._claim.entry.fold
        took_effect = claim.entry.claim_effects.get(claim.fencing_token)
        superseded = took_effect is True and state.owner != claim.fencing_token
        if superseded:
            telemetry.log(
                telemetry.Action.RESPONSE_LOST, response=claim.response.rid, seq=state.next
            )
        if superseded or took_effect is False or state.phase is fold.Phase.DONE:
            claim.attempt.interrupt(Stop.OVER)

    async def run(self) -> None:
        """Append the CLAIM, pass the barrier, generate, append END and wait for the verdict."""
        claim, response, context = self._claim, self._claim.response, self._claim.context
        response.fencing_tokens.add(claim.fencing_token)
        me = context.claimant(response)
        record = claim_plan.claim_record(
            claim.plan,
            response.request,
            response.deliveries[-1],
            me,
            claim.fencing_token,
            claim.copied,
            response.dropped,
            context.served_model(response.request),
        )
        kind = claim_plan.claim_kind(
            claim.plan, claim.entry.fold, me.worker, stolen=response.stolen
        )
        _note_claim(response, claim.entry.fold, kind)
        try:
            append = claim.attempt.write(record, telemetry.trace_headers())
            if claim.plan.prev is None:
                context.activity.write_start(response.request)
            if claim.plan.prev is not None:
                if not await self._pass_barrier(append):
                    return
            elif not context.clock.settled:
                # The first acknowledgement carries the broker's time. Only then is it known whether
                # the request has expired.
                await append
                if context.broker_now_ms() > response.expires_ms:
                    claim.ending = claim_plan.EXPIRED
            if await self._engine_run.run():
                await self._end()
        except log.AppendFailed:
            claim.abandon()

    async def _pass_barrier(self, append: asyncio.Future[log.Appended]) -> bool:
        """Read up to this CLAIM (W3). Returns False when the worker must stand down."""
        claim = self._claim
        claim_at = await append
        accepted = await claim.context.tail.barrier(
            claim.response.partition, claim.response.rid, claim.fencing_token, claim_at.offset
        )
        if accepted is None:
            claim.abandon()
        elif accepted and claim.ending is None and not claim.own_model:
            # A worker of another model wrote the first token in the meantime.
            claim.abandon()
            return False
        return accepted is True and claim.attempt.stop_reason is None

    async def _end(self) -> None:
        """Append END and wait for the fold's verdict (W5)."""
        claim, attempt, response = self._claim, self._claim.attempt, self._claim.response
        response.release_slots(claim.engine_tokens)
        response.wants_slot = False
        attempt.flush()
        if attempt.useless:
            claim.abandon()
            return
        ending = claim.ending
        record = attempt.generation.end(
            self._usage(), ending and ending.error, ending.param if ending else ""
        )
        end_at = await attempt.write(record, telemetry.trace_headers())
        await self._await_verdict(end_at)
        if claim.entry.fold.phase is not fold.Phase.DONE:
            claim.abandon()

    def _usage(self) -> records.Usage:
        claim, attempt, answer = self._claim, self._claim.attempt, self._claim.plan.former_answer
        if attempt.usage:
            return attempt.usage
        if not claim.context.engine.ids_are_tokens:
            return records.Usage()  # ids are characters: only the engine itself can count tokens
        return claim.response.usage(
            max(0, attempt.generation.total - claim.copied),
            attempt.generation.reasoning,
            attempt.cached_tokens,
            claim.entry.fold,
            claim.copied,
            answer.prompt_tokens if answer is not None else 0,
        )

    async def _await_verdict(self, end_at: log.Appended) -> None:
        """Return when the fold says DONE, or when this END can no longer take effect."""
        claim = self._claim
        give_up = time.monotonic() + DONE_S
        while (
            claim.entry.fold.phase is not fold.Phase.DONE
            and not claim.attempt.useless
            and time.monotonic() < give_up
        ):
            if claim.context.tail.position(claim.response.partition) > end_at.offset >= 0:
                return  # the END was read and had no effect
            await claim.entry.changed(1.0)


def _note_claim(response: ResponseState, state: fold.Fold, kind: str) -> None:
    telemetry.CLAIMS.labels(kind=kind).inc()
    if kind == "takeover":
        telemetry.TAKEOVERS.labels(tokens="some" if state.next else "none").inc()
    first = kind in ("first", "stolen")
    telemetry.log(
        telemetry.Action.RESPONSE_CLAIMED if first else telemetry.Action.RESPONSE_TAKEN_OVER,
        response=response.rid,
        partition=response.partition,
        kind=kind,
        seq=state.next,
        epoch=state.epoch + 1,
    )
