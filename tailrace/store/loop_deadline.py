"""A deadline that a slow event loop of this process does not use up.

A loop that is late reads an answer late that lies in its socket already. To call the other side
slow for that would be wrong, and where its absence opens doors, dangerous. So time counts in steps,
and a step whose timer fired late does not count.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

STEP_S: Final = 0.05
LATE_S: Final = 0.02  # a timer that fires later than this says that the loop is slow
# After this multiple of the deadline the call ends in any case.
MAX_STRETCH: Final = 8.0


class OwnLoopLate(Exception):
    """No answer within the stretched deadline, in which this process itself was too slow."""


class LoopDeadline:
    """Ends an answer with an error unless it comes in time. `cancel` it when the answer is there.

    The error is TimeoutError, or OwnLoopLate if the loop was late for most of the time.

    Attributes:
        _remaining_s: seconds of on-time steps that are left.
        _give_up: loop time at which the deadline ends in any case.
    """

    def __init__(self, answer: asyncio.Future[Any], seconds: float) -> None:
        self._loop = answer.get_loop()
        self._answer = answer
        self._remaining_s = seconds
        self._give_up = self._loop.time() + seconds * MAX_STRETCH
        self._arm()

    def cancel(self) -> None:
        """The answer has arrived, or its caller waits no longer."""
        self._timer.cancel()

    def _arm(self) -> None:
        self._step = min(self._remaining_s, STEP_S)
        self._due = self._loop.time() + self._step
        self._timer = self._loop.call_at(self._due, self._on_timer)

    def _on_timer(self) -> None:
        if self._answer.done():
            return
        now = self._loop.time()
        if now - self._due < LATE_S:
            self._remaining_s -= self._step
            if self._remaining_s < 0.001:
                self._answer.set_exception(TimeoutError())
                return
        elif now >= self._give_up:
            self._answer.set_exception(OwnLoopLate())
            return
        self._arm()
