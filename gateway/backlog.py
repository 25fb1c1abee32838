"""How long a request would wait, by the heartbeats of its pool's workers (pure).

The backlog of a pool is the work that its workers have not done yet, in tokens that their engines
will make: what runs, and what waits of each class, read or not (`worker.workload`). Workers also
tell how long a new request of each principal would wait (`worker.told_waits`).
"""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from tailrace.fair_queue import tenant_of, waits_of
from tailrace.protocol import topics

# Between an append and the heartbeat that tells of it here, on average: half of the time between
# two heartbeats, and half of that between two looks of this process.
UNTOLD_S: Final = 1.0
BUSY_UNTOLD_S: Final = 0.25


class Untold(NamedTuple):
    """Requests that go before a new one of a principal, and that a heartbeat does not tell of yet:
    its `own`, and one of each of so many `others`. `all`: of this class and better ones."""

    own: int
    others: int
    all: int


class _Placed(NamedTuple):
    """A request. `at`: monotonic seconds. `rank`: of its class."""

    at: float
    principal: str
    rank: int


@dataclass(slots=True)
class Lately:
    """Which requests were placed, as far as the heartbeats may not tell of them.

    Attributes:
        _placed: the requests by worker, oldest first.
    """

    _placed: dict[str, collections.deque[_Placed]] = field(default_factory=dict)

    def add(
        self, incarnation: str, principal: str, priority: topics.PriorityClass, now: float
    ) -> None:
        """One more. `now`: monotonic seconds."""
        placed = self._placed.setdefault(incarnation, collections.deque())
        placed.append(_Placed(now, principal, topics.CLASSES.index(priority)))

    def remove(self, incarnation: str, principal: str, priority: topics.PriorityClass) -> None:
        """The last one of a principal and class is not asked after all."""
        placed, rank = self._placed.get(incarnation, ()), topics.CLASSES.index(priority)
        for at in reversed(range(len(placed))):
            if placed[at].principal == principal and placed[at].rank == rank:
                del self._placed[incarnation][at]
                return

    def ahead(
        self, incarnation: str, principal: str, rank: int, now: float, within_s: float
    ) -> Untold:
        """What goes before a new request of a principal and class, of the last `within_s` seconds,
        at most UNTOLD_S."""
        placed = self._of(incarnation, now, within_s)
        ahead = [each.principal for each in placed if each.rank <= rank]
        own = ahead.count(principal)
        return Untold(own, len({*ahead} - {principal}), len(ahead))

    def _of(self, incarnation: str, now: float, within_s: float) -> list[_Placed]:
        placed = self._placed.get(incarnation)
        while placed and placed[0].at < now - UNTOLD_S:
            placed.popleft()
        if not placed:
            self._placed.pop(incarnation, None)
            return []
        return [each for each in placed if each.at >= now - within_s]


@dataclass(frozen=True, slots=True)
class NewRequest:
    """A request that may be appended now.

    Attributes:
        principal: whose it is.
        lately: what the heartbeats may not tell of.
        now: monotonic seconds.
    """

    priority: topics.PriorityClass
    principal: str = ""
    lately: Lately = field(default_factory=Lately)
    now: float = 0.0

    @property
    def rank(self) -> int:
        """Of its class, the better first."""
        return topics.CLASSES.index(self.priority)

    def behind(self, worker: Mapping[str, Any], within_s: float) -> Untold:
        """What goes before it at a worker, and was placed there in the last `within_s` seconds."""
        whose = str(worker.get("incarnation", ""))
        return self.lately.ahead(whose, self.principal, self.rank, self.now, within_s)


