"""Many cases in one test."""

from __future__ import annotations

import pytest

from tests.support import cases


def test_every_case_that_fails_is_named_and_the_others_run() -> None:
    run = []
    with pytest.raises(ExceptionGroup, match="2 of 3 cases: 1; 3") as raised:  # noqa: SIM117, PT012
        with cases.collected() as case:
            for number in (1, 2, 3):
                with case(number):
                    run.append(number)
                    if number == 1:
                        with pytest.raises(ValueError, match="x"):
                            pass
                    assert number < 3
    assert run == [1, 2, 3]
    assert [type(error) for error in raised.value.exceptions] == [AssertionError, AssertionError]


def test_no_case_at_all_is_a_failure() -> None:
    with pytest.raises(AssertionError, match="no case"), cases.collected():
        pass
