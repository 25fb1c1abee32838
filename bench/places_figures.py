"""What was told of a wait, beside the wait that was."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from bench import measure, overload_figures


class Told(NamedTuple):
    """A place in the queue, as it was told. `eta_s`: None where none was told. `at_least`: both are
    lower bounds."""

    at: float
    position: int
    eta_s: float | None
    at_least: bool = False


@dataclass(frozen=True, slots=True)
class Waited:
    """One request that was taken. Times are seconds of one clock.

    Attributes:
        asked: when it was asked.
        started: when a worker had it.
        told: its places, in the order in which they were told.
        refusal_s: the wait that a request of its principal and class was told, that was refused
            just before; None without one.
    """

    group: overload_figures.Group
    asked: float
    started: float
    told: Sequence[Told] = ()
    refusal_s: float | None = None


def of(waited: Iterable[Waited]) -> dict[str, float]:
    """The figures of one class."""
    every = list(waited)
    places = [[told for told in each.told if not told.at_least] for each in every]
    bounds = [[told for told in each.told if told.at_least] for each in every]
    refused = [
        (r, each.started - each.asked) for each in every if (r := each.refusal_s) is not None
    ]
    steps = [b.position - a.position for each in places for a, b in itertools.pairwise(each)]
    waits = [each.started - each.asked for each in every]
    return {
        **{f"wait_p{p}_s": measure.percentile(waits, p) for p in (50, 90)},
        **overload_figures.estimates("first_eta", _pairs(every, [told[:1] for told in places])),
        **overload_figures.estimates("later_eta", _pairs(every, [told[1:] for told in places])),
        **overload_figures.estimates("bound", _pairs(every, bounds)),
        "position_steps": float(len(steps)),
        "position_rises": float(sum(step > 0 for step in steps)),
        **overload_figures.estimates("refusal", refused),
    }


def _pairs(every: Iterable[Waited], told: Iterable[Iterable[Told]]) -> list[tuple[float, float]]:
    return [
        (place.eta_s, each.started - place.at)
        for each, places in zip(every, told, strict=True)
        for place in places
        if place.eta_s is not None
    ]
