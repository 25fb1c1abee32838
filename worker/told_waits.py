"""How long a new request of each principal would wait, and where those stand that wait.

Principals take turns by what each was given (`tailrace.fair_queue`), so what is ahead of a new
request depends on whose it is. It begins at a virtual time: when its principal's turn comes after
all that waits of itself. Of every other principal goes before it what waits, and what comes
meanwhile, as far as that one's turn comes earlier.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tailrace.fair_queue import Share, Standing
from tailrace.protocol.queue_place import Place
from worker.ahead import Ahead, Part, part
from worker.queue_places import MOST as MOST_PLACES
from worker.queue_places import Waiting, places
from worker.read_ahead import Unserved
from worker.slots import BATCH, STARTED, Slots
from worker.starts import Starts
from worker.workload import Workload

MOST: Final = 64  # principals of which the waits are told
# Waits are computed at so many virtual times, and those between are interpolated; at fewer of them
# where so many tenants are looked at for all times together.
TIMES: Final = 24
FEWEST_TIMES: Final = 3
LOOKS: Final = 5_000
# A wait is found to within this part of it, and not looked for beyond so many seconds.
EXACT: Final = 0.02
LONGEST_S: Final = 3_600.0
EARLIER: Final = 1e-3  # of a request: so much before its turn nothing goes before it but others

_NEW: Final = Share(0.0, 0.0, 0)

SetAside = Callable[[int], Mapping[str, Iterable[tuple[str, float]]]]
"""Gives the requests of a class that were set aside (`RequestConsumer.set_aside`)."""


class _Sum(NamedTuple):
    """Of a tenant's principals: tokens that wait, those of one request, and tokens that come in a
    second."""

    waits: float
    each: float
    per_s: float


@dataclass(slots=True)
class Turns:
    """The queue of one class, in tokens that its requests are charged with.

    Attributes:
        now: virtual time at which a new tenant starts.
        tenants: those that are remembered.
        aside: what waits beside `tenants`, by principal.
        per_s: gives what comes of a principal in a second.
        each: of a request.
        times: what the engine makes of that.
        unread: what lies in the log before a new request, in tokens that the engine will make.
    """

    now: float
    tenants: Mapping[str, Standing]
    aside: Mapping[str, float]
    per_s: Callable[[str], float]
    each: float
    times: float = 1.0
    unread: float = 0.0
    _sums: dict[str, _Sum] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, tenant in self.tenants.items():
            shares = tenant.principals.values()
            self._sums[name] = _Sum(
                sum(self._waits(key, share) for key, share in tenant.principals.items()),
                self._each(sum(share.cost for share in shares), sum(s.length for s in shares)),
                sum(map(self.per_s, tenant.principals)),
            )

    @property
    def waiting(self) -> float:
        """All that waits."""
        return self.unread + self.times * sum(each.waits for each in self._sums.values())

    def busiest(self, most: int) -> list[tuple[str, str]]:
        """At most so many (tenant, principal): those of which most waits, then those that were
        given most."""
        flows = (
            ((self._waits(key, share), share.start), (name, key))
            for name, tenant in self.tenants.items()
            for key, share in tenant.principals.items()
        )
        return [flow for _, flow in heapq.nlargest(most, flows)]

    def crowds(self, most: int) -> list[str]:
        """At most so many tenants that may have other principals, those of which most waits."""
        crowds = (name for name, tenant in self.tenants.items() if name not in tenant.principals)
        return heapq.nlargest(most, crowds, key=lambda name: self._sums[name].waits)

    def behind(self, tenant: str, before: float) -> float:
        """The virtual time of a tenant's turn behind so much of its own."""
        found = self.tenants.get(tenant)
        return found.start + before / found.weight if found else self.now

    def turn(self, tenant: str, principal: str, seconds: float = 0.0, behind: int = 0) -> float:
        """The virtual time of a principal's next turn but for all that waits of it, if others of
        its tenant ask on for so many seconds. `behind`: so many more of its requests."""
        found = self.tenants.get(tenant)
        if found is None:
            return self.now + behind * self.each
        share = found.principals.get(principal, _NEW._replace(start=found.now))
        own = self._waits(principal, share) + behind * self._each(share.cost, share.length)
        beside = self._beside(found, principal, share.start + own)
        return found.start + (own + sum(part.by(seconds) for part in beside)) / found.weight

    def ahead(self, turn: float) -> Ahead:
        """What goes before a request whose turn comes at a virtual time."""
        sure, parts = 0.0, list[Part]()
        for name, tenant in self.tenants.items():
            if tenant.start > turn:
                continue
            sums = self._sums[name]
            gap, alone = (turn - tenant.start) * tenant.weight, len(tenant.principals) == 1
            found = part(gap, sums.waits, sums.per_s, sums.each, alone=alone)
            if found.is_sure:
                sure += found.waits
            else:
                parts.append(Part(*(self.times * value for value in found)))
        return Ahead(self.unread + self.times * sure, parts)

    def _beside(self, tenant: Standing, principal: str, turn: float) -> Iterator[Part]:
        """What goes before of the others of a tenant."""
        for key, share in tenant.principals.items():
            if key != principal and share.start <= turn:
                each = self._each(share.cost, share.length)
                yield part(turn - share.start, self._waits(key, share), self.per_s(key), each)

    def _waits(self, principal: str, share: Share) -> float:
        return share.cost + self.aside.get(principal, 0.0)

    def _each(self, cost: float, length: int) -> float:
        return cost / length if length else self.each


