"""What the requests of each principal make of what they ask for, and how fast they come (pure).

A request says only what it may take. Charged with that, a principal would be behind all others
while its answers run, and far before them when they end shorter than they might have; so the order
of those that wait would change with every end. What its earlier requests made is nearer to what the
next one will.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

from tailrace.fair_queue import waits_of
from worker.arrival_rates import Arrivals, Spans, agreeing

# Seconds until what requests made of what they asked for counts e times less.
PART_MEMORY_S: Final = 300.0
# So many requests of a principal weigh as much as what is known of all others.
FEW: Final = 30
# What requests took more or less than they were charged with is chance up to so many standard
# deviations of their sum.
CHANCE: Final = 2.0
LEAST: Final = 1.0  # tokens; what counts less is forgotten
KEPT: Final = 2_000  # principals; above it those are forgotten that asked longest ago


@dataclass(slots=True)
class _Habit:
    """Of one principal, in tokens.

    Attributes:
        name: under which gateways tell of it.
        asked, used: what requests that have ended asked for and took.
        came: the requests that came or would have come, by rank of their class.
        ended: number of those that have ended.
        squares: sum of the squares of what each of them took.
        owed: what they took more than they were charged with, as far as that may be chance.
    """

    name: str = ""
    asked: float = 0.0
    used: float = 0.0
    came: dict[int, Arrivals] = field(default_factory=dict)
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
        _of: of each that is remembered, the one that asked last at the end.
        _named: those of them that gateways may tell of, by their names there.
        _spans: the seconds in which requests came.
        _agreeing: how far the rates of principals move, by rank (`arrival_rates.agreeing`).
    """

    _all: _Habit = field(default_factory=_Habit)
    _of: dict[str, _Habit] = field(default_factory=dict)
    _named: dict[str, _Habit] = field(default_factory=dict)
    _spans: Spans = field(default_factory=Spans)
    _agreeing: dict[int, float] = field(default_factory=dict)

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

    def came(self, principal: str, rank: int, asked: float) -> None:
        """A request came that asks for so many tokens."""
        own = self._of.pop(principal, None)
        if own is None:
            own = _Habit(waits_of(principal))
            self._named[own.name] = own
        self._of[principal] = own  # now the newest
        if len(self._of) > KEPT:
            self._named.pop(self._of.pop(next(iter(self._of))).name, None)
        for habit in (self._all, own):
            habit.came.setdefault(rank, Arrivals()).add(asked)

    def turned_away(self, rank: int, name: str, number: float, asked: float) -> None:
        """So many requests of a class, which ask for so many tokens together, would have come here
        but for a gateway.

        Args:
            name: of the principal (`fair_queue.waits_of`); empty: all principals together.
        """
        habit = self._named.get(name) if name else self._all
        if habit is not None:
            habit.came.setdefault(rank, Arrivals()).add(asked, number)

    def ended(self, principal: str, asked: float, used: float) -> None:
        """A request took so many of those that it asked for."""
        for habit in (self._all, self._of.get(principal)):
            if habit is not None:
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

    def rate(self, principal: str, rank: int) -> float:
        """Tokens per second that its requests of a class are expected to take."""
        habit = self._of.get(principal)
        came = habit.came.get(rank) if habit is not None else None
        if came is None:
            return 0.0
        per_s = came.rate(self._spans).moved(self._agreeing.get(rank, 0.0))
        return per_s * self.expected(principal, came.each)

    def rate_of_all(self, rank: int) -> float:
        """The same of all principals."""
        came = self._all.came.get(rank)
        return came.rate(self._spans).per_s * self.expected("", came.each) if came else 0.0

    def measure(self, seconds: float) -> None:
        """Account for the seconds since the last call."""
        part, fades = math.exp(-seconds / PART_MEMORY_S), self._spans.pass_by(seconds)
        for habit in (self._all, *self._of.values()):
            habit.asked, habit.used = habit.asked * part, habit.used * part
            habit.ended, habit.squares = habit.ended * part, habit.squares * part
            habit.owed *= part
            for came in habit.came.values():
                came.fade(fades)
        self._of = {
            name: habit
            for name, habit in self._of.items()
            if habit.asked >= LEAST or any(came.tokens >= LEAST for came in habit.came.values())
        }
        self._named = {habit.name: habit for habit in self._of.values()}
        for rank, came in self._all.came.items():
            rates = (h.came[rank].rate(self._spans) for h in self._of.values() if rank in h.came)
            self._agreeing[rank] = agreeing(came.rate(self._spans).per_s, rates)
