"""One claim, from its CLAIM to the fold's verdict on its END (log rule W2–W7)."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time

from tailrace import log, telemetry
from tailrace.protocol import fold, records, segments
from worker.engines import base
from worker.log.tail_state import Entry
from worker.prefixes import held_prefixes
from worker.serving import claim_plan, fork_sources, takeover, truncation
from worker.serving.attempt import Attempt, Stop
from worker.serving.claim_plan import ClaimPlan, Ending
from worker.serving.response_state import CHARACTERS_PER_TOKEN, MAX_PAUSES, ResponseState
from worker.serving.worker_context import WorkerContext
from worker.text import generation, visible

DONE_S = 30.0  # how long an acknowledged END may take to appear in the tail
BUSY_LOOK_S = 1.0  # how often a response that waits for the engine looks whether it still may
TRIAL_LOOK_S = 0.02  # how often a trial looks at its progress
_NO_LIMIT = 2**31
_RESUMABLE = (Stop.DRAIN, Stop.PAUSED)  # the response goes on behind what was generated


class ClaimRunner:
    """Carries one claim out. Whatever goes wrong, the caller looks at the fold again.

    Attributes:
        fencing_token: the claim's own; no other claim uses it.
        _ending: how the response ends without the engine; None while it is generated.
        _prompt_ids: what the engine reads first. Where another model's text is continued it is
            known behind the barrier, and empty before.
        _attempt: writes the claim's records; its generation is replaced behind the barrier.
    """

    def __init__(
        self, context: WorkerContext, response: ResponseState, plan: ClaimPlan, entry: Entry
    ) -> None:
        self.fencing_token = secrets.token_hex(16)
        self._context = context
        self._response = response
        self._plan = plan
        self._entry = entry
        self._ending: Ending | None = plan.ending
        self._prompt_ids = plan.prompt_ids
        self._attempt = Attempt(
            self._generation(visible.Nothing()),
            response.partition,
            context.writer,
            context.scheduler,
            context.clock,
            context.monotonic,
        )

    @property
    def _copied(self) -> int:
        return claim_plan.copied_count(self._plan, self._entry.fold)

    @property
    def used(self) -> float:
        """Tokens that the engine has worked on for this claim: the prompt, and what it made."""
        if self._ending is not None or self._plan.former_answer is not None:
            return 0.0
        generated = self._attempt.generation
        made = generated.total - generated.prior_total
        if not self._context.engine.ids_are_tokens:
            made = made // CHARACTERS_PER_TOKEN
        return len(self._prompt_ids) + made

    @property
    def paused(self) -> bool:
        """Whether it has made way for others."""
        return self._attempt.stop_reason is Stop.PAUSED

    def interrupt(self, reason: Stop) -> None:
        """Stop at the next token boundary."""
        self._attempt.interrupt(reason)

    def check_ownership(self) -> None:
        """Stop when the response is over or another worker owns it (W6). Called at every change of
        the fold."""
        state = self._entry.fold
        took_effect = self._entry.claim_effects.get(self.fencing_token)
        superseded = took_effect is True and state.owner != self.fencing_token
        if superseded:
            telemetry.log(
                telemetry.Action.RESPONSE_LOST, response=self._response.rid, seq=state.next
            )
        if superseded or took_effect is False or state.phase is fold.Phase.DONE:
            self._attempt.interrupt(Stop.OVER)

    async def run(self) -> None:
        """Append the CLAIM, pass the barrier, generate, append END and wait for the verdict."""
        self._response.fencing_tokens.add(self.fencing_token)
        me = self._context.claimant(self._response)
        delivery = self._response.deliveries[-1]
        claim = claim_plan.claim_record(
            self._plan,
            self._response.request,
            delivery,
            me,
            self.fencing_token,
            self._copied,
            self._response.dropped,
            self._context.served_model(self._response.request),
        )
        kind = claim_plan.claim_kind(
            self._plan, self._entry.fold, me.worker, stolen=self._response.stolen
        )
        _note_claim(self._response, self._entry.fold, kind)
        try:
            sent = self._attempt.write(claim, telemetry.trace_headers())
            if self._plan.prev is None:
                self._context.activity.write_start(self._response.request)
            if self._plan.prev is not None:
                if not await self._pass_barrier(sent):
                    return
            elif not self._context.clock.settled:
                # The first acknowledgement tells the broker's time. Only then it is known whether
                # the request has expired.
                await sent
                if self._context.broker_now_ms() > self._response.expires_ms:
                    self._ending = claim_plan.EXPIRED
            if await self._generate():
                await self._end()
        except log.AppendFailed:
            self._response.abandoned.add(self.fencing_token)

    def _generation(self, shown: visible.Visible) -> generation.Generation:
        engine, request = self._context.engine, self._response.request
        return generation.Generation(
            rid=request.rid,
            fencing_token=self.fencing_token,
            view=shown,
            max_tokens=(
                request.sampling.max_tokens + self._copied if engine.ids_are_tokens else _NO_LIMIT
            ),
            stop_ids=() if request.sampling.ignore_eos else engine.stop_ids,
            logprobs=request.sampling.logprobs is not None,
            vectors=len(self._plan.inputs),
        )

    async def _visible(self) -> visible.Visible:
        engine, request = self._context.engine, self._response.request
        stop = request.sampling.stop
        # Without a token there is no text; and to another model the tokens mean something else.
        if self._ending is not None and (self._plan.prev is None or not self._own_model):
            return visible.Nothing()
        if request.embed is not None:
            return visible.Nothing()
        if not engine.parser_name(request):
            behind = self._plan.prompt_ids if request.continue_final else ()
            return visible.PlainText(engine.detokenizer(behind), stop)
        parser = await engine.item_parser(request, self._plan.prompt_ids)
        return visible.Items(request.rid, parser, stop, request.max_tool_calls, self._copied)

    async def _resume(self) -> None:
        """Go on behind what the log has.

        Raises:
            NotResumable, or whatever the engine raises when it makes a parser.
        """
        made = self._generation(await self._visible())
        given = self._plan.former_answer
        copied = (self._plan.copied or ()) if given is None else given.ids
        if self._plan.prev is not None or copied:
            accepted = visible.Accepted()
            if self._plan.prev is not None:
                accepted = visible.Accepted.from_fold(self._entry.fold)
            if any(a != b for a, b in zip(copied, accepted.ids, strict=False)):
                raise base.NotResumable  # accepted ids of the source never change
            rest = copied[len(accepted.ids) :] if self._ending is None else ()
            try:
                await self._context.replays.run(made, accepted, self._attempt.interrupted, rest)
            except (visible.Diverged, visible.ParserFailed) as error:
                raise base.NotResumable from error
            if self._attempt.interrupted():
                self._resume_without_text()
                return
        self._attempt.begin_with(made)

    def _resume_without_text(self) -> None:
        """Go on behind what the log has, only to end it."""
        made = self._generation(visible.Nothing())
        if self._plan.prev is not None:
            made.resume(visible.Accepted.from_fold(self._entry.fold))
        self._attempt.generation = made

    async def _pass_barrier(self, sent: asyncio.Future[log.Appended]) -> bool:
        """Read up to this CLAIM (W3). Returns False when the worker must stand down."""
        appended = await sent
        accepted = await self._context.tail.barrier(
            self._response.partition, self._response.rid, self.fencing_token, appended.offset
        )
        if accepted is None:
            self._response.abandoned.add(self.fencing_token)
        elif accepted and self._ending is None and not self._own_model:
            # A worker of another model wrote the first token in the meantime.
            self._response.abandoned.add(self.fencing_token)
            return False
        return accepted is True and self._attempt.stop_reason is None

    @property
    def _own_model(self) -> bool:
        """Whether the tokens that this claim would go on behind are of this worker's model."""
        return self._context.claimant(self._response).same_model(self._entry.fold)

    async def _asked(self) -> records.Request:
        """What the engine is asked. Behind another model's text its ids are ids of that text, and
        its prompt ends with it (log rule §25)."""
        state, engine = self._entry.fold, self._context.engine
        if self._plan.prev is None or not state.former:
            return truncation.without_dropped(self._response.request, self._response.dropped)
        text = state.text.decode(errors="surrogatepass")[: state.before.characters]
        asked = truncation.without_dropped(self._response.request, state.dropped)
        asked = segments.prompt(asked, text)
        if self._attempt.generation.phase is not generation.Phase.RUNNING:
            return asked
        base.check_features(asked, engine.features, self._context.not_offered)
        self._prompt_ids = await engine.encode(await self._context.with_files(asked))
        return asked

    # ---- the engine ------------------------------------------------------------------------------

    async def _generate(self) -> bool:
        """Run the engine unless the response ends without it. Returns whether to write END."""
        attempt, engine = self._attempt, self._context.engine
        try:
            await self._resume()
        except Exception as error:
            self._resume_without_text()
            if self._plan.former_answer is not None:
                return await self._not_given(error)
            if self._ending is None:
                return await self._engine_failed(error)
        made = attempt.generation
        if self._ending is not None:
            made.close(self._ending.reason)
            return True
        if self._plan.former_answer is not None:
            return await self._given()
        try:
            asked = await self._asked()
        except Exception as error:
            return await self._engine_failed(error)
        request = self._response.request
        accepted = visible.Accepted.from_fold(self._entry.fold)
        left = made.remaining if engine.ids_are_tokens else request.sampling.max_tokens
        so_far = list(accepted.ids) if self._plan.prev else []
        so_far += (self._plan.copied or ())[len(so_far) :]
        trial = (
            asyncio.create_task(self._trial())
            if self._plan.last and not self._plan.full_trial
            else None
        )
        try:
            with telemetry.span("generate", so_far=len(so_far)):
                last = self._plan.last or self._plan.full_trial
                job = base.GenerationInput(
                    asked,
                    self.fencing_token,
                    self._prompt_ids,
                    so_far,
                    left,
                    self._plan.inputs,
                    self._context.with_files,
                    self._copied,
                    self._response.rank,
                )
                self._note_prefix()
                await attempt.run(
                    *(engine, job, self._context.stall_detector, self._offer_slot), last=last
                )
        except Exception as error:
            return await self._engine_failed(error)
        finally:
            if trial is not None:
                trial.cancel()
        finished = made.phase is generation.Phase.FINISHED
        if attempt.stop_reason is None or (finished and attempt.stop_reason in _RESUMABLE):
            return True
        await self._interrupted()
        return False

    async def _given(self) -> bool:
        """A former answer is written. Returns whether to write END."""
        if self._attempt.interrupted():
            await self._interrupted()
            return False
        self._attempt.generation.close("stop")
        return True

    async def _not_given(self, error: Exception) -> bool:
        """A former answer cannot be read: the engine makes one, under another claim."""
        telemetry.log(
            telemetry.Action.TASK_FAILED,
            response=self._response.rid,
            part="cached answer",
            exc_info=error,
        )
        self._response.abandoned.add(self.fencing_token)
        # The next claim names this one, if this one has won. Without that it would lose to it.
        while (
            self.fencing_token not in self._entry.claim_effects
            and self._attempt.stop_reason is None
        ):
            await self._entry.changed(1.0)
        return False

    def _note_prefix(self) -> None:
        """The engine is given the prompt, and will hold it. Not one that lacks messages: the
        digests are of the whole one."""
        request, prompt, context = self._response.request, self._plan.prompt_ids, self._context
        if not request.prefix or self._response.dropped:
            return
        tokens = len(prompt)
        if not context.engine.ids_are_tokens:
            tokens //= CHARACTERS_PER_TOKEN
        lengths = held_prefixes.lengths(request.messages, request.tools, tokens)
        digests = request.prefix[-len(lengths) :]
        context.prefixes.note_prompt(
            digests,
            lengths[-len(digests) :],
            prompt,
            context.engine.prefix_scope(request),
            context.monotonic(),
        )

    async def _trial(self) -> None:
        """Give the place of a trial back once the log holds PROGRESS tokens of this claim: from
        then on the worker's death does not count against the response
        (`worker.serving.takeover`)."""
        while self._made() < takeover.PROGRESS:
            await self._entry.changed(TRIAL_LOOK_S)
        self._response.held_trial.release()

    def _made(self) -> int:
        return self._entry.fold.next - self._entry.fold.starts[-1]

    async def _engine_failed(self, error: Exception) -> bool:
        """Act on the engine's failure. Returns whether to write END."""
        response, context = self._response, self._context
        if isinstance(error, base.Busy):
            return await self._engine_busy(error)
        verdict = base.classify(error)
        telemetry.log(
            telemetry.Action.TASK_FAILED,
            response=response.rid,
            verdict=verdict.value,
            exc_info=error,
        )
        self._attempt.flush()  # what was generated before the failure is good
        forked = response.request.fork is not None and not self._entry.fold.generated_count
        if forked and isinstance(error, base.NotResumable):
            return self._fail(Ending("failed", fork_sources.NOT_CONTINUED))
        if isinstance(error, visible.ParserFailed):
            return self._fail(claim_plan.UNREADABLE)
        if verdict is base.Verdict.FAIL:
            assert isinstance(error, base.Refused)
            return self._fail(Ending("failed", (error.code, error.message)))
        if verdict is base.Verdict.DIE or context.engine.dead.is_set():
            context.engine.dead.set()
            await self._yield()
            return False
        pause_s = response.retry_pause_s()
        if pause_s is None:
            return self._fail(claim_plan.ENGINE_FAILED)
        response.abandoned.add(self.fencing_token)
        response.release_slots(self.used)
        await asyncio.sleep(pause_s)
        return False

    async def _engine_busy(self, error: base.Busy) -> bool:
        """Wait without a slot until the engine may be asked again. Returns whether to write END."""
        response, context = self._response, self._context
        telemetry.log(
            telemetry.Action.WAITING,
            response=response.rid,
            reason=str(error),
            seconds=round(error.pause_s, 1),
        )
        until_ms = context.broker_now_ms() + error.pause_s * 1000
        if self._entry.fold.next:
            until_ms = 0.0  # the deadline is one of the start
        if not response.may_wait(until_ms):
            return self._fail(Ending("failed", (error.code, error.message)))
        response.release_slots(self.used)
        end = context.monotonic() + error.pause_s
        while self._attempt.stop_reason is None and (left := end - context.monotonic()) > 0:
            await self._entry.changed(min(left, BUSY_LOOK_S))
        if self._attempt.stop_reason is not None:
            await self._interrupted()
        response.abandoned.add(self.fencing_token)
        return False

    def _fail(self, ending: Ending) -> bool:
        self._ending = ending
        self._attempt.generation.close(ending.reason)
        return True

    def _offer_slot(self) -> None:
        """It has made progress: others may have its slot, if it can go on later."""
        pool = self._context.engine_slots
        turn = self._response.held_slots.turn(pool)
        if turn is not None:
            pool.allow_preemption(turn, lambda: self._attempt.interrupt(Stop.PAUSED))

    async def _interrupted(self) -> None:
        if self._attempt.stop_reason in _RESUMABLE:
            self._attempt.flush()
            if self.paused:
                self._pause()
            await self._yield()
            return
        self._attempt.generation.stand_down()
        if self._attempt.stop_reason is Stop.APPEND_FAILED:
            self._response.abandoned.add(self.fencing_token)

    def _pause(self) -> None:
        """Note that it made way for others."""
        response, pause_s = self._response, self._context.pause_s
        response.paused_until = self._context.monotonic() + pause_s
        telemetry.PAUSED.inc()
        telemetry.log(
            telemetry.Action.WAITING, response=response.rid, reason="paused", seconds=pause_s
        )

    async def _yield(self) -> None:
        """Append YIELD: another worker may take over at once. This token writes nothing after it.

        There is no YIELD when the engine died. That counts as an attempt, as the worker's own death
        does: otherwise a request that kills engines would go through all of them.
        """
        seq = self._attempt.generation.stand_down()
        if self._context.engine.dead.is_set():
            return
        with contextlib.suppress(log.AppendFailed):
            await self._attempt.write(records.Yield(self._response.rid, self.fencing_token, seq))

    # ---- the end ---------------------------------------------------------------------------------

    async def _end(self) -> None:
        """Append END and wait for the fold's verdict (W5)."""
        attempt, response = self._attempt, self._response
        response.release_slots(self.used)
        response.wants_slot = False
        attempt.flush()
        if attempt.useless:
            response.abandoned.add(self.fencing_token)
            return
        made = attempt.generation
        # Where ids are characters, only the engine itself can count tokens.
        counted = self._context.engine.ids_are_tokens
        usage = attempt.usage or (
            response.usage(
                max(0, made.total - self._copied),
                made.reasoning,
                attempt.cached_tokens,
                self._entry.fold,
                self._copied,
                self._plan.former_answer.prompt_tokens
                if self._plan.former_answer is not None
                else 0,
            )
            if counted
            else records.Usage()
        )
        error = self._ending.error if self._ending else None
        appended = await attempt.write(made.end(usage, error), telemetry.trace_headers())
        await self._await_verdict(appended)
        if self._entry.fold.phase is not fold.Phase.DONE:
            response.abandoned.add(self.fencing_token)

    async def _await_verdict(self, appended: log.Appended) -> None:
        """Return when the fold says DONE, or when this END can have no effect any more."""
        give_up = time.monotonic() + DONE_S
        while (
            self._entry.fold.phase is not fold.Phase.DONE
            and not self._attempt.useless
            and time.monotonic() < give_up
        ):
            if self._context.tail.position(self._response.partition) > appended.offset >= 0:
                return  # the END was read and had no effect
            await self._entry.changed(1.0)


def pausable(context: WorkerContext, response: ResponseState, state: fold.Fold) -> bool:
    """Whether a response can make way for others while it runs, and go on later. All its YIELDs
    count, whichever worker wrote them."""
    return (
        context.pause_s > 0
        and len(state.yielded) < MAX_PAUSES
        and _resumable(context.engine, response.request)
    )


def _resumable(engine: base.Engine, request: records.Request) -> bool:
    """Whether the engine is sure to go on with an answer that it interrupts."""
    formed = request.format is not None or request.tools
    return engine.ids_are_tokens and (not formed or "formats_resumable" in engine.features)


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
