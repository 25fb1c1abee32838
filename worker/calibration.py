"""By how much longer requests wait than they were expected to (pure).

A worker does not know all that decides over waits: what gateways refuse and would come, or that
answers have become longer. So it compares what it said of requests when they came with what came
true, and corrects what it says next.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

# Of so many requests the last ones are remembered; before, nothing is believed to have been wrong
# that so many seconds of waiting do not show.
REQUESTS: Final = 200.0
PRIOR_S: Final = 50.0
LEAST_S: Final = 0.5  # shorter waits say nothing
# Of one request the one counts for at most so many times the other. What is told is corrected
# within these bounds.
OUTLIER: Final = 4.0
BOUNDS: Final = (0.7, 1.4)


@dataclass(slots=True)
class Calibration:
    """Of one class. `expected_s`, `waited_s`: sums, the newer requests the heavier."""

    expected_s: float = 0.0
    waited_s: float = 0.0

    def compare(self, expected_s: float, waited_s: float, *, ended: bool = True) -> None:
        """A request waited so long. `ended`: it began then; others had to wait on."""
        if max(expected_s, waited_s) < LEAST_S or (not ended and waited_s < expected_s):
            return
        kept = math.exp(-1 / REQUESTS)
        most_s = OUTLIER * max(LEAST_S, min(expected_s, waited_s))
        self.expected_s = self.expected_s * kept + min(most_s, expected_s)
        self.waited_s = self.waited_s * kept + min(most_s, waited_s)

    @property
    def factor(self) -> float:
        """By which expected waits are to be multiplied: the root of what was found. Requests that
        are expected to wait for too long are refused, so more of those that are compared were
        expected to wait too short."""
        least, most = BOUNDS
        found = (self.waited_s + PRIOR_S) / (self.expected_s + PRIOR_S)
        return min(most, max(least, math.sqrt(found)))
