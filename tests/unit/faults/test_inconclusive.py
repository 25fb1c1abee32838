"""What becomes of a drill whose fault did not bite."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.faults import conftest, drill


def perform(*outcomes: BaseException | None) -> tuple[int, Any]:
    """How often the drill was done, and how the test ended: None, or what it raised. `outcomes`: of
    one attempt after another."""
    attempts = iter(outcomes)
    done = 1

    def again() -> None:
        nonlocal done
        done += 1
        if outcome := next(attempts):
            raise outcome

    call: Any = conftest.pytest_runtest_call(SimpleNamespace(runtest=again))  # type: ignore[arg-type]
    next(call)
    try:
        first = next(attempts)
        call.throw(first) if first else call.send(None)
    except StopIteration:
        return done, None
    except BaseException as error:
        return done, error
    raise AssertionError("the hook goes on")


def test_it_is_done_again_until_it_bites() -> None:
    assert perform(None) == (1, None)
    assert perform(drill.Inconclusive("no takeover"), drill.Inconclusive("none again"), None) == (
        3,
        None,
    )


def test_one_that_never_bites_fails_and_says_so() -> None:
    done, ended = perform(*[drill.Inconclusive(f"nothing {i}") for i in range(5)])
    assert done == conftest.ATTEMPTS
    assert isinstance(ended, pytest.fail.Exception)
    assert "INCONCLUSIVE 3 times; the last: nothing 2" in str(ended)


def test_a_failed_check_is_final_in_every_attempt() -> None:
    wrong = AssertionError("a token twice")
    assert perform(wrong, None) == (1, wrong)
    assert perform(drill.Inconclusive("no takeover"), wrong, None) == (2, wrong)
