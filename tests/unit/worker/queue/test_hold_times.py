"""How many requests can start by when."""

from __future__ import annotations

import heapq
import itertools
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.queue.hold_times import HoldTimes


def known(*seconds: float) -> HoldTimes:
    holds = HoldTimes()
    for each in seconds:
        holds.add(each)
    return holds


def test_equal_answers_start_when_those_before_them_end() -> None:
    starts = known(*[2.0] * 20).expected_starts([0.5, 0.5, 1.5], step_s=0.1, steps=60)
    for at, count in ((0.4, 0), (0.6, 1), (1.4, 1), (1.6, 3), (2.4, 3), (2.6, 4), (5.6, 9)):
        assert starts[round(at * 10) - 1] == pytest.approx(count, abs=0.1)


def test_of_one_that_runs_for_long_only_the_long_ones_are_left() -> None:
    holds = known(*[1.0] * 97, *[30.0] * 3)
    young, old = (holds.expected_starts([age], step_s=0.5, steps=80) for age in (0.0, 5.0))
    assert young[2] > 0.9  # after 1.5 s
    assert old[46] < 0.1  # after 23.5 s
    assert old[54] > 1.0


def test_one_that_runs_longer_than_all_before_is_taken_for_a_long_one() -> None:
    starts = known(*[1.0] * 20).expected_starts([8.0], step_s=1.0, steps=20)
    assert starts[5] < 0.1
    assert starts[9] > 1.0


def test_those_that_still_run_tell_that_long_ones_are_frequent() -> None:
    """Twenty have ended after a second each, and twenty run for 20 s: half of all are long."""
    alone, beside = (
        known(*[1.0] * 20).expected_starts([0.0, *[20.0] * others], step_s=0.5, steps=20)
        for others in (0, 20)
    )
    assert alone[-1] == pytest.approx(10, rel=0.1)
    assert beside[-1] == pytest.approx(2, rel=0.1)  # 1 + 1/2 + 1/4 + …


def test_those_that_made_way_tell_that_long_ones_are_frequent() -> None:
    """They hold no slot, and so they make none come free."""
    holds = known(*[1.0] * 20)
    running, stopped = (
        holds.expected_starts([0.0], step_s=0.5, steps=20, paused_ages=others)
        for others in ((), [20.0] * 20)
    )
    assert running[-1] == pytest.approx(10, rel=0.1)
    assert stopped[-1] == pytest.approx(2, rel=0.1)
    assert holds.mean([]) == pytest.approx(1.0)
    assert holds.mean([20.0] * 20) == pytest.approx((1.0 + 40.0) / 2)


@pytest.mark.parametrize("step_s", [0.05, 1.0, 10.0])
def test_in_the_long_run_it_is_the_number_of_slots_over_the_mean(step_s: float) -> None:
    holds = known(*[0.5] * 900, *[5.5] * 100)
    starts = holds.expected_starts([0.2] * 7 + [3.0], step_s=step_s, steps=400)
    rate = (starts[-1] - starts[199]) / (200 * step_s)
    assert rate == pytest.approx(8 / 1.0, rel=0.02)
    assert holds.mean([]) == pytest.approx(1.0)


def test_it_is_the_mean_of_what_happens() -> None:
    rng, lengths = random.Random(5), [1.0] * 40 + [2.0] * 40 + [12.0] * 20
    ages = [0.2, 0.9, 1.5, 4.0, 7.0]
    happened: dict[float, list[int]] = {2.0: [], 6.0: [], 15.0: []}
    for _ in range(3_000):
        ends = [rng.choice([each for each in lengths if each > age]) - age for age in ages]
        heapq.heapify(ends)
        begun = list[float]()
        while ends[0] < 20:
            begun.append(end := heapq.heappop(ends))
            heapq.heappush(ends, end + rng.choice(lengths))
        for at, counts in happened.items():
            counts.append(sum(each <= at for each in begun))
    starts = known(*lengths * 20).expected_starts(ages, step_s=0.1, steps=200)
    for at, counts in happened.items():
        around = statistics.mean(starts[round(at * 10) + n] for n in (-3, -2, -1, 0, 1))
        assert around == pytest.approx(statistics.mean(counts), rel=0.06, abs=0.3)


def test_what_is_old_fades() -> None:
    holds = known(*[10.0] * 50)
    assert holds
    for _ in range(100):
        holds.fade(0.8)
    assert not holds
    holds.add(1.0)
    assert holds.expected_starts([0.0], step_s=0.1, steps=20)[14] == pytest.approx(1.0, abs=0.1)


seconds = st.floats(0.0, 1e6)


@given(
    st.lists(seconds, max_size=20),
    st.lists(seconds, min_size=1, max_size=8),
    st.floats(0.01, 20),
)
def test_any_lengths_give_numbers_that_never_fall(
    lengths: list[float], ages: list[float], step_s: float
) -> None:
    starts = known(*lengths).expected_starts(ages, step_s, 60)
    assert len(starts) == 60
    assert starts[0] >= -1e-9
    assert all(after >= before - 1e-6 for before, after in itertools.pairwise(starts))
