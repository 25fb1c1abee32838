"""The circuit breaker of one pool."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.load import breaker
from gateway.load.breaker import Breaker, State
from tests.support import cases


def open_breaker(times: int = 1) -> tuple[Breaker, float]:
    """A breaker that has opened so many times in a row, and when it did last."""
    pool_breaker, now = Breaker(), 0.0
    for _ in range(breaker.LEAST):
        pool_breaker.record("failed", now, 0.5)
    for _ in range(times - 1):
        now += pool_breaker.wait_s(now)
        assert pool_breaker.state(now) is State.HALF_OPEN
        pool_breaker.record("failed", now, 0.5)
    return pool_breaker, now


def test_it_opens_when_half_of_the_last_outcomes_failed_and_not_by_a_few() -> None:
    pool_breaker = Breaker()
    for _ in range(breaker.LEAST - 1):
        assert not pool_breaker.record("failed", 0.0, 0.5)
    assert pool_breaker.state(0.0) is State.CLOSED
    assert pool_breaker.record("late", 0.0, 0.5)
    assert (pool_breaker.state(0.0), pool_breaker.reason, pool_breaker.admits(0.0)) == (
        State.OPEN,
        "late",
        False,
    )


def test_failures_among_more_successes_do_not_open_it() -> None:
    breaker = Breaker()
    for n in range(60):
        breaker.record("failed" if n % 4 == 0 else "", n / 10, 0.5)
    assert breaker.state(6.0) is State.CLOSED


def test_old_outcomes_do_not_count() -> None:
    pool_breaker = Breaker()
    for _ in range(breaker.LEAST - 1):
        pool_breaker.record("failed", 0.0, 0.5)
    assert not pool_breaker.record("failed", breaker.WINDOW_S + 0.1, 0.5)


@cases.each("times", range(1, 9))
def test_each_time_in_a_row_it_stays_open_for_twice_as_long_up_to_a_bound(times: int) -> None:
    pool_breaker, now = open_breaker(times)
    expected = min(breaker.MOST_OPEN_S, breaker.FIRST_OPEN_S * 2 ** (times - 1))
    assert pool_breaker.wait_s(now) == pytest.approx(expected)


def test_half_open_lets_few_through_and_closes_by_their_success() -> None:
    pool_breaker, now = open_breaker()
    now += pool_breaker.wait_s(now)
    assert [pool_breaker.admits(now) for _ in range(4)] == [True] * breaker.PROBES + [False] * 2
    pool_breaker.record("", now, 0.5)
    assert pool_breaker.admits(now), "a place is free again"
    pool_breaker.record("", now, 0.5)
    assert (pool_breaker.state(now), pool_breaker.openings) == (State.CLOSED, 0)


def test_a_probe_of_which_nothing_is_heard_gives_its_place_back() -> None:
    pool_breaker, now = open_breaker()
    now += pool_breaker.wait_s(now)
    assert [pool_breaker.admits(now) for _ in range(3)] == [True, True, False]
    pool_breaker.release()
    assert [pool_breaker.admits(now) for _ in range(2)] == [True, False]
    now += breaker.PROBE_S
    assert pool_breaker.admits(now)


OUTCOMES = st.sampled_from(["ok", "failed", "late", "ask", "left", "adopt", "half"])


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 20), OUTCOMES, st.floats(0, 1, exclude_max=True)), max_size=60)
)
def test_whatever_happens_it_is_open_for_a_bounded_time_and_lets_few_probes_through(
    steps: list[tuple[float, str, float]],
) -> None:
    pool_breaker, now, probes = Breaker(), 0.0, 0
    for after, what, luck in steps:
        now += after
        before = pool_breaker.state(now)
        match what:
            case "ask":
                through = pool_breaker.admits(now)
                assert before is State.HALF_OPEN or through is (before is State.CLOSED)
                probes += through and before is State.HALF_OPEN
            case "left":
                pool_breaker.release()
            case "adopt":
                pool_breaker.adopt(3, "failed", after, now)
            case "half":
                pool_breaker.half_open()
            case _:
                opens = pool_breaker.record("" if what == "ok" else what, now, luck)
                assert opens is (before is not State.OPEN and pool_breaker.state(now) is State.OPEN)
        if what != "ask":
            probes = 0  # places may be free again
        if after > 0:
            probes = min(probes, 1)  # so are those of old probes
        assert probes <= breaker.PROBES
        assert pool_breaker.wait_s(now) <= breaker.MOST_OPEN_S * (1 + breaker.JITTER)
    now += breaker.MOST_OPEN_S * 2
    assert pool_breaker.state(now) is not State.OPEN, "it is always tried again"
    for _ in range(breaker.PASSES):
        pool_breaker.record("", now, 0.5)
    assert pool_breaker.state(now) is State.CLOSED, "and closes by successes alone"
