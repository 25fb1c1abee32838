"""The circuit breaker of one pool."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.load import breaker
from gateway.load.breaker import Breaker, State
from tests.support import cases


def opened(times: int = 1) -> tuple[Breaker, float]:
    """A breaker that has opened so many times in a row, and when it did last."""
    found, now = Breaker(), 0.0
    for _ in range(breaker.LEAST):
        found.record("failed", now, 0.5)
    for _ in range(times - 1):
        now += found.wait_s(now)
        assert found.state(now) is State.HALF_OPEN
        found.record("failed", now, 0.5)
    return found, now


def test_it_opens_when_half_of_the_last_outcomes_failed_and_not_by_a_few() -> None:
    found = Breaker()
    for _ in range(breaker.LEAST - 1):
        assert not found.record("failed", 0.0, 0.5)
    assert found.state(0.0) is State.CLOSED
    assert found.record("late", 0.0, 0.5)
    assert (found.state(0.0), found.reason, found.admits(0.0)) == (State.OPEN, "late", False)


def test_failures_among_more_successes_do_not_open_it() -> None:
    found = Breaker()
    for n in range(60):
        found.record("failed" if n % 4 == 0 else "", n / 10, 0.5)
    assert found.state(6.0) is State.CLOSED


def test_old_outcomes_do_not_count() -> None:
    found = Breaker()
    for _ in range(breaker.LEAST - 1):
        found.record("failed", 0.0, 0.5)
    assert not found.record("failed", breaker.WINDOW_S + 0.1, 0.5)


@cases.each("times", range(1, 9))
def test_each_time_in_a_row_it_stays_open_for_twice_as_long_up_to_a_bound(times: int) -> None:
    found, now = opened(times)
    expected = min(breaker.MOST_OPEN_S, breaker.FIRST_OPEN_S * 2 ** (times - 1))
    assert found.wait_s(now) == pytest.approx(expected)


def test_half_open_lets_few_through_and_closes_by_their_success() -> None:
    found, now = opened()
    now += found.wait_s(now)
    assert [found.admits(now) for _ in range(4)] == [True] * breaker.PROBES + [False] * 2
    found.record("", now, 0.5)
    assert found.admits(now), "a place is free again"
    found.record("", now, 0.5)
    assert (found.state(now), found.openings) == (State.CLOSED, 0)


def test_a_probe_of_which_nothing_is_heard_gives_its_place_back() -> None:
    found, now = opened()
    now += found.wait_s(now)
    assert [found.admits(now) for _ in range(3)] == [True, True, False]
    found.release()
    assert [found.admits(now) for _ in range(2)] == [True, False]
    now += breaker.PROBE_S
    assert found.admits(now)


OUTCOMES = st.sampled_from(["ok", "failed", "late", "ask", "left", "adopt", "half"])


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 20), OUTCOMES, st.floats(0, 1, exclude_max=True)), max_size=60)
)
def test_whatever_happens_it_is_open_for_a_bounded_time_and_lets_few_probes_through(
    steps: list[tuple[float, str, float]],
) -> None:
    found, now, probes = Breaker(), 0.0, 0
    for after, what, luck in steps:
        now += after
        before = found.state(now)
        match what:
            case "ask":
                through = found.admits(now)
                assert before is State.HALF_OPEN or through is (before is State.CLOSED)
                probes += through and before is State.HALF_OPEN
            case "left":
                found.release()
            case "adopt":
                found.adopt(3, "failed", after, now)
            case "half":
                found.half_open()
            case _:
                opens = found.record("" if what == "ok" else what, now, luck)
                assert opens is (before is not State.OPEN and found.state(now) is State.OPEN)
        if what != "ask":
            probes = 0  # places may be free again
        if after > 0:
            probes = min(probes, 1)  # so are those of old probes
        assert probes <= breaker.PROBES
        assert found.wait_s(now) <= breaker.MOST_OPEN_S * (1 + breaker.JITTER)
    now += breaker.MOST_OPEN_S * 2
    assert found.state(now) is not State.OPEN, "it is always tried again"
    for _ in range(breaker.PASSES):
        found.record("", now, 0.5)
    assert found.state(now) is State.CLOSED, "and closes by successes alone"
