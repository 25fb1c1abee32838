"""Where the requests stand that wait in this worker (pure)."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from tailrace.protocol.queue_place import Place
from worker import told_waits
from worker.read_ahead import Unserved
from worker.slots import STARTED, Slots
from worker.workload import Workload

SetAside = Callable[[int], Mapping[str, Iterable[tuple[str, float]]]]
"""Gives the requests of a class that were set aside (`RequestConsumer.set_aside`)."""

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


def places_at(
    slots: Slots, work: Workload, set_aside: SetAside, unserved: Sequence[Unserved]
) -> tuple[dict[str, Place], Place | None]:
    """See `places`. `unserved`: what was not taken, by class."""
    queues = told_waits.queues(slots, work, unserved)
    order = [*itertools.islice(_order(slots, work, set_aside, queues), MOST + 1)]
    curves = [
        told_waits.Curve(queues, rank, [each.turn for each in order if each.rank == rank])
        for rank in range(len(queues.turns))
    ]
    return places(
        order,
        work,
        lambda rank, turn: 0.0 if rank == STARTED else curves[rank].at(turn).more,
        more=any(left.unread for left in unserved),
    )


def _order(
    slots: Slots, work: Workload, set_aside: SetAside, queues: told_waits.Queues
) -> Iterator[Waiting]:
    times = {rank: turns.times for rank, turns in enumerate(queues.turns)}
    times[STARTED] = slots.times(STARTED, {}, work.part)
    before: dict[tuple[int, str], float] = defaultdict(float)
    for rid, flow, charge, rank in slots.order(set_aside):
        turn, of = 0.0, (rank, flow.tenant)
        if rank != STARTED:
            turn = queues.turns[rank].behind(flow.tenant, before[of])
        yield Waiting(rid, rank, turn, charge * times[rank])
        before[of] += charge
