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
KEPT: Final = 2_000  # principals; above it those are forgotten whose last request ended first


@dataclass(slots=True)
class _Habit:
    """Of one principal, in tokens.

    Attributes:
        asked, used: what requests that have ended asked for and took.
        ended: number of those that have ended.
        squares: sum of the squares of what each of them took.
        owed: what they took more than they were charged with, as far as that may be chance.
    """

    asked: float = 0.0
    used: float = 0.0
    ended: float = 0.0
    squares: float = 0.0
    owed: float = 0.0

    @property
    def variance(self) -> float:
        """Of what one of them took; 0 while none has ended."""
        mean = self.used / self.ended if self.ended else 0.0
        return max(0.0, self.squares / self.ended - mean**2) if self.ended else 0.0


@dataclass(slots=True)
class Demand:
    """Measurements of one worker, the newer the heavier.

    Attributes:
        _all: of all principals.
        _of: of each that is remembered, the one whose request ended last at the end.
    """

    _all: _Habit = field(default_factory=_Habit)
    _of: dict[str, _Habit] = field(default_factory=dict)

    @property
    def part(self) -> float:
        """Of what requests asked for, that which they took; 1 while nothing is known."""
        return self._all.used / self._all.asked if self._all.asked and self._all.used else 1.0

    def expected(self, principal: str, asked: float) -> float:
        """Tokens that a request will take that asks for so many. All of them while nothing is
        known."""
        asked_before, used = FEW * asked, FEW * asked * self.part
        if (habit := self._of.get(principal)) is not None:
            asked_before, used = asked_before + habit.asked, used + habit.used
        return asked * min(1.0, used / asked_before) if asked_before else asked

    def ended(self, principal: str, asked: float, used: float) -> None:
        """A request took so many of those that it asked for."""
        own = self._of.pop(principal, None) or _Habit()
        self._of[principal] = own  # now the newest
        if len(self._of) > KEPT:
            del self._of[next(iter(self._of))]
        for habit in (self._all, own):
            habit.asked += asked
            habit.used += used
            habit.ended += 1
            habit.squares += used**2

    def due(self, principal: str, difference: float) -> float:
        """What to charge now that a request took so much more than it was charged with (less, if
        negative): what the principal owes beyond chance.

        Charged at once, each end would change the order of those that wait, and what they were told
        of it would be wrong. In the long run nothing is lost: longer answers raise what is expected
        of the next ones, and what is always more than expected is no chance.
        """
        habit = self._of.get(principal)
        if habit is None:
            return difference
        habit.owed += difference
        variance = FEW * self._all.variance + habit.ended * habit.variance
        variance *= habit.ended / (FEW + habit.ended)
        most = CHANCE * math.sqrt(variance)
        due = habit.owed - max(-most, min(most, habit.owed))
        habit.owed -= due
        return due

    def measure(self, seconds: float) -> None:
        """Account for the seconds since the last call."""
        part = math.exp(-seconds / PART_MEMORY_S)
        for habit in (self._all, *self._of.values()):
            habit.asked, habit.used = habit.asked * part, habit.used * part
            habit.ended, habit.squares = habit.ended * part, habit.squares * part
            habit.owed *= part
        self._of = {name: habit for name, habit in self._of.items() if habit.asked >= LEAST}
