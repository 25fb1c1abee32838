"""Waits as clients see them (pure). A wait is an estimate, so it is rounded to one of a few
figures instead of pretending to be exact."""

from __future__ import annotations

import bisect
import math
from typing import Final

# Above 2 s each is at most 5/3 of the one before. After rounding up to 1, 2, 5, 10 even a perfect
# estimate can be more than twice the true wait.
STEPS_S: Final = (
    *(1, 2, 3, 5, 7, 10, 15, 20, 30, 45, 60, 90),
    *(60 * minutes for minutes in (2, 3, 5, 7, 10, 15, 20, 30, 45, 60)),
)
_LAST_S: Final = STEPS_S[-1]
# Clients that were refused at the same time retry within this last part of their wait: before its
# end, because the wait was rounded up.
JITTER: Final = 0.2


def rounded_up(seconds: float) -> float:
    """The next of the steps, at least the first one. Above the last one: whole hours."""
    if seconds <= _LAST_S:
        return float(STEPS_S[bisect.bisect_left(STEPS_S, seconds)])
    return math.ceil(seconds / _LAST_S) * float(_LAST_S)


def with_jitter(seconds: float, fraction: float) -> float:
    """After how many seconds a client retries whose wait is `seconds`. `fraction`: a random number
    from 0 to 1."""
    return seconds * (1 - JITTER * fraction)
