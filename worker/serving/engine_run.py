"""The engine's part of one claim: resume what the log has, then generate the rest."""

from __future__ import annotations

import asyncio

from tailrace import telemetry
from tailrace.protocol import records, segments
from worker.engines import base
from worker.prefixes import held_prefixes
from worker.serving import takeover, truncation
from worker.serving.attempt import Stop
from worker.serving.claim_state import ClaimState
from worker.serving.claim_stop import RESUMABLE, ClaimStop
from worker.serving.response_state import CHARACTERS_PER_TOKEN
from worker.text import generation, visible

TRIAL_POLL_S = 0.02  # how often a trial checks its progress


class EngineRun:
    """Runs the engine for one claim."""

    def __init__(self, claim: ClaimState) -> None:
        self._claim = claim
        self._stop = ClaimStop(claim)

    async def run(self) -> bool:
        """Run the engine unless the response ends without it. Returns whether to write END."""
        claim = self._claim
        try:
            await self._resume()
        except Exception as error:
            self._resume_without_text()
            if claim.plan.former_answer is not None:
                await self._stop.on_unreadable_answer(error)
                return False
            if claim.ending is None:
                return await self._stop.on_error(error)
        if claim.ending is not None:
            claim.attempt.generation.close(claim.ending.reason)
            return True
        if claim.plan.former_answer is not None:
            return await self._end_former_answer()
        try:
            request = await self._engine_request()
        except Exception as error:
            return await self._stop.on_error(error)
        return await self._generate(request)

    async def _generate(self, engine_request: records.Request) -> bool:
        claim, attempt, plan = self._claim, self._claim.attempt, self._claim.plan
        engine, context, response = claim.context.engine, claim.context, claim.response
        output = attempt.generation
        accepted = visible.Accepted.from_fold(claim.entry.fold)
        max_tokens = (
            output.remaining if engine.ids_are_tokens else response.request.sampling.max_tokens
        )
        so_far = list(accepted.ids) if plan.prev else []
        so_far += (plan.copied or ())[len(so_far) :]
        trial = asyncio.create_task(self._trial()) if plan.last and not plan.full_trial else None
        try:
            with telemetry.span("generate", so_far=len(so_far)):
                last = plan.last or plan.full_trial
                job = base.GenerationInput(
                    engine_request,
                    claim.fencing_token,
                    claim.prompt_ids,
                    so_far,
                    max_tokens,
                    plan.inputs,
                    context.with_files,
                    claim.copied,
                    response.rank,
                )
                self._note_prefix()
                await attempt.run(
                    *(engine, job, context.stall_detector, self._offer_slot), last=last
                )
        except Exception as error:
            return await self._stop.on_error(error)
        finally:
            if trial is not None:
                trial.cancel()
        finished = output.phase is generation.Phase.FINISHED
        if attempt.stop_reason is None or (finished and attempt.stop_reason in RESUMABLE):
            return True
        await self._stop.on_interrupt()
        return False

    async def _end_former_answer(self) -> bool:
        """A former answer is written. Returns whether to write END."""
        if self._claim.attempt.interrupted():
            await self._stop.on_interrupt()
            return False
        self._claim.attempt.generation.close("stop")
        return True

    # ---- what the log has already ----------------------------------------------------------------

    async def _resume(self) -> None:
        """Continue after what the log has.

        Raises:
            NotResumable, or whatever the engine raises when it makes a parser.
        """
        claim, plan = self._claim, self._claim.plan
        output = claim.new_generation(await self._view())
        copied = (plan.copied or ()) if plan.former_answer is None else plan.former_answer.ids
        if plan.prev is not None or copied:
            accepted = visible.Accepted()
            if plan.prev is not None:
                accepted = visible.Accepted.from_fold(claim.entry.fold)
            if any(a != b for a, b in zip(copied, accepted.ids, strict=False)):
                raise base.NotResumable  # accepted ids of the source never change
            rest = copied[len(accepted.ids) :] if claim.ending is None else ()
            try:
                await claim.context.replays.run(output, accepted, claim.attempt.interrupted, rest)
            except (visible.Diverged, visible.ParserFailed) as error:
                raise base.NotResumable from error
            if claim.attempt.interrupted():
                self._resume_without_text()
                return
        claim.attempt.begin_with(output)

    def _resume_without_text(self) -> None:
        """Continue after what the log has, only to end the response."""
        claim = self._claim
        output = claim.new_generation(visible.Nothing())
        if claim.plan.prev is not None:
            output.resume(visible.Accepted.from_fold(claim.entry.fold))
        claim.attempt.generation = output

    async def _view(self) -> visible.Visible:
        claim = self._claim
        engine, request = claim.context.engine, claim.response.request
        stop, prompt_ids = request.sampling.stop, claim.plan.prompt_ids
        # Without a token there is no text; and to another model the tokens mean something else.
        if claim.ending is not None and (claim.plan.prev is None or not claim.own_model):
            return visible.Nothing()
        if request.embed is not None:
            return visible.Nothing()
        after = 0
        if least := request.sampling.min_tokens:
            # As in vLLM no stop string ends an answer of fewer tokens. Where ids are not tokens,
            # only the engine's server, which gets both fields, can count them.
            after = max(0, claim.copied + least - claim.entry.fold.before.ids)
            stop = stop if engine.ids_are_tokens else ()
        if not engine.parser_name(request):
            context_ids = prompt_ids if request.continue_final else ()
            return visible.PlainText(engine.detokenizer(context_ids), stop, after)
        parser = await engine.item_parser(request, prompt_ids)
        return visible.Items(request.rid, parser, stop, request.max_tool_calls, claim.copied, after)

    # ---- what the engine gets --------------------------------------------------------------------

    async def _engine_request(self) -> records.Request:
        """The request for the engine. After another model's text its ids are ids of that text, and
        its prompt ends with it (log rule §25)."""
        claim, state = self._claim, self._claim.entry.fold
        engine, context = claim.context.engine, claim.context
        if claim.plan.prev is None or not state.former:
            return truncation.without_dropped(claim.response.request, claim.response.dropped)
        text = state.text.decode(errors="surrogatepass")[: state.before.characters]
        request = truncation.without_dropped(claim.response.request, state.dropped)
        request = segments.prompt(request, text)
        if claim.attempt.generation.phase is not generation.Phase.RUNNING:
            return request
        base.check_features(request, engine.features, context.not_offered)
        claim.prompt_ids = await engine.encode(await context.with_files(request))
        return request

    def _note_prefix(self) -> None:
        """The engine gets the prompt and will hold it. A prompt without some of its messages is not
        noted: the digests belong to the whole one."""
        claim, context = self._claim, self._claim.context
        request, prompt_ids = claim.response.request, claim.plan.prompt_ids
        if not request.prefix or claim.response.dropped:
            return
        tokens = len(prompt_ids)
        if not context.engine.ids_are_tokens:
            tokens //= CHARACTERS_PER_TOKEN
        lengths = held_prefixes.lengths(request.messages, request.tools, tokens)
        digests = request.prefix[-len(lengths) :]
        context.prefixes.note_prompt(
            digests,
            lengths[-len(digests) :],
            prompt_ids,
            context.engine.prefix_scope(request),
            context.monotonic(),
        )

    # ---- slots -----------------------------------------------------------------------------------

    async def _trial(self) -> None:
        """Give the slot of a trial back once the log holds PROGRESS tokens of this claim. From then
        on the worker's death does not count against the response (`worker.serving.takeover`)."""
        state = self._claim.entry
        while state.fold.next - state.fold.starts[-1] < takeover.PROGRESS:
            await state.changed(TRIAL_POLL_S)
        self._claim.response.held_trial.release()

    def _offer_slot(self) -> None:
        """It has made progress: others may have its slot if it can continue later."""
        pool = self._claim.context.engine_slots
        turn = self._claim.response.held_slots.turn(pool)
        if turn is not None:
            pool.allow_preemption(turn, lambda: self._claim.attempt.interrupt(Stop.PAUSED))
