"""What the requests of each principal make of what they ask for (pure).

A request says only what it may take. Charged with that, a principal would be behind all others
while its answers run, and far before them when they end shorter than they might have; so the order
of those that wait would change with every end. What its earlier requests made is nearer to what the
next one will.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

# Seconds until what requests made of what they asked for counts e times less.
PART_MEMORY_S: Final = 300.0
# So many requests of a principal weigh as much as what is known of all others.
FEW: Final = 30
# What requests took more or less than they were charged with is chance up to so many standard
# deviations of their sum.
CHANCE: Final = 2.0
LEAST: Final = 1.0  # tokens; what counts less is forgotten
MAX_PRINCIPALS: Final = (
    2_000  # principals; above it those are forgotten whose last request ended first
)


@dataclass(slots=True)
class _Habit:
    """Of one principal, in tokens.

    Attributes:
        asked, used: what requests that have ended asked for and took.
        ended: number of those that have ended.
        squares: sum of the squares of what each of them took.
        owed: what they took more than they were charged with, as far as that may be chance.
    """

    cost: float = 0.0
    tokens: float = 0.0
    requests: float = 0.0
    squares: float = 0.0
    owed: float = 0.0

    @property
    def variance(self) -> float:
        """Of what one of them took; 0 while none has ended."""
        mean = self.tokens / self.requests if self.requests else 0.0
        return max(0.0, self.squares / self.requests - mean**2) if self.requests else 0.0


@dataclass(slots=True)
class Demand:
    """Measurements of one worker, the newer the heavier.

    Attributes:
        _all: of all principals.
        _of: of each that is remembered, the one whose request ended last at the end.
    """

    _all: _Habit = field(default_factory=_Habit)
    _by_principal: dict[str, _Habit] = field(default_factory=dict)

    @property
    def part(self) -> float:
        """Of what requests asked for, that which they took; 1 while nothing is known."""
        return self._all.tokens / self._all.cost if self._all.cost and self._all.tokens else 1.0

    def estimate(self, principal: str, cost: float) -> float:
        """Tokens that a request will take that asks for so many. All of them while nothing is
        known."""
        prior_cost, prior_tokens = FEW * cost, FEW * cost * self.part
        if (habit := self._by_principal.get(principal)) is not None:
            prior_cost, prior_tokens = prior_cost + habit.cost, prior_tokens + habit.tokens
        return cost * min(1.0, prior_tokens / prior_cost) if prior_cost else cost

    def add(self, principal: str, cost: float, tokens: float) -> None:
        """A request took so many of those that it asked for."""
        own = self._by_principal.pop(principal, None) or _Habit()
        self._by_principal[principal] = own  # now the newest
        if len(self._by_principal) > MAX_PRINCIPALS:
            del self._by_principal[next(iter(self._by_principal))]
        for habit in (self._all, own):
            habit.cost += cost
            habit.tokens += tokens
            habit.requests += 1
            habit.squares += tokens**2

    def charge(self, principal: str, difference: float) -> float:
        """What to charge now that a request took so much more than it was charged with (less, if
        negative): what the principal owes beyond chance.

        Charged at once, each end would change the order of those that wait, and what they were told
        of it would be wrong. In the long run nothing is lost: longer answers raise what is expected
        of the next ones, and what is always more than expected is no chance.
        """
        habit = self._by_principal.get(principal)
        if habit is None:
            return difference
        habit.owed += difference
        variance = FEW * self._all.variance + habit.requests * habit.variance
        variance *= habit.requests / (FEW + habit.requests)
        most = CHANCE * math.sqrt(variance)
        charge = habit.owed - max(-most, min(most, habit.owed))
        habit.owed -= charge
        return charge

    def measure(self, seconds: float) -> None:
        """Account for the seconds since the last call."""
        part = math.exp(-seconds / PART_MEMORY_S)
        for habit in (self._all, *self._by_principal.values()):
            habit.cost, habit.tokens = habit.cost * part, habit.tokens * part
            habit.requests, habit.squares = habit.requests * part, habit.squares * part
            habit.owed *= part
        self._by_principal = {
            name: habit for name, habit in self._by_principal.items() if habit.cost >= LEAST
        }
