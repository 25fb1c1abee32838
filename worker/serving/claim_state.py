"""The state of one claim, shared by the parts that carry it out."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence

from tailrace import log
from tailrace.protocol import records
from worker.log.tail_state import Entry
from worker.serving import claim_plan
from worker.serving.attempt import Attempt
from worker.serving.claim_plan import ClaimPlan, Ending
from worker.serving.response_state import CHARACTERS_PER_TOKEN, ResponseState
from worker.serving.worker_context import WorkerContext
from worker.text import generation, visible

_NO_LIMIT = 2**31


class ClaimState:
    """One claim of a response.

    Attributes:
        fencing_token: the claim's own; no other claim uses it.
        ending: how the response ends without the engine; None while it is generated.
        prompt_ids: what the engine reads first. Where another model's text is continued, it is
            known only after the barrier, and empty before.
        attempt: writes the claim's records; its generation is replaced after the barrier.
    """

    def __init__(
        self, context: WorkerContext, response: ResponseState, plan: ClaimPlan, entry: Entry
    ) -> None:
        self.fencing_token = secrets.token_hex(16)
        self.context = context
        self.response = response
        self.plan = plan
        self.entry = entry
        self.ending: Ending | None = plan.ending
        self.prompt_ids: Sequence[int] = plan.prompt_ids
        self.attempt = Attempt(
            self.new_generation(visible.Nothing()),
            response.partition,
            context.writer,
            context.scheduler,
            context.clock,
            context.monotonic,
        )

    @property
    def copied(self) -> int:
        """How many ids the response begins with that are not generated for it."""
        return claim_plan.copied_count(self.plan, self.entry.fold)

    @property
    def engine_tokens(self) -> float:
        """Tokens that the engine has worked on for this claim: the prompt and its output."""
        if self.ending is not None or self.plan.former_answer is not None:
            return 0.0
        output = self.attempt.generation.total - self.attempt.generation.prior_total
        if not self.context.engine.ids_are_tokens:
            output = output // CHARACTERS_PER_TOKEN
        return len(self.prompt_ids) + output

    @property
    def own_model(self) -> bool:
        """Whether this worker's model made the tokens that this claim would continue."""
        return self.context.claimant(self.response).same_model(self.entry.fold)

    def new_generation(self, view: visible.Visible) -> generation.Generation:
        """A generation of this response, which `view` turns into text and marks."""
        engine, request = self.context.engine, self.response.request
        return generation.Generation(
            rid=request.rid,
            fencing_token=self.fencing_token,
            view=view,
            max_tokens=(
                request.sampling.max_tokens + self.copied if engine.ids_are_tokens else _NO_LIMIT
            ),
            stop_ids=() if request.sampling.ignore_eos else engine.stop_ids,
            logprobs=request.sampling.logprobs is not None,
            vectors=len(self.plan.inputs),
        )

    def abandon(self) -> None:
        """This fencing token writes nothing more."""
        self.response.abandoned.add(self.fencing_token)

    def fail(self, ending: Ending) -> None:
        """End the response with this failure."""
        self.ending = ending
        self.attempt.generation.close(ending.reason)

    def write_yield(self, seq: int) -> asyncio.Future[log.Appended]:
        """Append YIELD after `seq` tokens."""
        return self.attempt.write(records.Yield(self.response.rid, self.fencing_token, seq))
