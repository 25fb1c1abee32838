"""Estimated waits compared with true waits."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from bench import measure, overload_figures


class Estimate(NamedTuple):
    """A published place in the queue. `eta_s`: None if there was none. `at_least`: both are
    lower bounds."""

    at: float
    position: int
    eta_s: float | None
    at_least: bool = False


@dataclass(frozen=True, slots=True)
class Wait:
    """One request that was taken. Times are seconds of one clock.

    Attributes:
        sent_at: when it was sent.
        started: when a worker had it.
        estimates: its places, in the order of their arrival.
        refusal_s: the wait in the refusal of a request of its principal and class, which was
            refused just before; None without one.
    """

    group: overload_figures.Group
    sent_at: float
    started: float
    estimates: Sequence[Estimate] = ()
    refusal_s: float | None = None


def figures(waited: Iterable[Wait]) -> dict[str, float]:
    """The figures of one class."""
    every = list(waited)
    places = [[estimate for estimate in each.estimates if not estimate.at_least] for each in every]
    bounds = [[estimate for estimate in each.estimates if estimate.at_least] for each in every]
    refusals = [
        (r, each.started - each.sent_at) for each in every if (r := each.refusal_s) is not None
    ]
    steps = [b.position - a.position for each in places for a, b in itertools.pairwise(each)]
    waits = [each.started - each.sent_at for each in every]
    return {
        **{f"wait_p{p}_s": measure.percentile(waits, p) for p in (50, 90)},
        **overload_figures.estimates(
            "first_eta", _pairs(every, [estimate[:1] for estimate in places])
        ),
        **overload_figures.estimates(
            "later_eta", _pairs(every, [estimate[1:] for estimate in places])
        ),
        **overload_figures.estimates("bound", _pairs(every, bounds)),
        "position_steps": float(len(steps)),
        "position_rises": float(sum(step > 0 for step in steps)),
        **overload_figures.estimates("refusal", refusals),
    }


def _pairs(
    every: Iterable[Wait], estimates: Iterable[Iterable[Estimate]]
) -> list[tuple[float, float]]:
    return [
        (place.eta_s, each.started - place.at)
        for each, places in zip(every, estimates, strict=True)
        for place in places
        if place.eta_s is not None
    ]
