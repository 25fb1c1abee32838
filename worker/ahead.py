"""What goes before a request, if it begins after so many seconds (pure).

Of every other principal that is what waits and what comes meanwhile, as far as its turns come
first. What comes is a matter of chance, and turns bound it: where three requests may go before and
three are expected, fewer than three do on average.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

# Beyond so many standard deviations chance does not count. From so many requests on a Poisson
# number is computed as a normal one, to within 1 %.
SURE: Final = 4.0
MANY: Final = 12.0
_ROUNDING: Final = 1e-6  # of a request


class Part(NamedTuple):
    """What goes before of one tenant or principal, in tokens.

    `waits`: now, and goes before. `room`: so much more may come before. `per_s`: comes in a second.
    `each`: of one request.
    """

    waits: float
    room: float
    per_s: float
    each: float

    @property
    def is_sure(self) -> bool:
        """It does not depend on how long the request waits."""
        return not (self.room and self.per_s)

    def by(self, seconds: float) -> float:
        """If so many seconds pass."""
        if self.is_sure:
            return self.waits
        comes = self.per_s * seconds
        if not self.each:
            return self.waits + min(self.room, comes)
        return self.waits + self.each * at_most(self.room / self.each, comes / self.each)


def part(gap: float, waits: float, per_s: float, each: float, *, alone: bool = True) -> Part:
    """Of a tenant or principal whose turn comes earlier by `gap` tokens.

    Its requests go first that begin before the gap is over, so the last one may reach beyond. That
    which waits and begins at the end of the gap goes first as well, and what comes does not.

    Args:
        alone: the request is of another one. A request of its own begins at the end of the gap.
    """
    if not each:
        return Part(min(waits, gap), max(0.0, gap - waits), per_s, each)
    turns = gap / each
    come_first = math.ceil(turns - _ROUNDING)
    wait_first = math.floor(turns + _ROUNDING) + 1 if alone or not come_first else come_first
    room = max(0.0, come_first * each - waits)
    return Part(min(waits, wait_first * each), room, per_s, each)


def at_most(most: float, mean: float) -> float:
    """The mean of a Poisson number, of which no more than `most` counts. `mean`: of the number."""
    if not mean:
        return 0.0
    deviation = math.sqrt(mean)
    far = (most - mean) / deviation
    if abs(far) > SURE:
        return min(most, mean)
    if most > MANY:
        density = math.exp(-(far**2) / 2) / math.sqrt(2 * math.pi)
        less = (1 + math.erf(far / math.sqrt(2))) / 2
        return mean * less - deviation * density + most * (1 - less)
    # All of `most`, less what is missing where fewer come.
    chance, found = math.exp(-mean), most
    for number in range(math.ceil(most)):
        found -= (most - number) * chance
        chance *= mean / (number + 1)
    return found


@dataclass(frozen=True, slots=True)
class Ahead:
    """What goes before a request, in tokens. `sure`: whatever comes."""

    sure: float
    parts: Sequence[Part]

    def by(self, seconds: float) -> float:
        """If it begins after so many seconds."""
        return self.sure + sum(part.by(seconds) for part in self.parts)
