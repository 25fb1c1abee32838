"""What a worker does about a response, by its fold (pure; log rule W1–W7 and section 10).

    DONE                                        -> Finished
    NEW, its gateway may be withdrawing it      -> Wait
    NEW                                         -> Claim(prev=null); an expired or invalid request
                                                   is claimed, too, and ended at once
    LIVE, owner abandoned by this worker        -> Claim(prev=owner), no grace
    LIVE, owner asked to be replaced (YIELD)    -> Claim(prev=owner), no grace
    LIVE, owner silent for longer than grace    -> Claim(prev=owner)
    LIVE, attempts used up                      -> Close(prev=owner): closing CLAIM, END(failed),
                                                   one dead letter
    LIVE, tokens of another model               -> HandOver; without a worker of that model, Close;
                                                   where its pool may continue, Claim(continues)
    LIVE, otherwise                             -> Wait

A request that kills its worker also stops every other response on that worker. Three rules keep
these responses from failing with it:

- From the second lost worker on, a loss counts only if the response had fewer than PROGRESS tokens
  there. A request that kills workers dies at the same place each time; a response that got past it
  is not suspect.
- The last attempt that counts is a trial: of all trials of a worker, one at a time is short of
  PROGRESS. So a death in a trial costs the attempt of one suspect, and trials end after a prefill
  and PROGRESS tokens, not after an answer.
- Attempt number MAX_TOTAL_ATTEMPTS is the last in any case, and its trial lasts to its end. It
  bounds a request that kills its workers at another place each time.

A wrong decision costs compute, never correctness: the fold decides who owns the response.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

from tailrace.protocol import fold, segments

MAX_ATTEMPTS = 3
MAX_TOTAL_ATTEMPTS = 6  # attempts, those included that do not count because of their progress
# Tokens after which an attempt has passed the place where the former one died. More than a response
# generates during the longest linger: those are lost and generated again.
PROGRESS = 16
MAX_CLAIMS = 16  # of any kind, counted or not
GRACE_MS = 2_000
# The grace of an owner without a token: a long prompt needs time, and the worker is alive by its
# heartbeat (it drains, or it stole the request). Bounded, because a heartbeat does not prove that
# the worker reaches the log.
PREFILL_GRACE_MS = 30_000
# The grace of an owner of another pool without a token: it may be reading a long prompt, and two
# pools that took the response from each other would use up its attempts. Heartbeats end it earlier.
STRANGER_GRACE_MS = 30_000
# How long a response of another model, tokenizer or parser waits for a worker that has these.
MODEL_GRACE_MS = 60_000
# The same while a worker with this model and tokenizer is alive, or its own worker in another pool:
# it may be full. Bounded, because a heartbeat does not prove that it can continue this response.
HANDOVER_GRACE_MS = 300_000


@dataclass(frozen=True, slots=True)
class Finished:
    """The log says DONE."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Another worker owns it, or it may be withdrawn. Decide again after `ms`, or when the log
    changes."""

    ms: float


@dataclass(frozen=True, slots=True)
class HandOver:
    """Its owner is lost, and a model, tokenizer or parser that this worker does not have made its
    tokens. Offer it to the workers that have these (log rule P10). Decide again after `ms`."""

    ms: float


@dataclass(frozen=True, slots=True)
class Claim:
    """Claim it, replacing `prev`, and generate. `expired`: end it at once instead. `last`: no
    further attempt that counts remains, so it is a trial. `full_trial`: it lasts to its end.
    `continues`: another model made the tokens, and their text is continued (log rule §25)."""

    prev: str | None
    expired: bool = False
    last: bool = False
    full_trial: bool = False
    continues: bool = False


@dataclass(frozen=True, slots=True)
class Close:
    """Claim it and end it as failed. `reason` is the error's code."""

    prev: str
    reason: str
    attempts: int


Decision = Finished | Wait | HandOver | Claim | Close


@dataclass(frozen=True, slots=True)
class Self:
    """This process, the model it serves, and the parser it has for this response. `abandoned` are
    its fencing tokens that write no more. `living` are the other processes of the pool that may
    write, by their heartbeats. `topic`: where this process read the request. `strangers`: live
    processes of other pools that may have it, by their heartbeats; None if they are not known.
    `models`: model revisions and tokenizers of the pool's other ready processes. `continues`: its
    pool was asked to continue another model's text, and this process can."""

    worker: str
    model_rev: str
    tokenizer_digest: str
    parser: str = ""
    abandoned: Collection[str] = ()
    living: Collection[str] = ()
    topic: str = ""
    strangers: Collection[str] | None = None
    models: Collection[tuple[str, str]] = ()
    continues: bool = False

    @property
    def model(self) -> tuple[str, str, str]:
        """As `fold.Fold.model`."""
        return self.model_rev, self.tokenizer_digest, self.parser

    def same_model(self, state: fold.Fold) -> bool:
        """Whether the tokens of the present segment, if any, are of this model."""
        return not state.next or state.model == self.model

    def grace_ms(self, state: fold.Fold) -> float:
        """How long the owner may be silent."""
        _, worker = state.claims[-1]
        if state.next > state.starts[-1]:
            return GRACE_MS
        if self.topic not in ("", state.topic):
            dead = self.strangers is not None and worker not in self.strangers
            return GRACE_MS if dead else STRANGER_GRACE_MS
        lives = worker != self.worker and worker in self.living
        return PREFILL_GRACE_MS if lives else GRACE_MS


