"""A queue that is fair between tenants, and within a tenant between principals (pure).

Start-time fair queueing (Goyal, Vin, Cheng 1996) on two levels. Each tenant has a tag: the virtual
time at which its next item starts. The tenant with the lowest tag goes first, and its tag grows by
the item's cost over the tenant's weight. A tenant that arrives (again) starts at the virtual time
of the item that was popped last, so it has neither a debt nor savings. The principals of a tenant
share its turns in the same way. One principal's items keep their order.

While two flows wait, the costs taken from them, each divided by its weight, differ by at most the
largest cost of each (the same bound as in the paper).
"""

from __future__ import annotations

import collections
import hashlib
import heapq
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, NamedTuple, TypeVar

from tailrace.protocol import records

T = TypeVar("T")
N = TypeVar("N")

# Idle shares that are stored; above this number all of them start from zero when they return.
_MAX_IDLE_SHARES: Final = 256
NAME_DIGITS: Final = 12
_ROUNDING: Final = 1e-6  # of an item


@dataclass(frozen=True, slots=True)
class Flow:
    """The owner of an item. Each caller without a tenant is a tenant of its own."""

    tenant: str
    principal: str


NOBODY: Final = Flow("", "")


def flow_of(owner: records.Owner) -> Flow:
    """The flow of a principal's requests."""
    return Flow(tenant_of(owner.key), owner.key)


def tenant_of(principal: str) -> str:
    """The tenant of a flow, by the principal's key."""
    issuer, _, rest = principal.partition("|")
    tenant, _, subject = rest.partition("|")
    return f"{issuer}|{tenant}" if tenant and subject else principal


def waits_of(whose: str) -> str:
    """The name under which a worker publishes the estimated wait of a principal or tenant."""
    return hashlib.sha256(whose.encode("utf-8", "surrogatepass")).hexdigest()[:NAME_DIGITS]


def weight_in(weights: Mapping[str, float]) -> Callable[[str], float]:
    """The weight of a flow's tenant, by a table of tenants' names. Others have 1."""

    def weight(tenant: str) -> float:
        # Issuer and tenant contain no `|`; without a tenant two of them are adjacent.
        _, _, name = tenant.partition("|")
        return 1.0 if name.startswith("|") else weights.get(name, 1.0)

    return weight


class _Line(NamedTuple):
    """The items of one tenant or principal. `start`: virtual time of its next one. `cost`: of all.
    `each`: of one."""

    start: float
    cost: float
    each: float
    weight: float = 1.0

    def before(self, turn: float, times: float) -> float:
        """The cost of the items whose turn comes by `turn`, if `times` as many wait."""
        if turn < self.start or not self.each:
            return 0.0
        turns = math.floor((turn - self.start) * self.weight / self.each + _ROUNDING) + 1
        return min(times * self.cost, turns * self.each)


@dataclass(slots=True)
class _Share:
    """One tenant, or one principal of a tenant. `start` is the virtual time of its next item."""

    start: float


@dataclass(slots=True)
class _Principal(_Share, Generic[T]):
    """`items` are (arrival, cost, item), oldest first; `cost` is that of all."""

    flow: Flow
    items: collections.deque[tuple[int, float, T]] = field(default_factory=collections.deque)
    cost: float = 0.0


@dataclass(slots=True)
class _Tenant(_Share, Generic[T]):
    """`now` is the virtual time among its principals, `waiting` the number of their items."""

    weight: float
    now: float = 0.0
    waiting: int = 0
    principals: dict[str, _Principal[T]] = field(default_factory=dict)


_Turn = tuple[float, int, tuple[N, float]]  # start, arrival, name with cost


