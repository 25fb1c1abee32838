"""What an overload run says of its requests.

Times are seconds since the load of the run began.
"""

from __future__ import annotations

import bisect
import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

import msgspec

from bench import measure
from tailrace.protocol import wait_times

Group = Literal["interactive", "batch"]
GROUPS: Final[tuple[Group, ...]] = ("interactive", "batch")
Outcome = Literal["answered", "refused", "expired", "failed"]

FIRST_STEP_S: Final = wait_times.STEPS_S[0]  # no estimated wait is shorter
# A first token is late when it is this much later than p99 of an idle pool.
LATE: Final = 2.0
LATE_S: Final = 0.2


class RequestOutcome(msgspec.Struct, frozen=True):
    """One request.

    Attributes:
        due_s: when it was due.
        first_s: seconds from then to its first token; NaN without one.
        ended_s: when its answer, or its refusal, was complete.
        tokens: of its answer, also if it was repeated; 0 if there is none.
        came_s: when they came, by the client's clock.
        retry_after_s: the wait in a refusal; NaN for others.
        repeat_s: how long it waited when it was repeated at once, with time to wait; NaN where
            it was not.
        error: what went wrong, for `failed`.
        pool: the pool of the requested model.
        by_fallback: another pool's model answered, and the response said so.
    """

    group: Group
    due_s: float
    outcome: Outcome
    ended_s: float
    first_s: float = math.nan
    tokens: int = 0
    came_s: tuple[float, ...] = ()
    retry_after_s: float = math.nan
    repeat_s: float = math.nan
    error: str = ""
    pool: str = ""
    by_fallback: bool = False


def figures(requests: Sequence[RequestOutcome], load_s: float, capacity: float) -> dict[str, float]:
    """The figures of one run.

    Args:
        load_s: how long the load lasted; later requests show the recovery.
        capacity: tokens per second of all places together.
    """
    under_load = [each for each in requests if each.due_s < load_s]
    good = sum(came_until(each, load_s) for each in requests)
    values = {
        "goodput_tokens_per_s": good / load_s,
        "goodput_of_capacity": good / load_s / capacity,
        "failed": float(sum(each.outcome == "failed" for each in requests)),
    }
    values["stood_in"] = float(sum(each.by_fallback for each in requests))
    for group in GROUPS:
        ours = [each for each in under_load if each.group == group]
        if not ours:
            continue
        values[f"{group}_per_s"] = len(ours) / load_s
        for outcome in ("answered", "refused", "expired"):
            share = sum(each.outcome == outcome for each in ours) / len(ours)
            values[f"{group}_{outcome}"] = share
        firsts = [each.first_s for each in ours if not math.isnan(each.first_s)]
        values |= measure.spread(f"{group}_first", firsts)
        values |= estimates(
            f"{group}_refusal",
            [(each.retry_after_s, each.repeat_s) for each in ours if each.repeat_s >= 0],
        )
    return values


def came_until(each: RequestOutcome, end_s: float) -> float:
    """Tokens of an answer that came until then. An answer that never became whole has none."""
    if not each.came_s:
        return 0.0
    return each.tokens * bisect.bisect_right(each.came_s, end_s) / len(each.came_s)


def estimates(name: str, pairs: Iterable[tuple[float, float]]) -> dict[str, float]:
    """Estimated over true waits. One counts that was more than the shortest estimate, or
    was said to be: else those would be missing that were said too long.

    Args:
        pairs: estimated and true seconds.
    """
    ratios = [
        estimate / max(true, FIRST_STEP_S)
        for estimate, true in pairs
        if max(estimate, true) > FIRST_STEP_S
    ]
    values = {f"{name}s": float(len(ratios))}
    if ratios:
        values |= {f"{name}_over_true_p{p}": measure.percentile(ratios, p) for p in (10, 50, 90)}
        values[f"{name}_within_twice"] = sum(0.5 <= r <= 2.0 for r in ratios) / len(ratios)
    return values


def recovery_s(requests: Iterable[RequestOutcome], load_s: float, idle_p99_s: float) -> float:
    """Seconds from the end of the load to the last interactive request that still had a late first
    token, or none at all. 0: none had."""
    late = [
        each.due_s - load_s
        for each in requests
        if each.group == "interactive"
        and each.due_s >= load_s
        and not each.first_s <= late_after_s(idle_p99_s)
    ]
    return max(late, default=0.0)


def late_after_s(idle_p99_s: float) -> float:
    """A first token that takes longer than this is late."""
    return LATE * idle_p99_s + LATE_S


class Arrival(msgspec.Struct, frozen=True):
    """A request as it is known before it is sent. `serves_s`: how long its answer has a slot."""

    due_s: float
    pool: str
    serves_s: float


def ideal_recovery_s(
    arrivals: Iterable[Arrival],
    places: Mapping[str, int],
    load_s: float,
    longest_wait_s: float,
    idle_p99_s: float,
) -> float:
    """What `recovery_s` would be where nothing costs time: each pool serves in order, knows the
    wait of each request exactly, and refuses one that would wait for longer than
    `longest_wait_s`.

    Args:
        arrivals: the interactive requests of a run, in order. There are no others here.
        places: pool -> how many answers it gives at once.
    """
    free = {pool: [0.0] * count for pool, count in places.items()}
    recovery = 0.0
    for each in arrivals:
        begin = max(each.due_s, free[each.pool][0])
        is_served = begin - each.due_s <= longest_wait_s
        if is_served:
            heapq.heapreplace(free[each.pool], begin + each.serves_s)
        late = not is_served or begin - each.due_s > late_after_s(idle_p99_s)
        if each.due_s >= load_s and late:
            recovery = each.due_s - load_s
    return recovery


class Second(msgspec.Struct):
    """What was due in one second, of one class. `first_p50_s`, `first_p99_s`: of its first tokens;
    NaN without one."""

    answered: int = 0
    refused: int = 0
    expired: int = 0
    failed: int = 0
    first_p50_s: float = math.nan
    first_p99_s: float = math.nan


def by_second(requests: Iterable[RequestOutcome], group: Group) -> list[Second]:
    """One entry a second, from the beginning of the load."""
    ours = [each for each in requests if each.group == group]
    seconds = [Second() for _ in range(int(max((a.due_s for a in ours), default=-1.0)) + 1)]
    firsts: list[list[float]] = [[] for _ in seconds]
    for each in ours:
        at = int(each.due_s)
        setattr(seconds[at], each.outcome, getattr(seconds[at], each.outcome) + 1)
        if not math.isnan(each.first_s):
            firsts[at].append(each.first_s)
    for second, waits in zip(seconds, firsts, strict=True):
        second.first_p50_s = measure.percentile(waits, 50)
        second.first_p99_s = measure.percentile(waits, 99)
    return seconds
