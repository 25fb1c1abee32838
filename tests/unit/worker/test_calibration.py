"""By how much longer requests wait than they were expected to."""

from __future__ import annotations

import math

import pytest

from worker.calibration import BOUNDS, OUTLIER, PRIOR_S, REQUESTS, Calibration


def after(*pairs: tuple[float, float]) -> Calibration:
    """Seconds that were expected and waited."""
    found = Calibration()
    for expected_s, waited_s in pairs:
        found.compare(expected_s, waited_s)
    return found


def test_nothing_is_corrected_before_anything_is_known() -> None:
    assert Calibration().factor == 1.0
    assert after((4.0, 6.0)).factor == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize("times", [0.6, 1.0, 1.5])
def test_half_of_what_was_wrong_again_and_again_is_corrected(times: float) -> None:
    found = after(*[(10.0, 10.0 * times)] * 300).factor
    assert found == pytest.approx(math.sqrt(times), rel=0.03)


def test_what_was_wrong_long_ago_is_forgotten() -> None:
    found = after(*[(10.0, 20.0)] * 300, *[(10.0, 10.0)] * round(4 * REQUESTS))
    assert found.factor == pytest.approx(1.0, rel=0.05)


def test_short_waits_say_nothing() -> None:
    assert after(*[(0.1, 0.4)] * 1_000) == Calibration()


def test_one_request_cannot_change_much() -> None:
    for pair in ((1.0, 3_600.0), (3_600.0, 1.0), (math.inf, 1.0), (0.0, 3_600.0)):
        found = after(*[(10.0, 10.0)] * 300, pair)
        assert found.factor == pytest.approx(1.0, rel=0.01)
    assert after((1.0, 1e9)).waited_s == OUTLIER


def test_the_correction_is_bounded() -> None:
    assert after(*[(10.0, 35.0)] * 300).factor == BOUNDS[1]
    assert after(*[(35.0, 10.0)] * 300).factor == BOUNDS[0]
    assert BOUNDS[0] < 1.0 < BOUNDS[1]


def test_who_gave_up_counts_where_it_waited_for_longer_than_was_said() -> None:
    found = Calibration()
    found.compare(10.0, 3.0, ended=False)
    assert found == Calibration()
    found.compare(10.0, 15.0, ended=False)
    assert found.factor == pytest.approx(math.sqrt((PRIOR_S + 15.0) / (PRIOR_S + 10.0)))
