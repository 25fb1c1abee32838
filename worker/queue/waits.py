"""How long requests wait at this worker: what goes before them over how fast it drains.

What goes before a request follows from its class and its place in the queue. Whoever waits is
expected to ask once more for as much; what else comes meanwhile is not predicted. Interactive
requests have the whole drain but for the share of batch requests, which have what interactive ones
leave, and at least their share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from tailrace.fair_queue import tenant_of
from tailrace.protocol.queue_place import Place
from worker.queue.read_ahead import Unserved
from worker.queue.slots import BATCH, STARTED, Slots
from worker.queue.starts import Starts
from worker.queue.workload import Workload

MOST: Final = 64  # principals of each class whose waits are published
MOST_PLACES: Final = 1_000  # requests whose place is published; the others get a bound
# What a principal will have asked for when a new request of another one begins, over what waits of
# it now. Under a load that goes on, the estimate with 1 was 0.63 of the true wait, with 2 and more
# 0.82 (`bench.overload`, medians). Where nothing comes any more, 2 counts at most twice what is
# ahead.
ASKS: Final = 2.0
LEAST_LEFT: Final = 0.01  # of the engine, for batch requests that have no share

SetAside = Callable[[int], Mapping[str, Iterable[tuple[str, float]]]]
"""Gives the requests of a class that were set aside (`RequestConsumer.set_aside`)."""


@dataclass(frozen=True, slots=True)
class Drain:
    """How fast a worker begins with what waits, in tokens that its engine makes.

    Attributes:
        starts: when what waits begins.
        each: tokens of a request. A place comes free with so many, so its own turn takes them.
        pausable: interactive requests with so many begin in the place of responses that make way.
        batch_share: part of the engine that batch requests have at least.
        left: part of it that interactive requests leave them.
    """

    starts: Starts
    each: float
    pausable: float = 0.0
    batch_share: float = 0.0
    left: float = 1.0

    def interactive_s(self, ahead: float) -> float:
        """Seconds until a request begins that has so much before it."""
        return self.starts.seconds(ahead + self.each - self.pausable)

    def batch_s(self, ahead: float, interactive: float) -> float:
        """The same. `ahead`: batch requests. `interactive`: the others."""
        own = ahead + self.each
        wait_s = self.starts.seconds((interactive + own) / max(self.left, LEAST_LEFT))
        if not self.batch_share:
            return wait_s
        return min(wait_s, self.starts.seconds(own / self.batch_share))


class Waits(NamedTuple):
    """How long a new request would wait, interactive and batch, in seconds: one of each known
    principal or tenant, by name, and one of any other."""

    known: dict[str, tuple[float, float]]
    others: tuple[float, float]


def drain(slots: Slots, work: Workload) -> Drain:
    """How fast this worker drains now."""
    pausable, _ = slots.making_way
    return Drain(work.starts, work.each, pausable * work.each, slots.batch_share, work.left)


def of_new(
    slots: Slots, work: Workload, unserved: Sequence[Unserved], waiting: Sequence[float]
) -> Waits:
    """The waits of new requests. `unserved`: what was not taken, by class. `waiting`: the tokens
    that all of each class will make that waits."""
    rates = drain(slots, work)
    (interactive, known), (batch, known_batch) = (
        slots.ahead(rank, left.aside, work.part, MOST, ASKS) for rank, left in enumerate(unserved)
    )
    newcomer = replace(rates, pausable=rates.pausable + slots.given_to_new * work.each)
    started = slots.asked(STARTED) * work.part
    unread, batch_unread = (left.unread * work.each for left in unserved)
    share = slots.batch_share / (1 - slots.batch_share)

    def waits(ahead: float, batch_ahead: float, rates: Drain = rates) -> tuple[float, float]:
        first = started + unread + ahead
        return (
            rates.interactive_s(first + min(waiting[BATCH], share * first)),
            rates.batch_s(batch_unread + batch_ahead, waiting[0]),
        )

    def ahead(name: str) -> tuple[float, float]:
        tenant = tenant_of(name)
        return (
            known.get(name, known.get(tenant, interactive)),
            known_batch.get(name, known_batch.get(tenant, batch)),
        )

    names = dict.fromkeys((*known, *known_batch))
    return Waits({name: waits(*ahead(name)) for name in names}, waits(interactive, batch, newcomer))


def places(
    slots: Slots,
    work: Workload,
    set_aside: SetAside,
    unserved: Sequence[Unserved],
    most: int = MOST_PLACES,
) -> tuple[dict[str, Place], Place | None]:
    """The places of the first `most` requests, and the place behind which all others stand; None
    without others.

    Args:
        unserved: what was not taken, by class.
    """
    rates, found = drain(slots, work), dict[str, Place]()
    asides = [left.aside for left in unserved]
    times = {rank: slots.times(rank, aside, work.part) for rank, aside in enumerate(asides)}
    times[STARTED] = slots.times(STARTED, {}, work.part)
    interactive = batch = 0.0

    def place(rank: int) -> Place:
        eta_s = None
        if work.rate and rank == BATCH:
            eta_s = rates.batch_s(batch, interactive)
        elif work.rate:
            eta_s = rates.interactive_s(interactive + batch)
        return Place(len(found), eta_s)

    rank, more = STARTED, any(left.unread for left in unserved)
    for rid, _, charge, rank in slots.order(set_aside):
        if len(found) >= most:
            more = True
            break
        found[rid] = place(rank)
        if rank == BATCH:
            batch += charge * times[rank]
        else:
            interactive += charge * times[rank]
    return found, place(rank) if more else None
