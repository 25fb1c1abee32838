"""The purpose of a claim, and the records about it (pure).

`worker.serving.takeover` decides whether to claim. A `ClaimPlan` says what the claim does: generate
from a prompt, or end the response at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from tailrace.protocol import fold, records
from worker.queue.delivery import Delivery
from worker.serving import takeover


class Ending(NamedTuple):
    """How a response ends: END's reason and, for a failure, its (code, message) and `param`."""

    reason: str
    error: tuple[str, str] | None = None
    param: str = ""


EXPIRED: Final = Ending(
    "expired",
    ("expired", "The request waited longer than its time to live and was not started."),
)
ENGINE_FAILED: Final = Ending(
    "failed",
    ("server_error", "The model engine failed while it generated this response."),
)
UNREADABLE: Final = Ending(
    "failed",
    ("server_error", "The model wrote what its parser cannot read."),
)
ATTEMPTS_EXHAUSTED: Final = Ending(
    "failed", ("server_error", "Every attempt to generate this response failed.")
)
MODEL_CHANGED: Final = Ending(
    "failed",
    ("server_error", "The model was replaced while it generated this response."),
)
WARM_UP: Final = Ending("warmup")

# Ends written by a closing claim, which runs no attempt.
_CLOSING: Final = (ATTEMPTS_EXHAUSTED.error, MODEL_CHANGED.error)

# The dead letter's reason, by the error of END. Other errors make no dead letter.
_DEAD_LETTER_REASONS: Final = {
    ATTEMPTS_EXHAUSTED.error: "attempts_exhausted",
    ENGINE_FAILED.error: "engine_failed",
    UNREADABLE.error: "engine_failed",
    MODEL_CHANGED.error: "model_changed",
}


class FormerAnswer(NamedTuple):
    """An answer that is used again: the response that it was generated for, its ids, and the length
    of its prompt in tokens."""

    rid: str
    ids: Sequence[int]
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class ClaimPlan:
    """A claim about to be made.

    Attributes:
        prev: fencing token of the owner it replaces; None for a first claim.
        prompt_ids: ids of the prompt; empty when the response ends before the prompt was encoded.
        inputs: ids of each input, where inputs are to be embedded. The prompt is all of them.
        ending: how to end the response at once; None to generate.
        last: no further attempt that counts remains.
        full_trial: it holds the slot of a trial to its end.
        copied: ids at the beginning that are not generated for it (log rule §19). None where there
            are none, or the log has all of them already.
        former_answer: the answer that it writes again (log rule §24); None: the engine generates.
        continues: it begins a segment, whose prompt is known only after the barrier (log rule §25).
        hedged: the owner that it replaces lives, and its first token is late.
    """

    prev: str | None
    prompt_ids: Sequence[int] = ()
    inputs: Sequence[Sequence[int]] = ()
    ending: Ending | None = None
    last: bool = False
    full_trial: bool = False
    copied: Sequence[int] | None = None
    former_answer: FormerAnswer | None = None
    continues: bool = False
    hedged: bool = False

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt in tokens; 0 where it was not encoded."""
        return (
            len(self.prompt_ids) if self.former_answer is None else self.former_answer.prompt_tokens
        )


def immediate_end(decision: takeover.Claim | takeover.Close) -> Ending | None:
    """How the decision ends the response without an engine; None if it is generated."""
    if isinstance(decision, takeover.Close):
        return MODEL_CHANGED if decision.reason == "model_changed" else ATTEMPTS_EXHAUSTED
    return EXPIRED if decision.expired else None


def claim_kind(plan: ClaimPlan, state: fold.Fold, worker: str, *, stolen: bool = False) -> str:
    """The claim's kind for metrics and logs: closing, first, stolen (first, too), hedged,
    self or takeover."""
    if plan.ending is not None:
        return "closing"
    if plan.hedged:
        return "hedged"
    if plan.prev is None:
        return "stolen" if stolen else "first"
    replaces_itself = bool(state.claims) and state.claims[-1][1] == worker
    return "self" if replaces_itself else "takeover"


def copied_count(plan: ClaimPlan, state: fold.Fold) -> int:
    """How many ids the response begins with that are not generated for it."""
    return state.copied if plan.copied is None else len(plan.copied)


def claim_record(
    plan: ClaimPlan,
    request: records.Request,
    delivery: Delivery,
    me: takeover.Self,
    fencing_token: str,
    copied: int = 0,
    dropped: int = 0,
    served_model: str = "",
) -> records.Claim:
    """The CLAIM. Only a first one carries the static part of the response object, and `dropped`:
    how many messages the prompt lacks. `copied`: by `copied_count`. `served_model`: where it is
    not the requested one."""
    return records.Claim(
        request.rid,
        fencing_token,
        plan.prev,
        request.owner,
        me.worker,
        delivery.topic,
        delivery.offset,
        me.model_rev,
        me.tokenizer_digest,
        prompt_tokens=plan.prompt_tokens + copied,
        echo=request.echo if plan.prev is None else {},
        parser=me.parser,
        copied=copied,
        dropped=dropped if plan.prev is None else 0,
        served=served_model,
        answer_of=plan.former_answer.rid if plan.former_answer is not None else "",
        continues=plan.continues,
        hedged=plan.hedged,
    )


def dead_letter(
    request: records.Request, delivery: Delivery, state: fold.Fold
) -> records.DeadLetter | None:
    """The dead letter of a response that is DONE; None if its end needs none. Its attempts are
    those that ran."""
    assert state.ended is not None
    reason = _DEAD_LETTER_REASONS.get(state.ended.error) if state.ended.error else None
    if reason is None:
        return None
    claims = len(state.claims) - (state.ended.error in _CLOSING)
    return records.DeadLetter(
        request.rid,
        request.owner,
        request.model,
        reason,
        takeover.attempts(state, claims).counted,
        delivery.topic,
        delivery.offset,
        request.prompt_digest,
    )
