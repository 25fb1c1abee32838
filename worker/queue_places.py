"""Where the requests stand that wait in this worker (pure)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tailrace.protocol import topics
from tailrace.protocol.queue_place import Place, batch_ahead
from worker.workload import Workload

# Requests of which a worker tells. Of those behind them it tells a bound.
MOST: Final = 1_000
BATCH: Final = topics.CLASSES.index("batch")


def places(
    order: Iterable[tuple[str, float, int]],
    work: Workload,
    *,
    batch_share: float,
    more: bool,
    most: int = MOST,
) -> tuple[dict[str, Place], Place | None]:
    """The places of the first `most` requests, and the place behind which all others stand; None
    without others.

    Args:
        order: ids of requests, what they ask for, and their ranks, in the order in which they
            start.
        batch_share: part of all tokens that batch requests get at least.
        more: requests wait of which not even the id is known.
    """
    found: dict[str, Place] = {}
    asked = of_batch = 0.0

    def eta_s(rank: int) -> float | None:
        if not work.rate:
            return None
        # A place comes free with every `each` tokens, so its own turn takes one more of them.
        ahead = asked * work.part + work.each
        if rank >= BATCH:
            ahead = batch_ahead(
                ahead,
                of_batch * work.part + work.each,
                interactive_share=work.interactive_rate / work.rate,
                batch_share=batch_share,
            )
        return work.starts.seconds(ahead)

    rank = 0
    for rid, cost, rank in order:
        if len(found) >= most:
            more = True
            break
        found[rid] = Place(len(found), eta_s(rank))
        asked += cost
        of_batch += cost if rank >= BATCH else 0.0
    return found, Place(len(found), eta_s(rank)) if more else None