class Wait(NamedTuple):
    """In seconds. `more`: the part of it that is for what comes meanwhile."""

    seconds: float
    more: float


@dataclass(frozen=True, slots=True)
class Queues:
    """All that waits at a worker.

    Attributes:
        first: tokens that go before all of it.
        turns: the queues of the classes, interactive and batch.
        batch_share: part of all tokens that batch requests get at least while they wait.
        per_s: tokens of interactive requests that come in a second.
        each: tokens of a request.
        starts: when what waits begins.
        makes_way: tokens of interactive requests that can begin in the place of batch responses.
    """

    first: float
    turns: tuple[Turns, Turns]
    batch_share: float
    per_s: float
    each: float
    starts: Starts
    makes_way: float = 0.0

    def wait(self, rank: int, ahead: Ahead) -> Wait:
        """How long a request of a class waits that has so much of it ahead."""
        return self._batch(ahead) if rank == BATCH else self._interactive(ahead)

    def _interactive(self, ahead: Ahead) -> Wait:
        batch = self.turns[BATCH].waiting

        def tokens(seconds: float) -> float:
            found = self.first + ahead.by(seconds)
            found += min(batch, found * self.batch_share / (1 - self.batch_share))
            return found - self.makes_way

        return self._wait(tokens)

    def _batch(self, ahead: Ahead) -> Wait:
        interactive, per_s, share = self.turns[0].waiting, self.per_s, self.batch_share

        def left(seconds: float) -> float:
            return self.first + interactive + per_s * seconds + ahead.by(seconds)

        def shared(seconds: float) -> float:
            return self.first + (ahead.by(seconds) + self.each) / share

        if not share:
            return self._wait(left)
        return self._wait(lambda seconds: min(left(seconds), shared(seconds)))

    def _wait(self, tokens: Callable[[float], float]) -> Wait:
        """Until so many tokens have begun, which depends on when that is: what comes meanwhile
        makes the wait longer, and so more of it comes."""

        def until(seconds: float) -> float:
            return self.starts.seconds(tokens(seconds) + self.each)

        without = low = high = until(0.0)
        if math.isinf(without):
            return Wait(without, 0.0)
        while high < LONGEST_S and until(high) > high:
            low, high = high, 2 * high
        while high - low > EXACT * high:
            middle = (low + high) / 2
            if until(middle) > middle:
                low = middle
            else:
                high = middle
        seconds = (low + high) / 2
        return Wait(seconds, seconds - without)


def queues(slots: Slots, work: Workload, unserved: Sequence[Unserved]) -> Queues:
    """What waits at a worker. `unserved`: what was not taken, by class."""
    demand = slots.demand

    def turns(rank: int, left: Unserved) -> Turns:
        now, tenants = slots.standing(rank)
        times = slots.times(rank, left.aside, work.part)
        return Turns(
            now,
            tenants,
            {name: demand.expected(name, asked) for name, asked in left.aside.items()},
            lambda principal: demand.rate(principal, rank),
            work.each / times,
            times,
            left.unread * work.each,
        )

    interactive, batch = (turns(rank, left) for rank, left in enumerate(unserved))
    return Queues(
        slots.asked(STARTED) * work.part,
        (interactive, batch),
        slots.batch_share,
        interactive.times * demand.rate_of_all(0),
        work.each,
        work.starts,
        slots.making_way[0] * work.each,
    )


