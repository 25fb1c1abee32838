"""Where the requests stand that wait in this worker (pure)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from tailrace.protocol.queue_place import Place
from worker.workload import Workload

# Requests of which a worker tells. Of those behind them it tells a bound.
MOST: Final = 1_000


class Waiting(NamedTuple):
    """A request that waits. `rank`: of its class. `turn`: virtual time at which its turn comes.
    `tokens`: that it will take."""

    rid: str
    rank: int
    turn: float
    tokens: float


def places(
    order: Iterable[Waiting],
    work: Workload,
    later_s: Callable[[int, float], float],
    *,
    more: bool,
    most: int = MOST,
) -> tuple[dict[str, Place], Place | None]:
    """The places of the first `most` requests, and the place behind which all others stand; None
    without others.

    Args:
        order: in which they start.
        later_s: gives the seconds by which requests that come meanwhile delay one, by its rank and
            its turn.
        more: requests wait of which not even the id is known.
    """
    found: dict[str, Place] = {}
    ahead = 0.0

    def eta_s(rank: int, turn: float) -> float | None:
        if not work.rate:
            return None
        # A place comes free with every `each` tokens, so its own turn takes one more of them.
        return work.starts.seconds(ahead + work.each) + later_s(rank, turn)

    last = 0, 0.0
    for each in order:
        last = each.rank, each.turn
        if len(found) >= most:
            more = True
            break
        found[each.rid] = Place(len(found), eta_s(*last))
        ahead += each.tokens
    return found, Place(len(found), eta_s(*last)) if more else None
