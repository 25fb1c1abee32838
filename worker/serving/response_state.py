"""One response as this worker serves it: what outlives a single claim."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from tailrace.fair_queue import Flow, flow_of
from tailrace.protocol import fold, records
from worker.queue.delivery import Delivery
from worker.queue.slots import HeldSlots, Turn
from worker.text.messages import characters

APPEND_WITHIN_MS = 10_000  # for requests without `append_by`; what gateways give an append
MAX_ENGINE_RETRIES = 3  # attempts that failed in the engine, by this process
# Preemptions of a response, at other workers too. Each costs one of `takeover.MAX_CLAIMS`, of which
# the other half remains for lost workers.
MAX_PAUSES = 8
MAX_BUSY = 8  # refusals of a busy engine; each costs one claim of `takeover.MAX_CLAIMS`
CHARACTERS_PER_TOKEN = records.CHARACTERS_PER_TOKEN
RETRY_S = 0.5  # pause before the second attempt; doubled each time


def request_cost(request: records.Request) -> float:
    """Tokens that a request may use: its estimated prompt and its longest answer."""
    length = characters(request.messages, request.tools)
    if request.embed is not None:
        length += request.embed.characters
    if request.fork is not None:
        length += request.fork.at * CHARACTERS_PER_TOKEN + len(request.fork.replace)
    return length / CHARACTERS_PER_TOKEN + request.sampling.max_tokens


@dataclass(slots=True)
class ResponseState:
    """A response with its request.

    Attributes:
        deliveries: where its request was read, oldest first; all are finished together.
        held_slots: slots it holds; empty between attempts.
        held_trial: the slot of a trial (`takeover`); empty unless it is in one.
        wants_slot: it has an engine slot or will want one. False while another worker owns the
            response, and after its END was written.
        orphan_model: model, tokenizer and parser that began it, while it waits for a worker that
            has these; else None.
        turn: its turn for an engine slot while no worker has claimed it; None otherwise.
        fencing_tokens: every token this process has claimed it with.
        abandoned: those of them that write nothing more.
        prompt_ids: None before the prompt was encoded.
        dropped: how many messages the prompt lacks (log rule §21).
        inputs: ids of the inputs to embed; empty for every other request.
        copied: ids that it begins with (log rule §19), once they were read.
        engine_failures: attempts that failed in the engine.
        engine_busy: refusals of the busy engine.
        paused_until: local time in seconds; it waits with its class until then, and before all
            others from then on. 0 if it was never preempted here.
        last_lookup: when a former answer was last searched (monotonic).
    """

    request: records.Request
    deliveries: list[Delivery]
    held_slots: HeldSlots = field(default_factory=HeldSlots)
    held_trial: HeldSlots = field(default_factory=HeldSlots)
    wants_slot: bool = True
    orphan_model: tuple[str, str, str] | None = None
    turn: Turn | None = None
    fencing_tokens: set[str] = field(default_factory=set)
    abandoned: set[str] = field(default_factory=set)
    prompt_ids: Sequence[int] | None = None
    dropped: int = 0
    inputs: Sequence[Sequence[int]] = ()
    copied: Sequence[int] | None = None
    engine_failures: int = 0
    engine_busy: int = 0
    paused_until: float = 0.0
    last_lookup: float = -math.inf

    @property
    def rid(self) -> str:
        """The response's id."""
        return self.request.rid

    @property
    def flow(self) -> Flow:
        """Whose request it is."""
        return flow_of(self.request.owner)

    @property
    def rank(self) -> int:
        """Rank of its priority class: 0 is served first."""
        return self.deliveries[0].rank

    @property
    def cost(self) -> float:
        """See `request_cost`."""
        return request_cost(self.request)

    @property
    def partition(self) -> int:
        """The partition of all its records."""
        return self.deliveries[0].partition

    @property
    def expires_ms(self) -> float:
        """Broker time after which its generation is no longer started."""
        return self.deliveries[0].timestamp + self.request.ttl_ms

    @property
    def request_ms(self) -> int:
        """Broker time of its request in ms; 0 where no delivery says it."""
        return min((each.request_ms for each in self.deliveries if each.request_ms), default=0)

    @property
    def answer_due_ms(self) -> float:
        """Broker time by which its gateway has answered its client about the append."""
        return float(self.request.append_by or self.deliveries[0].timestamp + APPEND_WITHIN_MS)

    @property
    def repeats(self) -> str:
        """The response whose request has the same idempotency key and lies before this one; empty
        if none is known."""
        return self.deliveries[-1].repeats

    @property
    def assigned(self) -> bool:
        """Whether an assignment that delivered its request still holds."""
        return any(delivery.tracker.valid for delivery in self.deliveries)

    @property
    def stolen(self) -> bool:
        """Whether no assignment delivered its request (log rule P10)."""
        return all(delivery.stolen for delivery in self.deliveries)

    @property
    def handed_over(self) -> bool:
        """Whether it is stolen because the assigned worker has another model."""
        return self.stolen and any(delivery.handed_over for delivery in self.deliveries)

    @property
    def continues(self) -> bool:
        """Whether a gateway asked this pool to continue another model's text (log rule §25)."""
        return any(delivery.continues for delivery in self.deliveries)

    @property
    def hedged(self) -> bool:
        """Whether it is stolen because the first token of its owner is late."""
        return self.stolen and any(delivery.hedged for delivery in self.deliveries)

    @property
    def patient(self) -> bool:
        """Whether it waits for a slot. A stolen one that had not begun starts at once or never."""
        return not self.stolen or self.handed_over

    def note_first_record(self, token_offset: int) -> None:
        """Note the offset of its first effective record for its commits."""
        for delivery in self.deliveries:
            delivery.tracker.note_claim(delivery.offset, token_offset)

    def finish(self) -> None:
        """It needs no more work: its offsets may be committed."""
        for delivery in self.deliveries:
            delivery.tracker.finish(delivery.offset)

    def release_slots(self, tokens: float | None = None, *, paused: bool = False) -> None:
        """Release all slots of an attempt. `tokens`, `paused`: as of `Slots.release`."""
        self.held_trial.release()
        self.held_slots.release(tokens, paused=paused)

    def retry_pause_s(self) -> float | None:
        """Count a failure of the engine. Returns the pause before the next attempt, or None when
        no attempt remains."""
        self.engine_failures += 1
        if self.engine_failures > MAX_ENGINE_RETRIES:
            return None
        return float(RETRY_S * 2 ** (self.engine_failures - 1))

    def may_wait(self, until_ms: float) -> bool:
        """Count a refusal of the busy engine. Returns whether to try again at `until_ms`, a broker
        time."""
        self.engine_busy += 1
        return self.engine_busy <= MAX_BUSY and until_ms <= self.expires_ms

    def usage(
        self,
        output_tokens: int,
        reasoning_tokens: int,
        cached_tokens: int,
        state: fold.Fold,
        copied: int = 0,
        answer_prompt: int = 0,
    ) -> records.Usage:
        """Token counts by ids. A claim that only closes has not encoded the prompt, and a claim
        that continues another model's text has encoded another one; an earlier claim has its
        length. `copied` ids are input. `answer_prompt`: length of the prompt of a former answer."""
        prompt = answer_prompt or state.prompt
        if self.prompt_ids is not None and not state.former:
            prompt = len(self.prompt_ids) + copied
        return records.Usage(prompt, output_tokens, min(cached_tokens, prompt), reasoning_tokens)
