"""How much of the queued work starts by when (pure)."""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StartForecast:
    """Queued requests start as slots become free. Work is counted in generated tokens.

    Attributes:
        times: seconds from now, above 0 and ascending.
        tokens: started by then; one number for each time, never falling.
        rate: tokens per second that start after the last time, or from now on without times.
    """

    times: tuple[float, ...] = ()
    tokens: tuple[float, ...] = ()
    rate: float = 0.0

    def seconds(self, tokens: float) -> float:
        """Time until this many have started; infinite if they never do."""
        if tokens <= 0:
            return 0.0
        at = bisect.bisect_left(self.tokens, tokens)
        if at < len(self.tokens):
            since, until = (self.times[at - 1] if at else 0.0), self.times[at]
            before, after = (self.tokens[at - 1] if at else 0.0), self.tokens[at]
            return since + (until - since) * (tokens - before) / (after - before)
        since, before = (self.times[-1], self.tokens[-1]) if self.times else (0.0, 0.0)
        return since + (tokens - before) / self.rate if self.rate > 0 else math.inf