class FairQueue(Generic[T]):
    """Items that wait, each of one flow and with a cost of any unit.

    Attributes:
        cost: of all items.
        _now: virtual time among the tenants.
        _tenants: those with items, and those that are ahead of the virtual time.
    """

    def __init__(self, weight: Callable[[str], float] = lambda _tenant: 1.0) -> None:
        """`weight` of a tenant, above 0."""
        self.cost = 0.0
        self._weight = weight
        self._now = 0.0
        self._tenants: dict[str, _Tenant[T]] = {}
        self._arrivals = itertools.count()
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[T]:
        """All items, in no particular order."""
        for tenant in self._tenants.values():
            for principal in tenant.principals.values():
                for _, _, item in principal.items:
                    yield item

    def order(
        self, name: Callable[[T], N], later: Mapping[str, Iterable[tuple[N, float]]]
    ) -> Iterator[tuple[N, float]]:
        """The names of all items with their costs, in the order of `pop` if no other item arrives
        and every flow is eligible.

        Args:
            later: names and costs of items that wait elsewhere, after those of the same
                principal.
        """
        arrivals = itertools.count(next(self._arrivals))
        first: list[tuple[float, int, tuple[N, float], _Tenant[T], Iterator[_Turn[N]]]] = []

        def push_next(start: float, tenant: _Tenant[T], turns: Iterator[_Turn[N]]) -> None:
            if (turn := next(turns, None)) is not None:
                heapq.heappush(first, (start, turn[1], turn[2], tenant, turns))

        for tenant in self._tenants.values():
            push_next(tenant.start, tenant, _turns(tenant, name, later, arrivals))
        while first:
            start, _, entry, tenant, turns = heapq.heappop(first)
            yield entry
            push_next(start + entry[1] / tenant.weight, tenant, turns)

    def ahead(
        self, most: int, elsewhere: Mapping[str, float], times: float = 1.0
    ) -> tuple[float, dict[str, float]]:
        """The cost of the items that `pop` returns before a new item: before one of a new tenant,
        and by name before one of the `most` principals with most items, and of a new principal of
        their tenants. Items of one flow count as equal.

        Args:
            elsewhere: the cost of items that wait elsewhere, after those of the same principal.
            times: each other principal's requests by then, divided by its waiting ones; 1 if
                nothing else arrives.
        """
        shares: dict[str, dict[str, _Line]] = {}
        lines: dict[str, _Line] = {}
        for name, tenant in self._tenants.items():
            own = shares[name] = {
                key: _line(principal, tenant.now, elsewhere.get(key, 0.0))
                for key, principal in tenant.principals.items()
            }
            start = tenant.start if tenant.waiting else max(tenant.start, self._now)
            cost = sum(line.cost for line in own.values())
            here = sum(principal.cost for principal in tenant.principals.values())
            each = here / tenant.waiting if tenant.waiting else cost
            lines[name] = _Line(start, cost, each, tenant.weight)

        def before(name: str, key: str | None, start: float) -> float:
            cost = sum(
                line.cost if other_key == key else line.before(start, times)
                for other_key, line in shares[name].items()
            )
            turn = lines[name].start + cost / lines[name].weight
            return cost + sum(line.before(turn, times) for n, line in lines.items() if n != name)

        busiest = heapq.nlargest(
            most,
            (
                (line.cost, line.start, name, key)
                for name, own in shares.items()
                for key, line in own.items()
            ),
        )
        by_name = {
            name: before(name, None, self._tenants[name].now)
            for _, _, name, _ in busiest
            if name not in shares[name]
        }
        for cost, start, name, key in busiest:
            by_name[key] = before(name, key, start + cost)
        return sum(line.before(self._now, times) for line in lines.values()), by_name

    def push(self, flow: Flow, item: T, cost: float = 1.0, *, first: bool = False) -> None:
        """Add an item after the others of its flow, or `first` of them."""
        tenant = self._tenants.get(flow.tenant)
        if tenant is None:
            tenant = _Tenant(self._now, self._weight(flow.tenant))
            self._tenants[flow.tenant] = tenant
        elif not tenant.waiting:
            tenant.start = max(tenant.start, self._now)
        principal = tenant.principals.get(flow.principal)
        if principal is None:
            principal = tenant.principals[flow.principal] = _Principal(tenant.now, flow)
        elif not principal.items:
            principal.start = max(principal.start, tenant.now)
        if first and principal.items:
            principal.items.appendleft((principal.items[0][0], cost, item))
        else:
            principal.items.append((next(self._arrivals), cost, item))
        principal.cost += cost
        tenant.waiting += 1
        self._length += 1
        self.cost += cost

    def pop(self, eligible: Callable[[Flow], bool] | None = None) -> tuple[Flow, T] | None:
        """The next item of an eligible flow, with its flow; None if there is none."""
        if not self._length:
            return None
        best: tuple[tuple[float, int], _Tenant[T], _Principal[T]] | None = None
        for tenant in self._tenants.values():
            if not tenant.waiting:
                continue
            principal = _first(tenant, eligible)
            if principal is None:
                continue
            rank = tenant.start, principal.items[0][0]
            if best is None or rank < best[0]:
                best = rank, tenant, principal
        if best is None:
            return None
        _, tenant, principal = best
        _, cost, item = principal.items.popleft()
        self._now = max(self._now, tenant.start)
        tenant.now = max(tenant.now, principal.start)
        tenant.start += cost / tenant.weight
        principal.start += cost
        self._remove_cost(tenant, principal, cost)
        return principal.flow, item

    def count(self, eligible: Callable[[Flow], bool] | None = None) -> int:
        """Number of items of eligible flows."""
        if eligible is None:
            return self._length
        return sum(count for flow, count in self.flows().items() if eligible(flow))

    def flows(self) -> dict[Flow, int]:
        """Number of items of each flow that has any."""
        return {
            principal.flow: len(principal.items)
            for tenant in self._tenants.values()
            for principal in tenant.principals.values()
            if principal.items
        }

    def remove(self, flow: Flow, item: T) -> bool:
        """Drop an item that waits, without charging it. Returns whether it waited."""
        tenant = self._tenants.get(flow.tenant)
        principal = tenant.principals.get(flow.principal) if tenant else None
        if tenant is None or principal is None:
            return False
        for each in principal.items:
            if each[2] is item:
                principal.items.remove(each)
                self._remove_cost(tenant, principal, each[1])
                return True
        return False

    def settle(self, flow: Flow, difference: float) -> None:
        """An item that was popped has cost `difference` more (less, if negative) than its cost. A
        flow gets back at most its lead over the others."""
        tenant = self._tenants.get(flow.tenant)
        principal = tenant.principals.get(flow.principal) if tenant else None
        if tenant is None or principal is None:
            return
        tenant.start = max(self._now, tenant.start + difference / tenant.weight)
        principal.start = max(tenant.now, principal.start + difference)

    def _remove_cost(self, tenant: _Tenant[T], principal: _Principal[T], cost: float) -> None:
        """Update the sums after an item of this cost was removed."""
        tenant.waiting -= 1
        principal.cost = principal.cost - cost if principal.items else 0.0
        self._length -= 1
        self.cost = self.cost - cost if self._length else 0.0  # without rounding errors
        if len(tenant.principals) > max(_MAX_IDLE_SHARES, 2 * tenant.waiting):
            tenant.principals = {n: p for n, p in tenant.principals.items() if p.items}
        if len(self._tenants) > max(_MAX_IDLE_SHARES, 2 * self._length):
            self._tenants = {n: t for n, t in self._tenants.items() if t.waiting}