class Curve:
    """The waits of one class by virtual time."""

    def __init__(self, queues: Queues, rank: int, turns: Iterable[float]) -> None:
        """`turns`: times at which it is asked for."""
        self._queues, self._rank = queues, rank
        self._of = queues.turns[rank]
        ends = sorted({self._of.now, *turns})
        times = max(FEWEST_TIMES, min(TIMES, LOOKS // (len(self._of.tenants) + 1)))
        step = math.ceil(len(ends) / times)
        self._times = [*ends[:-1:step], ends[-1]]
        self._waits = [self._exactly(time) for time in self._times]

    def at(self, turn: float) -> Wait:
        """The wait of a request whose turn comes then."""
        at = bisect.bisect_left(self._times, turn)
        if at == len(self._times):
            return self._exactly(turn)
        if not at or self._times[at] == turn:
            return self._waits[at]
        (since, until), (before, after) = self._times[at - 1 : at + 1], self._waits[at - 1 : at + 1]
        if math.isinf(after.seconds):
            return after
        part = (turn - since) / (until - since)
        return Wait(*(a + (b - a) * part for a, b in zip(before, after, strict=True)))

    def _exactly(self, turn: float) -> Wait:
        return self._queues.wait(self._rank, self._of.ahead(turn))


class Next(NamedTuple):
    """How long a new request waits, in seconds. `behind_one`: so much longer does the one wait that
    comes behind it."""

    seconds: float
    behind_one: float


class Told(NamedTuple):
    """The waits of both classes, interactive and batch: `of` known principals and, for their
    others, of tenants, by name; and of all `others`."""

    of: dict[str, tuple[Next, Next]]
    others: tuple[Next, Next]


def told(queues: Queues) -> Told:
    """The waits to be told of new requests."""
    busy = [flow for turns in queues.turns for flow in turns.busiest(MOST)]
    crowds = [(tenant, tenant) for turns in queues.turns for tenant in turns.crowds(MOST)]
    flows = [*dict.fromkeys(crowds), *list(dict.fromkeys(busy))[:MOST]]

    def waits(rank: int, turns: Turns) -> list[Next]:
        ends = [turns.turn(*flow, behind=behind) for flow in flows for behind in (0, 1)]
        curve = Curve(queues, rank, ends)
        each_s = queues.starts.seconds(queues.each)

        def next_of(turn: float, behind_one: float) -> Next:
            seconds, later = curve.at(turn).seconds, curve.at(behind_one).seconds
            return Next(seconds, max(each_s, later - seconds) if later < math.inf else 0.0)

        found = [next_of(turns.now, turns.now + turns.each)]
        for flow in flows:
            until = curve.at(turns.turn(*flow)).seconds
            found.append(next_of(*(turns.turn(*flow, until, behind) for behind in (0, 1))))
        return found

    interactive, batch = (waits(rank, turns) for rank, turns in enumerate(queues.turns))
    others, *of = zip(interactive, batch, strict=True)
    return Told({name: each for (_, name), each in zip(flows, of, strict=True)}, others)


def places_at(
    slots: Slots, work: Workload, set_aside: SetAside, unserved: Sequence[Unserved]
) -> tuple[dict[str, Place], Place | None]:
    """See `places`. `unserved`: what was not taken, by class."""
    waiting = queues(slots, work, unserved)
    order = [*itertools.islice(_order(slots, work, set_aside, waiting), MOST_PLACES + 1)]
    curves = [
        Curve(waiting, rank, [each.turn for each in order if each.rank == rank])
        for rank in range(len(waiting.turns))
    ]
    return places(
        order,
        work,
        lambda rank, turn: 0.0 if rank == STARTED else curves[rank].at(turn).more,
        more=any(left.unread for left in unserved),
    )


def _order(slots: Slots, work: Workload, set_aside: SetAside, queues: Queues) -> Iterator[Waiting]:
    times = {rank: turns.times for rank, turns in enumerate(queues.turns)}
    times[STARTED] = slots.times(STARTED, {}, work.part)
    before: dict[tuple[int, str], float] = defaultdict(float)
    for rid, flow, charge, rank in slots.order(set_aside):
        turn, of = 0.0, (rank, flow.tenant)
        if rank != STARTED:
            turns = queues.turns[rank]
            turn = turns.behind(flow.tenant, before[of]) - EARLIER * turns.each
        yield Waiting(rid, rank, turn, charge * times[rank])
        before[of] += charge
