"""What an overload run says of its requests."""

from __future__ import annotations

import math
from typing import Any

import pytest

from bench import overload_figures as figures
from bench.overload_figures import RequestOutcome


def asked(due_s: float, outcome: figures.Outcome = "answered", **more: Any) -> RequestOutcome:
    found = {"group": "interactive", "ended_s": due_s + 1.0, **more}
    if outcome == "answered":
        found = {"first_s": 0.5, "tokens": 20, **found}
    return RequestOutcome(due_s=due_s, outcome=outcome, **found)


def test_goodput_counts_what_came_while_the_load_lasted() -> None:
    """Of answers that became whole. Long ones may end later, without being less work."""
    every = [
        asked(0.0, came_s=(0.5, 1.0)),
        asked(8.0, came_s=(8.5, 9.0, 9.5, 10.5)),
        asked(3.0, "refused", retry_after_s=2.0),
        asked(3.0, "failed", error="lost"),
        asked(12.0, came_s=(12.5, 13.0)),
    ]
    found = figures.figures(every, load_s=10.0, capacity=7.0)
    assert found["goodput_tokens_per_s"] == 3.5
    assert found["goodput_of_capacity"] == 0.5


def test_shares_and_first_tokens_are_of_one_class_under_load() -> None:
    every = [
        asked(0.0, first_s=0.1),
        asked(1.0, "refused", retry_after_s=2.0),
        asked(1.0, "expired"),
        asked(2.0, "failed", error="lost"),
        asked(1.0, group="batch", first_s=9.0),
        asked(11.0, first_s=7.0),
    ]
    found = figures.figures(every, load_s=10.0, capacity=1.0)
    shares = [found[f"interactive_{each}"] for each in ("answered", "refused", "expired")]
    assert shares == [0.25, 0.25, 0.25]
    assert found["failed"] == 1.0
    assert found["interactive_first_p99_ms"] == 100.0
    assert found["batch_first_p50_ms"] == 9_000.0
    assert "batch_refusal_over_true_p50" not in found


def test_a_told_wait_is_compared_with_that_of_the_same_user_asking_again() -> None:
    every = [
        asked(1.0, first_s=2.0),
        asked(1.3, "refused", retry_after_s=6.0, repeat_s=4.0),
        asked(1.4, "refused", retry_after_s=6.0),
        asked(1.5, "refused", retry_after_s=2.0, repeat_s=6.0),
        asked(1.6, "refused", retry_after_s=5.0, repeat_s=5.0),
    ]
    found = figures.figures(every, load_s=10.0, capacity=1.0)
    assert (found["interactive_refusals"], found["interactive_refusal_over_true_p50"]) == (3.0, 1.0)
    assert found["interactive_refusal_within_twice"] == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("told", "true", "ratio"), [(5.0, 0.2, 5.0), (0.9, 5.0, 0.18), (2.0, 2.0, 1.0)]
)
def test_a_wait_counts_that_was_long_or_was_said_to_be(
    told: float, true: float, ratio: float
) -> None:
    """By the true wait alone, what was said far too long would be left out."""
    found = figures.estimates("x", [(told, true), (1.0, 0.6)])
    assert (found["xs"], found["x_over_true_p50"]) == (1.0, pytest.approx(ratio))


@pytest.mark.parametrize(
    ("first_s", "expected"), [(0.3, 0.0), (0.5, 2.5), (math.nan, 2.5)], ids=str
)
def test_the_pool_has_recovered_behind_the_last_late_first_token(
    first_s: float, expected: float
) -> None:
    every = [asked(9.9, first_s=9.0), asked(12.5, first_s=first_s), asked(13.0, first_s=0.1)]
    every.append(asked(14.0, group="batch", first_s=9.0))
    assert figures.recovery_s(every, load_s=10.0, idle_p99_s=0.1) == expected


def test_an_ideal_pool_recovers_when_nobody_waits_long() -> None:
    def coming(due_s: float, serves_s: float, pool: str = "one") -> figures.Arrival:
        return figures.Arrival(due_s, pool, serves_s)

    def recovered(*arrivals: figures.Arrival, longest_wait_s: float = 5.0) -> float:
        places = {"one": 1, "two": 2}
        return figures.ideal_recovery_s(arrivals, places, 10.0, longest_wait_s, idle_p99_s=0.1)

    assert recovered(coming(9.0, 2.0), coming(11.0, 1.0)) == 0.0
    assert recovered(coming(9.0, 4.0), coming(12.0, 1.0), coming(14.0, 1.0)) == 2.0
    assert recovered(coming(9.0, 4.0, "two"), coming(12.0, 1.0, "two")) == 0.0
    # One that is refused takes no place, and shows that the pool has not recovered.
    refused = (coming(9.0, 4.0), coming(12.0, 9.0), coming(13.1, 1.0))
    assert recovered(*refused, longest_wait_s=0.5) == 2.0
    assert recovered(*refused) == pytest.approx(3.1)


def test_seconds_without_requests_are_there() -> None:
    every = [asked(0.2, first_s=0.1), asked(2.9, "refused"), asked(2.1, first_s=0.4), asked(2.2)]
    first, between, last = figures.by_second(every, "interactive")
    assert (first.answered, first.first_p50_s) == (1, 0.1)
    assert (between.answered, math.isnan(between.first_p50_s)) == (0, True)
    assert (last.answered, last.refused, last.first_p99_s) == (2, 1, 0.5)
    assert figures.by_second(every, "batch") == []
