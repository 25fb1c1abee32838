"""Where the requests stand that wait in this worker (pure)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tailrace.protocol.queue_place import Place
from worker.workload import Workload

# Requests of which a worker tells. Of those behind them it tells a bound.
MOST: Final = 1_000


def places(
    order: Iterable[tuple[str, float]], work: Workload, *, more: bool, most: int = MOST
) -> tuple[dict[str, Place], Place | None]:
    """The places of the first `most` requests, and the place behind which all others stand; None
    without others.

    Args:
        order: ids of requests and what they ask for, in the order in which they start.
        more: requests wait of which not even the id is known.
    """
    found: dict[str, Place] = {}
    asked = 0.0
    for rid, cost in order:
        if len(found) >= most:
            more = True
            break
        found[rid] = Place(len(found), _eta_s(asked, work))
        asked += cost
    return found, Place(len(found), _eta_s(asked, work)) if more else None


def _eta_s(asked: float, work: Workload) -> float | None:
    """A place comes free with every `each` tokens, so its own turn takes one more of them."""
    return (asked * work.part + work.each) / work.rate if work.rate else None
