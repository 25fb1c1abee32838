"""How often requests come."""

from __future__ import annotations

import random
import statistics

import pytest

from worker.arrival_rates import MEMORIES_S, Arrivals, Rate, Spans, agreeing


class Clock:
    """Requests that come by chance, so many in a second on average."""

    def __init__(self, seed: int = 1) -> None:
        self._spans, self._arrivals = Spans(), Arrivals()
        self._drawn = random.Random(seed)

    def pass_by(self, seconds: int, per_s: float) -> list[float]:
        """What is told at the end of each second."""
        told = []
        for _ in range(seconds):
            at = self._drawn.expovariate(per_s) if per_s else 1.0
            while at < 1.0:
                self._arrivals.add(100.0)
                at += self._drawn.expovariate(per_s)
            self._arrivals.fade(self._spans.pass_by(1.0))
            told.append(self._arrivals.rate(self._spans).per_s)
        return told

    def of_last_seconds(self) -> float:
        """By the shortest memory alone."""
        return self._arrivals.counts[0] / self._spans.seconds[0]


def test_nothing_is_known_before_time_passes() -> None:
    arrivals = Arrivals()
    assert (arrivals.rate(Spans()).per_s, arrivals.each) == (0.0, 0.0)
    arrivals.add(7.0)
    assert (arrivals.rate(Spans()).per_s, arrivals.each) == (0.0, 7.0)


def test_what_comes_evenly_is_told_as_it_is() -> None:
    spans, arrivals = Spans(), Arrivals()
    for second in range(600):
        for _ in range(3):
            arrivals.add(10.0)
        arrivals.fade(spans.pass_by(1.0))
        assert arrivals.rate(spans).per_s == pytest.approx(3.0, rel=0.001), second
    assert arrivals.each == pytest.approx(10.0)


@pytest.mark.parametrize("per_s", [0.1, 1.0, 10.0])
def test_chance_shows_less_than_in_the_last_seconds_alone(per_s: float) -> None:
    """Noise makes waits too short, because more than all cannot come before a request."""
    clock, errors, alone = Clock(), list[float](), list[float]()
    clock.pass_by(600, per_s)
    for _ in range(2_000):
        errors.append(abs(clock.pass_by(1, per_s)[0] - per_s))
        alone.append(abs(clock.of_last_seconds() - per_s))
    assert statistics.mean(errors) < 0.6 * statistics.mean(alone)


def test_what_comes_once_a_minute_is_not_forgotten_between() -> None:
    clock = Clock()
    clock.pass_by(600, 1 / 60)
    told = clock.pass_by(2_000, 1 / 60)
    assert min(told) > 0.002
    assert statistics.median(told) == pytest.approx(1 / 60, rel=0.4)


@pytest.mark.parametrize("before", [0.0, 0.5, 40.0])
def test_a_change_is_followed_within_seconds(before: float) -> None:
    clock = Clock()
    clock.pass_by(600, before)
    assert clock.pass_by(10, 10.0)[-1] == pytest.approx(10.0, rel=0.4)
    assert clock.pass_by(20, 10.0)[-1] == pytest.approx(10.0, rel=0.25)


def test_who_asks_no_more_counts_for_less_and_less() -> None:
    clock = Clock()
    clock.pass_by(600, 2.0)
    silent = clock.pass_by(120, 0.0)
    assert silent[20] < 0.2
    assert silent[119] < 0.03
    assert silent == sorted(silent, reverse=True)


def test_memories_grow() -> None:
    assert list(MEMORIES_S) == sorted(MEMORIES_S)


@pytest.mark.parametrize(
    ("total", "found"),
    [
        (3.0, [1.0, 2.0]),
        (4.0, [1.25, 2.75]),
        (99.0, [2.0, 5.0]),  # as near as they can
        (2.0, [0.5, 1.5]),
        (0.5, [0.0, 1.0]),
    ],
)
def test_rates_move_within_their_bounds_until_their_sum_is_that_of_all(
    total: float, found: list[float]
) -> None:
    rates = [Rate(1.0, 0.0, 2.0), Rate(2.0, 1.0, 5.0)]
    by = agreeing(total, rates)
    assert [rate.moved(by) for rate in rates] == pytest.approx(found)
    assert agreeing(total, []) == agreeing(total, [Rate(1.0, 1.0, 1.0)]) == 0.0
