"""Which waiting requests a worker offers to idle workers, and which offers an idle worker accepts
(pure; docs/design/turns.md, Stealing)."""

from __future__ import annotations

import bisect
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final, NamedTuple

import msgspec

from tailrace.protocol import ids
from worker.queue.start_forecast import StartForecast

MAX_PLACES: Final = 64
MAX_FIGURE: Final = 1e9

# (rank, partition, offset)
At = tuple[int, int, int]

_Figure = Annotated[float, msgspec.Meta(ge=0, le=MAX_FIGURE)]


class Place(msgspec.Struct, frozen=True, array_like=True):
    """A request that waits.

    Attributes:
        rank: of its priority class.
        offset: in the request topic of its class.
        flow: number of its principal within the offer.
        wait_s: estimated time until it starts.
        tokens: estimated tokens.
    """

    rank: Annotated[int, msgspec.Meta(ge=0, le=9)]
    partition: Annotated[int, msgspec.Meta(ge=0, le=ids.MAX_PARTITION)]
    offset: Annotated[int, msgspec.Meta(ge=0, le=2**62)]
    flow: Annotated[int, msgspec.Meta(ge=0)]
    wait_s: _Figure
    tokens: _Figure

    @property
    def at(self) -> At:
        """Where it lies."""
        return self.rank, self.partition, self.offset


class Offer(msgspec.Struct, frozen=True):
    """What one worker offers.

    Attributes:
        like: digest of what the worker serves; only an equal worker accepts its offers.
        length: tokens of its model's context; a worker with a shorter one accepts nothing.
        pace: tokens per second of one response there; 0 where it was not measured.
    """

    like: Annotated[str, msgspec.Meta(max_length=64)]
    length: Annotated[int, msgspec.Meta(ge=0)]
    pace: _Figure
    places: Annotated[list[Place], msgspec.Meta(max_length=MAX_PLACES)]


class Waiting(NamedTuple):
    """A request that waits for a slot and that no worker has claimed."""

    rank: int
    principal: str
    cost: float
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class Speed:
    """What a worker has measured of itself (`worker.queue.workload`).

    Attributes:
        part: the used part of what a request may use.
        each: tokens that one request generates.
        forecast: when queued requests start; None before any waited.
    """

    part: float
    each: float
    forecast: StartForecast | None

    def wait_s(self, cost_before: float) -> float:
        """Time until a request starts that is queued after others with `cost_before` tokens. 0
        while nothing was measured."""
        if self.forecast is None:
            return 0.0
        if not self.forecast.rate:
            return math.inf
        return self.forecast.seconds(cost_before * self.part + self.each)


def select_offers(
    waiting: Sequence[Waiting], before: float, speed: Speed, after_s: float
) -> list[Place]:
    """Places of the requests that will wait for longer than `after_s`, at most MAX_PLACES.

    Lower ranks come first. Within a rank principals alternate, and each principal's last requests
    come first. Starts are estimated as if principals had equal shares.

    Args:
        waiting: the requests of each principal in their order.
        before: cost of what is queued before all of them, in tokens.
    """
    flows = {name: n for n, name in enumerate(dict.fromkeys(each.principal for each in waiting))}
    places: list[Place] = []
    for rank in sorted({each.rank for each in waiting}):
        queues: dict[str, list[Waiting]] = defaultdict(list)
        for each in waiting:
            if each.rank == rank:
                queues[each.principal].append(each)
        turn = _Turn([[each.cost for each in queue] for queue in queues.values()], before)
        late = [
            _late(queue, flows[name], turn, speed, after_s, MAX_PLACES - len(places))
            for name, queue in queues.items()
        ]
        for row in itertools.zip_longest(*late):
            row_places = [place for place in row if place is not None]
            places += sorted(row_places, key=lambda place: -place.wait_s)
        if len(places) >= MAX_PLACES:
            return places[:MAX_PLACES]
        before = turn.total
    return places


class _Turn:
    """The cost of what is queued before a request of one rank, in tokens.

    Attributes:
        total: cost before the next rank.
    """

    def __init__(self, costs: Sequence[Sequence[float]], before: float) -> None:
        self._totals = sorted(map(sum, costs))
        self._sums = [0.0, *itertools.accumulate(self._totals)]
        self._before = before
        self.total = before + self._sums[-1]

    def cost_before(self, own: float, cost: float, total: float) -> float:
        """The cost before a request of this cost, after `own` tokens of its principal's `total`."""
        until = own + cost / 2  # half of the principals with as much go first
        less = bisect.bisect_left(self._totals, until)
        everyone = self._sums[less] + until * (len(self._totals) - less)
        return self._before + own + everyone - min(total, until)


def _late(
    queue: Sequence[Waiting], flow: int, turn: _Turn, speed: Speed, after_s: float, most: int
) -> list[Place]:
    """One principal's requests that wait for longer than `after_s`, the last one first."""
    total = own = sum(each.cost for each in queue)
    places: list[Place] = []
    for each in itertools.islice(reversed(queue), most):
        own -= each.cost
        wait_s = speed.wait_s(turn.cost_before(own, each.cost, total))
        if wait_s <= after_s:
            break
        tokens = min(each.cost * speed.part, MAX_FIGURE)
        place = Place(each.rank, each.partition, each.offset, flow, min(wait_s, MAX_FIGURE), tokens)
        places.append(place)
    return places


def select_places(
    offers: Mapping[str, Offer],
    *,
    like: str,
    length: int,
    pace: float,
    free: int,
    recent: Collection[At],
    below: Callable[[int], int],
) -> list[Place]:
    """At most `free` of the offered places: lower ranks first, principals alternate.

    Args:
        offers: by worker, without the own one.
        like, length, pace: of this worker (see `Offer`).
        recent: places that were accepted a moment ago.
        below: gives a random number below its argument.
    """
    flows: dict[tuple[int, str, int], list[Place]] = defaultdict(list)
    for name, offer in offers.items():
        if offer.like != like or offer.length > length:
            continue
        for place in offer.places:
            if place.at not in recent and _pays(place, offer.pace, pace):
                flows[place.rank, name, place.flow].append(place)
    places: list[Place] = []
    for rank in sorted({rank for rank, _, _ in flows}):
        queues = [queue for (of, _, _), queue in flows.items() if of == rank]
        while queues and len(places) < free:
            turns = _shuffle(queues, below)[: free - len(places)]
            places += [queue.pop(below(len(queue))) for queue in turns]
            queues = [queue for queue in queues if queue]
    return places


def _pays(place: Place, there: float, here: float) -> bool:
    """Whether it ends here no later than there. True while either pace is unknown."""
    if not there or not here:
        return True
    return place.tokens / here <= place.wait_s + place.tokens / there


def _shuffle(queues: Sequence[list[Place]], below: Callable[[int], int]) -> list[list[Place]]:
    remaining = list(queues)
    return [remaining.pop(below(len(remaining))) for _ in range(len(remaining))]