class Attempts(NamedTuple):
    """`counted` by log rule §10; `total` also counts workers that were lost after progress."""

    counted: int
    total: int

    def after(self, lost: bool, progress: int) -> Attempts:
        """With one claim more. `lost`: the claim replaces a lost worker, under which the response
        had `progress` tokens."""
        counts = lost and (self.counted <= 1 or progress < PROGRESS)
        return Attempts(self.counted + counts, self.total + lost)


def attempts(state: fold.Fold, claims: int | None = None) -> Attempts:
    """The attempts in the first `claims` claims; in all claims if it is None.

    A claim is not an attempt if it replaced an owner that had yielded, one of the same process, or
    a live one that was late (log rule §26).
    """
    among = list(zip(state.claims, state.starts, strict=True))[:claims]
    total = Attempts(len(among[:1]), len(among[:1]))
    for ((prev, prev_worker), start), ((own, worker), end) in itertools.pairwise(among):
        exempt = prev in state.yielded or own in state.hedged or prev_worker == worker
        total = total.after(not exempt, end - start)
    return total


def decide(
    state: fold.Fold,
    me: Self,
    *,
    now_ms: float,
    expires_ms: float,
    withheld_ms: float = 0.0,
    max_attempts: int = MAX_ATTEMPTS,
) -> Decision:
    """The next step.

    Args:
        now_ms: lower bound of the broker's time.
        expires_ms: the request's deadline on the broker's clock.
        withheld_ms: how long a first claim waits for a CANCEL that may be on its way.
    """
    if state.phase is fold.Phase.DONE:
        return Finished()
    if state.owner is None:
        if withheld_ms > 0:
            return Wait(withheld_ms)
        return Claim(None, expired=now_ms > expires_ms)
    prev, prev_worker = state.claims[-1]
    free = prev in state.yielded or prev in me.abandoned
    quiet_ms = now_ms - state.last_active
    grace_ms = me.grace_ms(state)
    if not free and quiet_ms < grace_ms:
        return Wait(grace_ms - quiet_ms)
    attempts_before = attempts(state)
    lost = not (prev in state.yielded or prev_worker == me.worker)
    attempts_after = attempts_before.after(lost, progress=state.next - state.starts[-1])
    if (
        attempts_after.counted > max_attempts
        or attempts_after.total > MAX_TOTAL_ATTEMPTS
        or len(state.claims) >= MAX_CLAIMS
    ):
        return Close(prev, "attempts_exhausted", attempts_before.counted)
    # Ids of another tokenizer or parser mean other text, and another model would not have generated
    # these words.
    last, alone = attempts_after.counted == max_attempts, attempts_after.total == MAX_TOTAL_ATTEMPTS
    if not me.same_model(state):
        if me.continues and not me.parser and segments.state_allows(state):
            return Claim(prev, last=last, full_trial=alone, continues=True)
        # Heartbeats do not name the parser, so no worker is known to have another one.
        other = state.model[:2] != (me.model_rev, me.tokenizer_digest)
        lives = other and (
            state.model[:2] in me.models or prev_worker in (me.strangers or ())  # it is paused
        )
        grace_ms = HANDOVER_GRACE_MS if lives else MODEL_GRACE_MS
        if quiet_ms < grace_ms:
            return HandOver(grace_ms - quiet_ms)
        return Close(prev, "model_changed", attempts_before.counted)
    return Claim(prev, last=last, full_trial=alone)


def may_hedge(state: fold.Fold, me: Self) -> bool:
    """Whether this worker may race for the first token (log rule §26): another process owns the
    response by its first claim, from the same pool and with the same model, and has no token.

    The claim is not an attempt, so it may only be the second one: a request that kills its workers
    gets one more worker by it, and no response is hedged twice.
    """
    return (
        state.phase is fold.Phase.LIVE
        and len(state.claims) == 1
        and not state.next
        and state.owner not in state.yielded
        and state.claims[0][1] != me.worker
        and state.topic == me.topic
        and state.model == (me.model_rev, me.tokenizer_digest, me.parser)
    )


def may_steal(
    state: fold.Fold, decision: Decision, own: Collection[str], *, handed_over: bool = False
) -> bool:
    """Whether a worker that stole the request continues (log rule P10): while no worker has begun
    the response, or after its own claim; where it was handed over, after any owner that it may
    replace. `own` are its fencing tokens."""
    if state.owner is None:
        return isinstance(decision, Claim) and not decision.expired
    if handed_over and isinstance(decision, Claim):
        return True
    return state.owner in own and not isinstance(decision, Wait | HandOver)
