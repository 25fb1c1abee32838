"""How many tokens requests of each principal use of those they may use (pure).

A request states only its limit. A principal that is charged with the limit would be last while its
answers run, and far ahead when they end early, so every end would change the order of the queue.
What its earlier requests used predicts the next one better.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

# Seconds until a measurement counts e times less.
PART_MEMORY_S: Final = 300.0
# This many requests of a principal weigh as much as the average of all principals.
FEW: Final = 30
# A difference between use and charge counts as chance up to this many standard deviations of the
# sum.
CHANCE: Final = 2.0
LEAST: Final = 1.0  # tokens; an entry below it is dropped
MAX_PRINCIPALS: Final = (
    2_000  # principals; above it the one whose last request ended first is dropped
)


@dataclass(slots=True)
class _Habit:
    """What one principal's requests ask for and take, in tokens.

    Attributes:
        cost, tokens: what ended requests were allowed to use, and what they used.
        requests: number of ended requests.
        squares: sum of the squares of the tokens of each request.
        owed: use above the charge that still counts as chance.
    """

    cost: float = 0.0
    tokens: float = 0.0
    requests: float = 0.0
    squares: float = 0.0
    owed: float = 0.0

    @property
    def variance(self) -> float:
        """Variance of the tokens of one request; 0 while none has ended."""
        mean = self.tokens / self.requests if self.requests else 0.0
        return max(0.0, self.squares / self.requests - mean**2) if self.requests else 0.0


@dataclass(slots=True)
class Demand:
    """Measurements of one worker, the newer the heavier.

    Attributes:
        _all: of all principals.
        _by_principal: the principal whose request ended last is at the end.
    """

    _all: _Habit = field(default_factory=_Habit)
    _by_principal: dict[str, _Habit] = field(default_factory=dict)

    @property
    def part(self) -> float:
        """The used part of what requests may use; 1 while nothing is known."""
        return self._all.tokens / self._all.cost if self._all.cost and self._all.tokens else 1.0

    def estimate(self, principal: str, cost: float) -> float:
        """Tokens that a request with this cost will use; the whole cost while nothing is known."""
        prior_cost, prior_tokens = FEW * cost, FEW * cost * self.part
        if (habit := self._by_principal.get(principal)) is not None:
            prior_cost, prior_tokens = prior_cost + habit.cost, prior_tokens + habit.tokens
        return cost * min(1.0, prior_tokens / prior_cost) if prior_cost else cost

    def add(self, principal: str, cost: float, tokens: float) -> None:
        """A request has ended: it used `tokens` of its `cost`."""
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
        """What to charge now for a request that used `difference` tokens more than its charge (less
        if negative): the part of the debt that exceeds chance.

        If all of it were charged at once, each end would change the order of the queue and make
        published waits wrong. In the long run nothing is lost: longer answers raise the estimate of
        the next ones, and a constant excess soon exceeds chance.
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