@dataclass(frozen=True, slots=True)
class Backlog:
    """The work ahead of one pool.

    Attributes:
        running: tokens left of what runs.
        waiting: tokens of what waits, by class.
        rate: tokens per second while requests wait; 0 while it is not known.
        each: tokens of one request; 0 while it is not known.
        ready: the heartbeats of ready workers.
    """

    running: float = 0.0
    waiting: tuple[float, ...] = (0.0,) * len(topics.CLASSES)
    rate: float = 0.0
    each: float = 0.0
    ready: Sequence[Mapping[str, Any]] = ()

    @property
    def busy(self) -> bool:
        """Requests wait."""
        return any(self.waiting)

    @property
    def untold_s(self) -> float:
        """For how long the heartbeats do not tell of a request."""
        return BUSY_UNTOLD_S if self.busy else UNTOLD_S

    def wait_s(self, new: NewRequest, partition: int | None = None) -> float | None:
        """Seconds until a request would start; None while unknown.

        Args:
            partition: to which it goes. None: to the worker where it starts first.
        """
        taking = [w for w in self.ready if partition in partitions_of(w)] or self.ready
        told = [self.wait_at(worker, new) for worker in taking]
        known = [wait_s for wait_s in told if wait_s is not None]
        if not known and (ahead := sum(self.waiting[: new.rank + 1])):
            return ahead / self.rate if self.rate > 0 else None
        return min(known, default=0.0)

    def wait_at(
        self, worker: Mapping[str, Any], new: NewRequest, *, crowd: bool = False
    ) -> float | None:
        """The same at one of the ready workers; None while it does not tell.

        Args:
            crowd: count what others asked for since its heartbeat, too. What usually comes of them
                is in what the worker tells, but not all may go to the same worker.
        """
        told = told_of(worker, new.priority, new.principal)
        if told is None:
            return None
        untold = new.behind(worker, self.untold_s)
        rate = _figure(worker, "drain_rate") or self.rate / len(self.ready)
        each_s = self.each / rate if rate > 0 else 0.0
        if told.seconds:
            more_s = untold.own * (told.behind_one or each_s)
            more_s += untold.others * each_s if crowd else 0.0
        else:
            more_s = max(0, untold.own + untold.others - _free(worker)) * each_s
        # As many as are made in that time may have started in it: heartbeats do not tell of that
        # either. So the turn of one who has asked before is nearer by that time, too. Who has not
        # begins behind what begins now, whenever that is.
        if told.known and not crowd:
            return max(0.0, told.seconds + more_s - self.untold_s)
        return told.seconds + max(0.0, more_s - self.untold_s)


class Told(NamedTuple):
    """How long a new request would wait, in seconds. `behind_one`: so much longer would the one
    behind it; 0 where that is not known. `known`: it is that of its principal or tenant."""

    seconds: float
    behind_one: float
    known: bool = False


def told_of(
    worker: Mapping[str, Any], priority: topics.PriorityClass, principal: str
) -> Told | None:
    """How long a new request of the principal would wait at a worker, by its heartbeat: as that
    tells of the principal, else of its tenant, else of all others. None: it does not."""
    names, waits = _listed(worker, "waits_of"), _listed(worker, f"{priority}_waits_s")
    for name in map(waits_of, (principal, tenant_of(principal))):
        if name in names[: len(waits)]:
            found = _told(waits, _listed(worker, f"{priority}_next_s"), names.index(name))
            return found._replace(known=True)
    waits, rank = _listed(worker, "waits_s"), topics.CLASSES.index(priority)
    return _told(waits, _listed(worker, "next_s"), rank) if len(waits) > rank else None


def _told(waits: Sequence[Any], behind: Sequence[Any], at: int) -> Told:
    return Told(_number(waits[at]), _number(behind[at]) if at < len(behind) else 0.0)


def of(workers: Sequence[Mapping[str, Any]]) -> Backlog:
    """The backlog that heartbeats tell of."""
    ready = [w for w in workers if w.get("state") == "ready"]
    waiting = [0.0] * len(topics.CLASSES)
    for worker in workers:
        for rank, tokens in enumerate(_listed(worker, "waiting_tokens")[: len(waiting)]):
            waiting[rank] += _number(tokens)
    # A worker that nothing has waited for yet is as quick as the others.
    rates = [rate for w in ready if (rate := _figure(w, "drain_rate")) > 0]
    sizes = [each for w in ready if (each := _figure(w, "request_tokens")) > 0]
    return Backlog(
        running=sum(_figure(w, "running_tokens") for w in workers),
        waiting=tuple(waiting),
        rate=sum(rates) * len(ready) / len(rates) if rates else 0.0,
        each=sum(sizes) / len(sizes) if sizes else 0.0,
        ready=ready,
    )


def partitions_of(worker: Mapping[str, Any]) -> list[int]:
    """The partitions that a worker says it takes requests from."""
    return [p for p in _listed(worker, "partitions") if type(p) is int]


def _free(worker: Mapping[str, Any]) -> int:
    """Places in its engine that nothing waits for."""
    if _figure(worker, "queued"):
        return 0
    return int(max(0.0, _figure(worker, "capacity") - _figure(worker, "running")))


def _listed(worker: Mapping[str, Any], name: str) -> list[Any]:
    told = worker.get(name)
    return told if isinstance(told, list) else []


def _figure(worker: Mapping[str, Any], name: str) -> float:
    return _number(worker.get(name))


def _number(value: Any) -> float:
    return float(value) if type(value) in (int, float) and value > 0 else 0.0
