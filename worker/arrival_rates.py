"""How often requests come (pure).

A rate of the last seconds follows every change and is mostly chance; that of some minutes is exact
and follows late. So several are kept. The longest is believed as far as each shorter one leaves
room for it within one standard deviation of chance (the idea is Lepski's, 1991).

Of many that ask rarely, each rate is uncertain, and that of all together is not. So each moves
within its bounds until their sum is the rate of all.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

# Seconds until an old arrival counts e times less, the shortest first.
MEMORIES_S: Final = (5.0, 20.0, 80.0, 320.0)
# The root of a Poisson count has this standard deviation, whatever the count.
DEVIATION: Final = 0.5


@dataclass(slots=True)
class Spans:
    """The seconds in which arrivals were counted, one number for each memory."""

    seconds: list[float] = field(default_factory=lambda: [0.0] * len(MEMORIES_S))

    def pass_by(self, seconds: float) -> list[float]:
        """So many more. Returns by what the arrivals until now fade."""
        fades = [math.exp(-seconds / memory) for memory in MEMORIES_S]
        self.seconds = [(s + seconds) * fade for s, fade in zip(self.seconds, fades, strict=True)]
        return fades


class Rate(NamedTuple):
    """Requests in a second, and its bounds by the last seconds."""

    per_s: float
    least: float
    most: float

    def moved(self, by: float) -> float:
        """Within the bounds, as `agreeing` says."""
        return self.per_s + by * (self.most - self.per_s if by > 0 else self.per_s - self.least)


_NONE: Final = Rate(0.0, 0.0, 0.0)


def agreeing(total: float, rates: Iterable[Rate]) -> float:
    """How far rates move within their bounds so that their sum is the total, or as near to it as
    they can: from -1, all to the least, to 1, all to the most."""
    sums = [sum(values) for values in zip(*rates, strict=True)] or [0.0] * len(_NONE)
    per_s, least, most = sums
    if total > per_s:
        return min(1.0, (total - per_s) / (most - per_s)) if most > per_s else 0.0
    return -min(1.0, (per_s - total) / (per_s - least)) if per_s > least else 0.0


@dataclass(slots=True)
class Arrivals:
    """Requests of one kind.

    Attributes:
        counts: how many came, one number for each memory.
        tokens: what those asked for that the longest memory counts.
    """

    counts: list[float] = field(default_factory=lambda: [0.0] * len(MEMORIES_S))
    tokens: float = 0.0

    def add(self, tokens: float, number: float = 1.0) -> None:
        """So many came that ask for so many tokens together."""
        self.counts = [count + number for count in self.counts]
        self.tokens += tokens

    def fade(self, fades: list[float]) -> None:
        """`fades`: as `Spans.pass_by` returns them."""
        self.counts = [count * fade for count, fade in zip(self.counts, fades, strict=True)]
        self.tokens *= fades[-1]

    @property
    def each(self) -> float:
        """Tokens that one of them asks for."""
        return self.tokens / self.counts[-1] if self.counts[-1] else 0.0

    def rate(self, spans: Spans) -> Rate:
        """How many come in a second."""
        found = _NONE
        for count, seconds in zip(reversed(self.counts), reversed(spans.seconds), strict=True):
            if not seconds:
                return _NONE
            if found is _NONE:
                found = Rate(count / seconds, 0.0, math.inf)
                continue
            # A count that fades is as exact as one of twice as many seconds.
            root = math.sqrt(2 * count)
            least = max(0.0, root - DEVIATION) ** 2 / (2 * seconds)
            most = (root + DEVIATION) ** 2 / (2 * seconds)
            found = Rate(min(most, max(least, found.per_s)), least, most)
        return found
