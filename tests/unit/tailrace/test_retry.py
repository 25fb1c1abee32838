"""One loop for everything that is tried again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tailrace.retry import retry_until


class Attempts:
    """Fails with these errors, then returns; `now` advances by what the pauses ask for."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.made = 0
        self.now = 100.0

    async def attempt(self) -> str:
        self.made += 1
        if self.errors:
            raise self.errors.pop(0)
        return "done"

    async def sleep(self, pause_s: float) -> None:
        self.now += pause_s

    def run(
        self, deadline_s: float = float("inf"), failed: Callable[[Exception], None] | None = None
    ) -> Awaitable[str]:
        return retry_until(
            self.attempt,
            on=(OSError, KeyError),
            pause_s=2.0,
            deadline_s=deadline_s,
            failed=failed,
            clock=lambda: self.now,
            sleep=self.sleep,
        )


async def test_it_returns_what_the_first_good_attempt_returns_and_pauses_between_attempts() -> None:
    attempts, told = Attempts(OSError("a"), KeyError("b")), list[Exception]()
    assert await attempts.run(failed=told.append) == "done"
    assert attempts.made == 3
    assert attempts.now == 104
    assert [type(error) for error in told] == [OSError, KeyError]


async def test_the_last_error_is_raised_when_no_attempt_can_begin_before_the_deadline() -> None:
    attempts = Attempts(*(OSError(str(n)) for n in range(9)))
    with pytest.raises(OSError, match="2"):
        await attempts.run(deadline_s=5.0)
    assert attempts.now == 104


async def test_another_error_and_a_cancellation_end_it() -> None:
    attempts = Attempts(OSError(), ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        await attempts.run()
    waiting = asyncio.create_task(
        retry_until(Attempts(OSError()).attempt, on=OSError, pause_s=1000)
    )
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
