"""When a silent engine is given up."""

from __future__ import annotations

from worker import attempt
from worker.engines import base


def test_silence_of_the_whole_engine_is_a_stall() -> None:
    stall_detector = attempt.StallDetector(stall_s=10)
    assert not stall_detector.stalled(last=100.0, now=109.0)
    assert stall_detector.stalled(last=100.0, now=111.0)


def test_a_response_that_waits_while_the_engine_speaks_for_others_is_not_stalled_until_much_later() -> (
    None
):
    stall_detector = attempt.StallDetector(stall_s=10)
    stall_detector.beat(3, now=115.0)
    assert stall_detector.tokens == 3
    assert not stall_detector.stalled(last=100.0, now=120.0)
    stall_detector.beat(1, now=200.0)
    assert stall_detector.stalled(last=100.0, now=201.0)


def test_one_response_may_stall_by_itself_but_several_in_a_row_are_the_engine() -> None:
    stall_detector = attempt.StallDetector(stall_s=10)
    assert isinstance(stall_detector.give_up("a", 11.0), base.Transient)
    assert isinstance(stall_detector.give_up("a", 11.0), base.Transient)
    assert isinstance(stall_detector.give_up("b", 11.0), base.EngineDead)


def test_a_sign_of_life_clears_the_engine() -> None:
    stall_detector = attempt.StallDetector(stall_s=10)
    stall_detector.give_up("a", 11.0)
    stall_detector.beat(1, now=1.0)
    assert isinstance(stall_detector.give_up("b", 11.0), base.Transient)


def test_a_last_attempt_that_stalls_alone_is_the_engine_s_end_unless_it_speaks_for_others() -> None:
    stall_detector = attempt.StallDetector(stall_s=10)
    assert isinstance(stall_detector.give_up("a", 11.0, last=True), base.EngineDead)
    stall_detector.beat(1, now=20.0)
    assert isinstance(stall_detector.give_up("a", 21.0, last=True), base.Transient)
