"""What is concluded from told waits."""

from __future__ import annotations

from bench import places_figures as figures
from bench.places_figures import Estimate, Wait


def test_the_first_told_place_counts_apart_from_the_later_ones() -> None:
    one = Wait(
        "batch", 100.0, 110.0, [Estimate(102, 9, 4.0), Estimate(104, 5, 6.0), Estimate(107, 6, 6.0)]
    )
    found = figures.figures([one])
    assert (found["first_etas"], found["first_eta_over_true_p50"]) == (1.0, 0.5)
    assert (found["later_etas"], found["later_eta_over_true_p10"]) == (2.0, 1.0)
    assert found["later_eta_over_true_p90"] == 2.0
    assert found["later_eta_within_twice"] == 1.0
    assert (found["position_steps"], found["position_rises"]) == (2.0, 1.0)
    assert found["wait_p50_s"] == 10.0
    assert found["refusals"] == 0.0
    assert "refusal_over_true_p50" not in found


def test_a_place_without_a_time_is_no_told_wait() -> None:
    found = figures.figures(
        [Wait("batch", 0.0, 9.0, [Estimate(1.0, 3, None), Estimate(5.0, 2, 4.0)])]
    )
    assert (found["first_etas"], found["later_etas"]) == (0.0, 1.0)
    assert found["later_eta_over_true_p50"] == 1.0


def test_lower_bounds_are_no_places() -> None:
    told = [Estimate(1.0, 50, 2.0, at_least=True), Estimate(2.0, 90, 8.0), Estimate(3.0, 80, 7.0)]
    found = figures.figures([Wait("batch", 0.0, 10.0, told)])
    assert (found["bounds"], found["first_etas"], found["later_etas"]) == (1.0, 1.0, 1.0)
    assert found["first_eta_over_true_p50"] == found["later_eta_over_true_p50"] == 1.0
    assert (found["position_steps"], found["position_rises"]) == (1.0, 0.0)


def test_a_refusal_is_compared_with_the_wait_of_the_next_request() -> None:
    found = figures.figures([Wait("interactive", 5.0, 9.0, refusal_s=3.0)])
    assert (found["refusals"], found["refusal_over_true_p50"]) == (1.0, 0.75)
