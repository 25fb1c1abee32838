"""When a silent engine is given up."""

from __future__ import annotations

from worker.serving.stall_detector import StallDetector


def test_silence_of_the_whole_engine_is_a_stall() -> None:
    detector = StallDetector(stall_s=10)
    assert not detector.stalled(last_step=100.0, now=109.0)
    assert detector.stalled(last_step=100.0, now=111.0)


def test_a_response_that_waits_while_the_engine_serves_others_stalls_only_much_later() -> None:
    detector = StallDetector(stall_s=10)
    detector.record_output(3, now=115.0)
    assert detector.tokens == 3
    assert not detector.stalled(last_step=100.0, now=120.0)
    detector.record_output(1, now=200.0)
    assert detector.stalled(last_step=100.0, now=201.0)


def test_one_response_may_stall_by_itself_but_several_in_a_row_mean_a_hung_engine() -> None:
    detector = StallDetector(stall_s=10)
    assert not detector.give_up("a", 11.0)
    assert not detector.give_up("a", 11.0)
    assert detector.give_up("b", 11.0)


def test_a_sign_of_life_clears_the_engine() -> None:
    detector = StallDetector(stall_s=10)
    detector.give_up("a", 11.0)
    detector.record_output(1, now=1.0)
    assert not detector.give_up("b", 11.0)


def test_a_last_attempt_that_stalls_means_a_hung_engine_unless_the_engine_serves_others() -> None:
    detector = StallDetector(stall_s=10)
    assert detector.give_up("a", 11.0, last=True)
    detector.record_output(1, now=20.0)
    assert not detector.give_up("a", 21.0, last=True)
