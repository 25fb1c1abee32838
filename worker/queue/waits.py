"""How long requests wait at this worker: the work before them, divided by the drain rate.

The work before a request depends on its class and its queue position. Each waiting principal is
assumed to send the same work once more; other arrivals are not predicted. Interactive requests have
the whole drain except the share of batch requests. Batch requests have the rest, and at least their
share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from tailrace.fair_queue import tenant_of
from tailrace.protocol.queue_place import Place
from worker.queue.read_ahead import Overflow
from worker.queue.slots import BATCH, STARTED, Slots
from worker.queue.start_forecast import StartForecast
from worker.queue.workload import Workload

MOST: Final = 64  # principals of each class whose waits are published
MOST_PLACES: Final = 1_000  # requests whose position is published; the others get a bound
# Factor for the work of a principal that waits, at the time when a new request of another principal
# starts. Under constant load the estimate with 1 was 0.63 of the true wait, with 2 and more 0.82
# (`bench.overload`, medians). Without arrivals, 2 counts at most twice the work before it.
ASKS: Final = 2.0
LEAST_BATCH_PART: Final = 0.01  # of the engine, for batch requests that have no share

SetAside = Callable[[int], Mapping[str, Iterable[tuple[str, float]]]]
"""Gives the requests of a class that were set aside (`RequestConsumer.set_aside`)."""


@dataclass(frozen=True, slots=True)
class Drain:
    """How fast a worker starts queued work, in generated tokens.

    Attributes:
        forecast: when queued work starts.
        each: tokens of one request. A slot becomes free after this many.
        pausable: tokens of interactive requests that start in slots of preempted responses.
        batch_share: least part of the engine for batch requests.
        batch_part: part of it that interactive requests leave to batch requests.
    """

    forecast: StartForecast
    each: float
    pausable: float = 0.0
    batch_share: float = 0.0
    batch_part: float = 1.0

    def interactive_s(self, ahead: float) -> float:
        """Seconds until a request starts with this work before it."""
        return self.forecast.seconds(ahead + self.each - self.pausable)

    def batch_s(self, ahead: float, interactive: float) -> float:
        """Like `interactive_s`. `ahead`: batch work. `interactive`: other work."""
        own = ahead + self.each
        wait_s = self.forecast.seconds((interactive + own) / max(self.batch_part, LEAST_BATCH_PART))
        if not self.batch_share:
            return wait_s
        return min(wait_s, self.forecast.seconds(own / self.batch_share))


class Waits(NamedTuple):
    """How long a new request would wait, interactive and batch, in seconds: one of each known
    principal or tenant, by name, and one of any other."""

    by_name: dict[str, tuple[float, float]]
    others: tuple[float, float]


def drain(slots: Slots, work: Workload) -> Drain:
    """How fast this worker drains now."""
    pausable, _ = slots.preemptible
    return Drain(work.forecast, work.each, pausable * work.each, slots.batch_share, work.batch_part)


def new_request_waits(
    slots: Slots, work: Workload, overflows: Sequence[Overflow], waiting: Sequence[float]
) -> Waits:
    """The waits of new requests. `overflows`: by class. `waiting`: tokens that the queued requests
    of each class will generate."""
    rates = drain(slots, work)
    (interactive, interactive_by_name), (batch, batch_by_name) = (
        slots.work_before(rank, overflow.aside, work.part, MOST, ASKS)
        for rank, overflow in enumerate(overflows)
    )
    newcomer = replace(rates, pausable=rates.pausable + slots.newcomer_slots * work.each)
    started_tokens = slots.waiting_cost(STARTED) * work.part
    unread, batch_unread = (overflow.unread * work.each for overflow in overflows)
    share = slots.batch_share / (1 - slots.batch_share)

    def waits(costs_before: float, batch_ahead: float, rates: Drain = rates) -> tuple[float, float]:
        first = started_tokens + unread + costs_before
        return (
            rates.interactive_s(first + min(waiting[BATCH], share * first)),
            rates.batch_s(batch_unread + batch_ahead, waiting[0]),
        )

    def costs_before(name: str) -> tuple[float, float]:
        tenant = tenant_of(name)
        return (
            interactive_by_name.get(name, interactive_by_name.get(tenant, interactive)),
            batch_by_name.get(name, batch_by_name.get(tenant, batch)),
        )

    names = dict.fromkeys((*interactive_by_name, *batch_by_name))
    return Waits(
        {name: waits(*costs_before(name)) for name in names}, waits(interactive, batch, newcomer)
    )


def places(
    slots: Slots,
    work: Workload,
    set_aside: SetAside,
    overflows: Sequence[Overflow],
    most: int = MOST_PLACES,
) -> tuple[dict[str, Place], Place | None]:
    """The positions of the first `most` requests, and a lower bound for all others; None without
    others.

    Args:
        overflows: by class.
    """
    rates, by_id = drain(slots, work), dict[str, Place]()
    asides = [overflow.aside for overflow in overflows]
    ratios = {rank: slots.charge_ratio(rank, aside, work.part) for rank, aside in enumerate(asides)}
    ratios[STARTED] = slots.charge_ratio(STARTED, {}, work.part)
    interactive = batch = 0.0

    def place(rank: int) -> Place:
        eta_s = None
        if work.rate and rank == BATCH:
            eta_s = rates.batch_s(batch, interactive)
        elif work.rate:
            eta_s = rates.interactive_s(interactive + batch)
        return Place(len(by_id), eta_s)

    rank, more = STARTED, any(overflow.unread for overflow in overflows)
    for rid, _, charge, rank in slots.order(set_aside):
        if len(by_id) >= most:
            more = True
            break
        by_id[rid] = place(rank)
        if rank == BATCH:
            batch += charge * ratios[rank]
        else:
            interactive += charge * ratios[rank]
    return by_id, place(rank) if more else None
