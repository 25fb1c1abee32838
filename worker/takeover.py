"""What a worker does about a response, by its fold (pure; log rule W1–W7 and section 10).

    DONE                                        -> Finished
    NEW                                         -> Claim(prev=null); an expired or invalid request
                                                   is claimed, too, and ended at once
    LIVE, owner abandoned by this worker        -> Claim(prev=owner), no grace
    LIVE, owner asked to be replaced (YIELD)    -> Claim(prev=owner), no grace
    LIVE, owner silent for longer than grace    -> Claim(prev=owner)
    LIVE, attempts used up                      -> Close(prev=owner): closing CLAIM, END(failed),
                                                   one dead letter
    LIVE, otherwise                             -> Wait

A request that kills its worker costs an attempt of every other response on that worker. So last
attempts run one at a time: then only the request that kills workers can use its attempts up.

A wrong choice costs compute, never correctness: the fold decides who owns the response.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection
from dataclasses import dataclass

from tailrace.protocol import fold

MAX_ATTEMPTS = 3
MAX_CLAIMS = 16  # of any kind, counted or not
GRACE_MS = 2_000
# How long a response of another model revision waits for a worker that has that revision.
MODEL_GRACE_MS = 60_000


@dataclass(frozen=True, slots=True)
class Finished:
    """The log says DONE."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Another worker owns it. Look again after `ms`, or when the log changes."""

    ms: float


@dataclass(frozen=True, slots=True)
class Claim:
    """Claim it, replacing `prev`, and generate. `expired`: end it at once instead. `last`: no
    further attempt that counts is left."""

    prev: str | None
    expired: bool = False
    last: bool = False


@dataclass(frozen=True, slots=True)
class Close:
    """Claim it and end it as failed. `reason` is the error's code."""

    prev: str
    reason: str
    attempts: int


Decision = Finished | Wait | Claim | Close


@dataclass(frozen=True, slots=True)
class Self:
    """This process and the model it serves. `abandoned` are its fencing tokens that write no
    more."""

    worker: str
    model_rev: str
    tokenizer_digest: str
    abandoned: Collection[str] = ()


def attempts(claims: list[tuple[str, str]], yielded: Collection[str]) -> int:
    """How many claims count as attempts. A claim does not count if it replaced an owner that had
    yielded, or one of the same process."""
    counted = 1 if claims else 0
    for (prev, prev_worker), (_, worker) in itertools.pairwise(claims):
        counted += prev not in yielded and prev_worker != worker
    return counted


def decide(
    state: fold.Fold,
    me: Self,
    *,
    now_ms: float,
    expires_ms: float,
    max_attempts: int = MAX_ATTEMPTS,
) -> Decision:
    """The next step.

    Args:
        now_ms: lower bound of the broker's time.
        expires_ms: the request's deadline on the broker's clock.
    """
    if state.phase is fold.Phase.DONE:
        return Finished()
    if state.owner is None:
        return Claim(None, expired=now_ms > expires_ms)
    prev, prev_worker = state.claims[-1]
    free = prev in state.yielded or prev in me.abandoned
    quiet_ms = now_ms - state.last_active
    if not free and quiet_ms < GRACE_MS:
        return Wait(GRACE_MS - quiet_ms)
    counted = attempts(state.claims, state.yielded)
    counts = not (prev in state.yielded or prev_worker == me.worker)
    if counted + counts > max_attempts or len(state.claims) >= MAX_CLAIMS:
        return Close(prev, "attempts_exhausted", counted)
    if (
        state.next
        and state.first is not None
        and _foreign(state.first.model_rev, state.first.tokenizer_digest, me)
    ):
        if quiet_ms < MODEL_GRACE_MS:
            return Wait(MODEL_GRACE_MS - quiet_ms)
        return Close(prev, "model_changed", counted)
    return Claim(prev, last=counts and counted + 1 == max_attempts)


def _foreign(model_rev: str, tokenizer_digest: str, me: Self) -> bool:
    """Whether the ids are of another model revision or tokenizer. Ids of another tokenizer mean
    other text, and another model would continue words that it would not have chosen."""
    return (model_rev, tokenizer_digest) != (me.model_rev, me.tokenizer_digest)