def _line(principal: _Principal[T], now: float, elsewhere: float) -> _Line:
    start = principal.start if principal.items else max(principal.start, now)
    cost = principal.cost + elsewhere
    return _Line(start, cost, principal.cost / len(principal.items) if principal.items else cost)


def _first(tenant: _Tenant[T], eligible: Callable[[Flow], bool] | None) -> _Principal[T] | None:
    """The tenant's principal whose turn it is."""
    waiting = (
        principal
        for principal in tenant.principals.values()
        if principal.items and (eligible is None or eligible(principal.flow))
    )
    return min(
        waiting, key=lambda principal: (principal.start, principal.items[0][0]), default=None
    )


def _turns(
    tenant: _Tenant[T],
    name: Callable[[T], N],
    later_items: Mapping[str, Iterable[tuple[N, float]]],
    arrivals: Iterator[int],
) -> Iterator[_Turn[N]]:
    """The tenant's items in their order."""
    first: list[tuple[float, int, tuple[N, float], Iterator[tuple[int, tuple[N, float]]]]] = []

    def push_next(start: float, items: Iterator[tuple[int, tuple[N, float]]]) -> None:
        if (item := next(items, None)) is not None:
            heapq.heappush(first, (start, *item, items))

    for key, principal in tenant.principals.items():
        if principal.items:
            here = ((arrival, (name(item), cost)) for arrival, cost, item in principal.items)
            later = zip(arrivals, later_items.get(key, ()), strict=False)
            push_next(principal.start, itertools.chain(here, later))
    while first:
        start, arrival, entry, items = heapq.heappop(first)
        yield start, arrival, entry
        push_next(start + entry[1], items)
