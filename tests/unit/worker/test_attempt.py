"""When a silent engine is given up."""

from __future__ import annotations

from worker import attempt
from worker.engines import base


def test_silence_of_the_whole_engine_is_a_stall() -> None:
    pulse = attempt.Pulse(stall_s=10)
    assert not pulse.stalled(last=100.0, now=109.0)
    assert pulse.stalled(last=100.0, now=111.0)


def test_a_response_that_waits_while_the_engine_speaks_for_others_is_not_stalled_until_much_later() -> (
    None
):
    pulse = attempt.Pulse(stall_s=10)
    pulse.beat(3, now=115.0)
    assert pulse.tokens == 3
    assert not pulse.stalled(last=100.0, now=120.0)
    pulse.beat(1, now=200.0)
    assert pulse.stalled(last=100.0, now=201.0)


def test_one_response_may_stall_by_itself_but_several_in_a_row_are_the_engine() -> None:
    pulse = attempt.Pulse(stall_s=10)
    assert isinstance(pulse.give_up("a", 11.0), base.Transient)
    assert isinstance(pulse.give_up("a", 11.0), base.Transient)
    assert isinstance(pulse.give_up("b", 11.0), base.EngineDead)


def test_a_sign_of_life_clears_the_engine() -> None:
    pulse = attempt.Pulse(stall_s=10)
    pulse.give_up("a", 11.0)
    pulse.beat(1, now=1.0)
    assert isinstance(pulse.give_up("b", 11.0), base.Transient)


def test_a_last_attempt_that_stalls_alone_is_the_engine_s_end_unless_it_speaks_for_others() -> None:
    pulse = attempt.Pulse(stall_s=10)
    assert isinstance(pulse.give_up("a", 11.0, last=True), base.EngineDead)
    pulse.beat(1, now=20.0)
    assert isinstance(pulse.give_up("a", 21.0, last=True), base.Transient)
