"""How long requests hold an engine slot, and when used slots become free (pure).

A mean describes neither. Where a few answers are much longer than the others, they hold half of the
slots: a queue moves fast until they have begun, slowly while they run, and fast again when they
end. So the distribution of lengths is measured. With the age of each used slot it gives the number
of requests that can start by a given time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

LEAST_S: Final = 0.01
PER_DOUBLING: Final = 4
BUCKETS: Final = 100  # the last one begins at four days
FADED: Final = 0.01  # a smaller count is dropped


class _Ends(NamedTuple):
    """A part of all requests releases its slot after `seconds` on average, and before `edge`
    seconds."""

    edge: float
    seconds: float
    part: float


class HoldTimes:
    """Counts of how long slots were held, the newer the heavier.

    Attributes:
        _counts: by bucket of length; each bucket is 2^(1/4) times as long as the one before.
        _seconds: the sum of its lengths.
    """

    def __init__(self) -> None:
        self._counts = [0.0] * BUCKETS
        self._seconds = [0.0] * BUCKETS

    def __bool__(self) -> bool:
        """Whether anything is known."""
        return any(self._counts)

    def add(self, seconds: float) -> None:
        """A slot was held for this time."""
        bucket = _bucket(seconds)
        self._counts[bucket] += 1
        self._seconds[bucket] += max(seconds, LEAST_S)

    def fade(self, weight: float) -> None:
        """Multiply all counts by `weight`."""
        for bucket, count in enumerate(self._counts):
            if count:
                factor = weight if count * weight > FADED else 0.0
                self._counts[bucket] *= factor
                self._seconds[bucket] *= factor

    def expected_starts(
        self, ages: Sequence[float], step_s: float, steps: int, paused_ages: Sequence[float] = ()
    ) -> list[float]:
        """How many requests can start in 1, 2, … `steps` steps while the queue is not empty.

        The expectation, by the renewal equation: a free slot is used at once, and becomes free
        again after one more length.

        Args:
            ages: for how many seconds each slot in use has been held.
            paused_ages: for how many seconds each paused response has held a slot.
        """
        ends, unknown = self._ends((*ages, *paused_ages))
        lengths = _lengths(ends, unknown, (*ages, *paused_ages))
        releases = [0.0] * (steps + 1)
        for age in ages:
            for seconds, part in _remaining(age, ends, unknown):
                for step, share in _spread(seconds / step_s):
                    if step <= steps:
                        releases[step] += part * share
        again: dict[int, float] = {}
        for seconds, part in lengths:
            for step, share in _spread(seconds / step_s):
                again[step] = again.get(step, 0.0) + part * share
        at_once = again.pop(0, 0.0)
        counts: list[float] = []
        for step, count in enumerate(releases):
            count += sum(part * counts[step - lag] for lag, part in again.items() if lag <= step)
            counts.append(count / (1 - at_once))
        sums, before = list[float](), 0.0
        for count in counts:  # half of the starts around a step come before it
            sums.append(before + count / 2)
            before += count
        return sums[1:]

    def mean(self, ages: Sequence[float]) -> float:
        """Mean seconds that a slot is held. `ages`: of all requests that have not ended."""
        return sum(seconds * part for seconds, part in _lengths(*self._ends(ages), ages))

    def _ends(self, ages: Sequence[float]) -> tuple[list[_Ends], float]:
        """The ends of all requests as parts, and the part whose end is unknown.

        By Kaplan and Meier (1958): a request that has not ended shows that it is not shorter.
        Without these, an answer that is longer than all before would count as short until it ends.

        Args:
            ages: of all requests that have not ended.
        """
        ends, unknown = list[_Ends](), 1.0
        longer = sum(self._counts)
        for bucket, count in enumerate(self._counts):
            if count:
                edge = LEAST_S * 2 ** ((bucket + 1) / PER_DOUBLING)
                ending = count / (longer + sum(age >= edge for age in ages))
                ends.append(_Ends(edge, self._seconds[bucket] / count, unknown * ending))
                unknown *= 1 - ending
                longer -= count
        return ends, max(0.0, unknown)


def _lengths(
    ends: Sequence[_Ends], unknown: float, ages: Sequence[float]
) -> list[tuple[float, float]]:
    """The seconds that slots are held, with probabilities."""
    # An unfinished request may be longer than all that ended: assume twice its age.
    oldest = max((*ages, ends[-1].edge if ends else 0.0), default=0.0)
    return [*((each.seconds, each.part) for each in ends), (2 * max(oldest, LEAST_S), unknown)]


def _remaining(age: float, ends: Sequence[_Ends], unknown: float) -> Iterator[tuple[float, float]]:
    """The remaining seconds of a slot that has been in use for `age` seconds, with
    probabilities."""
    later = [each for each in ends if each.edge > age]
    total = sum(each.part for each in later) + unknown
    if total <= 0:
        yield max(age, LEAST_S), 1.0
        return
    for each in later:
        end = each.seconds if each.seconds > age else (age + each.edge) / 2
        yield end - age, each.part / total
    yield max(age, later[-1].edge - age if later else 0.0, LEAST_S), unknown / total


def _spread(steps: float) -> tuple[tuple[int, float], tuple[int, float]]:
    """Whole steps before and after, with parts that keep the mean."""
    before = math.floor(steps)
    return (before, before + 1 - steps), (before + 1, steps - before)


def _bucket(seconds: float) -> int:
    if seconds <= LEAST_S:
        return 0
    return min(BUCKETS - 1, int(math.log2(seconds / LEAST_S) * PER_DOUBLING))
