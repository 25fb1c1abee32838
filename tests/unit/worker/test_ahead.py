"""What goes before a request."""

from __future__ import annotations

import math
import random

import pytest

from worker import ahead
from worker.ahead import Ahead, at_most, part

EACH = 10.0


def exactly(most: float, mean: float) -> float:
    """By the definition."""
    found, chance = 0.0, math.exp(-mean)
    for number in range(2_000):
        found += min(most, number) * chance
        chance *= mean / (number + 1)
    return found


@pytest.mark.parametrize("mean", [0.01, 0.3, 1.0, 4.0, 12.0, 30.0, 200.0])
@pytest.mark.parametrize("times", [0.0, 0.1, 0.5, 0.9, 1.0, 1.1, 2.0, 10.0])
def test_of_a_number_that_is_chance_no_more_count_than_may(mean: float, times: float) -> None:
    for most in (times * mean, math.ceil(times * mean)):
        assert at_most(most, mean) == pytest.approx(exactly(most, mean), rel=0.01, abs=0.01)


def test_it_is_less_than_the_mean_and_than_what_may_count() -> None:
    assert at_most(3.0, 3.0) < 2.5
    assert at_most(0.0, 3.0) == at_most(3.0, 0.0) == 0.0
    draws = random.Random(1)
    for _ in range(300):
        most, mean = draws.random() * 40, draws.random() * 40
        assert -0.01 <= at_most(most, mean) <= min(most, mean) + 0.01
        assert at_most(most, mean) <= at_most(most, mean + 1.0) + 0.02


@pytest.mark.parametrize(("gap", "requests"), [(0.0, 1), (1.0, 1), (10.0, 2), (10.1, 2), (25.0, 3)])
def test_the_last_request_that_goes_before_begins_before_the_gap_is_over(
    gap: float, requests: int
) -> None:
    comes = part(gap, 0.0, EACH, EACH)
    assert comes.by(1e3) == pytest.approx(math.ceil(gap / EACH) * EACH)
    assert part(gap, 1e6, 1e6, EACH).by(0.0) == requests * EACH
    assert part(gap, EACH / 2, 0.0, EACH).by(1e6) == EACH / 2, "no more than there is"


def test_what_is_of_its_own_tenant_ends_with_the_gap() -> None:
    assert part(20.0, 1e6, 0.0, EACH, alone=False).by(0.0) == 20.0
    assert part(0.0, 1e6, 0.0, EACH, alone=False).by(0.0) == EACH


def test_of_what_has_its_turn_at_the_same_time_that_goes_before_which_waits() -> None:
    """What comes later stands behind it. Of every idle user half a request was counted."""
    assert part(0.0, 0.0, 1e6, EACH).by(1e6) == 0.0
    assert part(1e-9, 0.0, 1e6, EACH).by(1e6) == 0.0, "a rounded gap is none"
    assert part(0.0, 3 * EACH, 1e6, EACH).by(1e6) == EACH


def test_what_comes_goes_before_as_far_as_the_turns_come_first() -> None:
    found = part(3 * EACH, EACH, 2 * EACH, EACH)
    assert not found.is_sure
    assert found.by(0.0) == EACH
    assert found.by(1.0) == pytest.approx(EACH * (1 + exactly(2, 2)), rel=0.01)
    assert found.by(1e3) == pytest.approx(3 * EACH)
    assert part(30.0, 10.0, 5.0, 0.0).by(2.0) == 20.0, "of requests of unknown size, the mean"
    assert part(7.0, 1.0, 1.0, 0.0).by(1e3) == 7.0
    assert part(7.0, 9.0, 1.0, 0.0).by(1e3) == 7.0


def test_all_parts_together() -> None:
    found = Ahead(5.0, [part(3 * EACH, EACH, 0.0, EACH), part(EACH, 0.0, EACH, EACH)])
    assert found.by(0.0) == 5.0 + EACH
    assert found.by(1e3) == pytest.approx(5.0 + EACH + EACH)


def test_chance_counts_as_far_as_it_is_sure() -> None:
    """The shortcuts do not show."""
    for mean in (20.0, 100.0):
        for side in (-1, 1):
            most = mean + side * ahead.SURE * math.sqrt(mean)
            nearly, beyond = at_most(most * (1 - 1e-6), mean), at_most(most * (1 + 1e-6), mean)
            assert nearly == pytest.approx(beyond, rel=0.01)
