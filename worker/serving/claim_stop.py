"""How a claim stops before its END: the engine failed or is busy, the attempt was interrupted, or a
former answer cannot be read."""

from __future__ import annotations

import asyncio
import contextlib

from tailrace import log, telemetry
from tailrace.protocol import fold, records
from worker.engines import base
from worker.serving import claim_plan, fork_sources
from worker.serving.attempt import Stop
from worker.serving.claim_plan import Ending
from worker.serving.claim_state import ClaimState
from worker.serving.response_state import MAX_PAUSES, ResponseState
from worker.serving.worker_context import WorkerContext
from worker.text import visible

BUSY_POLL_S = 1.0  # how often a response that waits for the engine checks whether it still may
RESUMABLE = (Stop.DRAIN, Stop.PAUSED)  # the response continues after what was generated


def pausable(context: WorkerContext, response: ResponseState, state: fold.Fold) -> bool:
    """Whether a response can give its slot to others while it runs, and continue later. All its
    YIELDs count, whichever worker wrote them."""
    return (
        context.pause_s > 0
        and len(state.yielded) < MAX_PAUSES
        and _resumable(context.engine, response.request)
    )


def _resumable(engine: base.Engine, request: records.Request) -> bool:
    """Whether the engine can always continue an answer after an interruption."""
    has_grammar = request.format is not None or request.tools
    return engine.ids_are_tokens and (not has_grammar or "formats_resumable" in engine.features)


class ClaimStop:
    """Stops one claim. Methods that may also end the response return whether to write END."""

    def __init__(self, claim: ClaimState) -> None:
        self._claim = claim

    async def on_error(self, error: Exception) -> bool:
        """Act on a failure of the engine. Returns whether to write END."""
        claim, response, context = self._claim, self._claim.response, self._claim.context
        if isinstance(error, base.Busy):
            return await self._on_busy(error)
        verdict = base.classify(error)
        telemetry.log(
            telemetry.Action.TASK_FAILED,
            response=response.rid,
            verdict=verdict.value,
            exc_info=error,
        )
        claim.attempt.flush()  # what was generated before the failure is good
        fork_begins = response.request.fork is not None and not claim.entry.fold.generated_count
        if fork_begins and isinstance(error, base.NotResumable):
            return self._fail(Ending("failed", fork_sources.NOT_CONTINUED))
        if isinstance(error, visible.ParserFailed):
            return self._fail(claim_plan.UNREADABLE)
        if verdict is base.Verdict.FAIL:
            assert isinstance(error, base.Refused)
            return self._fail(Ending("failed", (error.code, error.message), error.param))
        if verdict is base.Verdict.DIE or context.engine.dead.is_set():
            context.engine.dead.set()
            await self._yield()
            return False
        pause_s = response.retry_pause_s()
        if pause_s is None:
            return self._fail(claim_plan.ENGINE_FAILED)
        claim.abandon()
        response.release_slots(claim.engine_tokens)
        await asyncio.sleep(pause_s)
        return False

    async def on_unreadable_answer(self, error: Exception) -> None:
        """A former answer cannot be read: the engine generates one, under another claim."""
        claim = self._claim
        telemetry.log(
            telemetry.Action.TASK_FAILED,
            response=claim.response.rid,
            part="cached answer",
            exc_info=error,
        )
        claim.abandon()
        # The next claim names this one if this one has won. Otherwise it would lose to it.
        while (
            claim.fencing_token not in claim.entry.claim_effects
            and claim.attempt.stop_reason is None
        ):
            await claim.entry.changed(1.0)

    async def on_interrupt(self) -> None:
        """The attempt was interrupted: hand the response over with YIELD, or write nothing more."""
        attempt = self._claim.attempt
        if attempt.stop_reason in RESUMABLE:
            attempt.flush()
            if attempt.stop_reason is Stop.PAUSED:
                self._note_pause()
            await self._yield()
            return
        attempt.generation.stand_down()
        if attempt.stop_reason is Stop.APPEND_FAILED:
            self._claim.abandon()

    async def _on_busy(self, error: base.Busy) -> bool:
        """Wait without a slot until the engine may be asked again. Returns whether to write END."""
        claim, response, context = self._claim, self._claim.response, self._claim.context
        telemetry.log(
            telemetry.Action.WAITING,
            response=response.rid,
            reason=str(error),
            seconds=round(error.pause_s, 1),
        )
        until_ms = context.broker_now_ms() + error.pause_s * 1000
        if claim.entry.fold.next:
            until_ms = 0.0  # the deadline applies to the start
        if not response.may_wait(until_ms):
            return self._fail(Ending("failed", (error.code, error.message)))
        response.release_slots(claim.engine_tokens)
        end = context.monotonic() + error.pause_s
        while claim.attempt.stop_reason is None and (wait_s := end - context.monotonic()) > 0:
            await claim.entry.changed(min(wait_s, BUSY_POLL_S))
        if claim.attempt.stop_reason is not None:
            await self.on_interrupt()
        claim.abandon()
        return False

    def _fail(self, ending: Ending) -> bool:
        self._claim.fail(ending)
        return True

    def _note_pause(self) -> None:
        response, context = self._claim.response, self._claim.context
        response.paused_until = context.monotonic() + context.pause_s
        telemetry.PAUSED.inc()
        telemetry.log(
            telemetry.Action.WAITING,
            response=response.rid,
            reason="paused",
            seconds=context.pause_s,
        )

    async def _yield(self) -> None:
        """Append YIELD: another worker may take over at once. This token writes nothing after it.

        There is no YIELD when the engine died. That counts as an attempt, as the worker's own death
        does: otherwise a request that kills engines would go through all of them.
        """
        seq = self._claim.attempt.generation.stand_down()
        if self._claim.context.engine.dead.is_set():
            return
        with contextlib.suppress(log.AppendFailed):
            await self._claim.write_yield(seq)
