"""How long a request would wait, by the heartbeats of its pool's workers (pure).

The backlog of a pool is the work that its workers have not done yet, in tokens that their engines
will make: what runs, and what waits of each class, read or not (`worker.workload`). Workers also
tell how much of what waits will have begun by when, and so it is a time.
"""

from __future__ import annotations

import collections
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tailrace.protocol import queue_place, topics
from tailrace.protocol.starts import Starts, together

# Between an append and the heartbeat that tells of it here, on average: half of the time between
# two heartbeats, and half of that between two looks of this process.
UNTOLD_S: Final = 1.0
BUSY_UNTOLD_S: Final = 0.25
MOST_TIMES: Final = 100  # at which a worker may tell how much has begun


@dataclass(frozen=True, slots=True)
class Backlog:
    """The work ahead of one pool.

    Attributes:
        running: tokens left of what runs.
        waiting: tokens of what waits, by class.
        rate: tokens per second while requests wait; 0 while it is not known.
        starts: when what waits begins, where workers look ahead.
        free: places in the engines that nothing waits for.
        principals: how many have interactive requests that wait; each gets the same share.
        rounds: how many have more than 0, 1, 2, … of them, at all workers together; None while a
            worker does not say so.
        workers: that are ready.
        each: tokens of one request; 0 while it is not known.
        batch_share: part of the rate that batch requests get at least while they wait.
        interactive_rate: tokens per second that interactive requests take.
    """

    running: float = 0.0
    waiting: tuple[float, ...] = (0.0,) * len(topics.CLASSES)
    rate: float = 0.0
    starts: Starts | None = None
    free: int = 0
    principals: int = 0
    rounds: tuple[float, ...] | None = None
    workers: int = 0
    each: float = 0.0
    batch_share: float = 0.0
    interactive_rate: float = 0.0

    @property
    def busy(self) -> bool:
        """Requests wait."""
        return any(self.waiting)

    @property
    def untold_s(self) -> float:
        """For how long the heartbeats do not tell of a request."""
        return BUSY_UNTOLD_S if self.busy else UNTOLD_S

    def wait_s(self, priority: topics.PriorityClass, own: int = 0, lately: int = 0) -> float | None:
        """Seconds until a request that is appended now would start; None while unknown.

        Args:
            own: unfinished requests of the same principal. A principal with few of them overtakes
                those with many.
            lately: requests that the heartbeats do not tell of yet.
        """
        lately = max(0, lately - self.free)
        rank = topics.CLASSES.index(priority)
        # As many as are made in that time may have started in it: the heartbeats do not tell of
        # that either.
        untold = max(0.0, lately * self.each - self.rate * self.untold_s)
        ahead = sum(self.waiting[: rank + 1]) + untold
        if ahead <= 0:
            return 0.0
        if self.rate <= 0:
            return None
        if rank == 0:
            if self.each > 0:
                ahead = min(ahead, self._turns(own) * self.each)
            # Batch requests have their share of what is made meanwhile.
            batch = ahead * self.batch_share / (1 - self.batch_share)
            ahead += min(sum(self.waiting[1:]), batch)
        else:
            ahead = queue_place.batch_ahead(
                ahead,
                ahead - self.waiting[0],
                interactive_share=self.interactive_rate / self.rate,
                batch_share=self.batch_share,
            )
        return (self.starts or Starts(rate=self.rate)).seconds(ahead)

    def _turns(self, own: int) -> float:
        """How many interactive requests go before one of a principal with so many: at most one of
        each principal before each of its own, and before the new one."""
        if self.rounds is None:
            return (own + 1) * max(1, self.principals)
        rounds = own / max(1, self.workers) + 1  # each worker has its part of them
        if rounds > len(self.rounds):
            return math.inf
        whole = int(rounds)
        return sum(self.rounds[:whole]) + (rounds - whole) * sum(self.rounds[whole : whole + 1])


def of(workers: Sequence[Mapping[str, Any]]) -> Backlog:
    """The backlog that heartbeats tell of."""
    ready = [w for w in workers if w.get("state") == "ready"]
    waiting = [0.0] * len(topics.CLASSES)
    free = 0.0
    for worker in workers:
        told = worker.get("waiting_tokens")
        for rank, tokens in enumerate(told[: len(waiting)] if isinstance(told, list) else ()):
            waiting[rank] += _number(tokens)
    for worker in ready:
        if not _figure(worker, "queued"):
            free += max(0.0, _figure(worker, "capacity") - _figure(worker, "running"))
    known = [starts for starts in map(starts_of, ready) if starts.rate > 0]
    # A worker that nothing has waited for yet is as quick as the others.
    all_starts = together(known, len(ready) / len(known)) if known else None
    sizes = [each for w in ready if (each := _figure(w, "request_tokens")) > 0]
    shares = [share for w in ready if (share := _figure(w, "batch_share")) < 1]
    return Backlog(
        running=sum(_figure(w, "running_tokens") for w in workers),
        waiting=tuple(waiting),
        rate=all_starts.rate if all_starts else 0.0,
        starts=all_starts,
        free=int(free),
        principals=int(max((_figure(w, "waiting_principals") for w in ready), default=0)),
        rounds=_rounds(ready),
        workers=len(ready),
        each=sum(sizes) / len(sizes) if sizes else 0.0,
        batch_share=min(shares, default=0.0),
        interactive_rate=sum(_figure(w, "interactive_rate") for w in ready),
    )


def starts_of(worker: Mapping[str, Any]) -> Starts:
    """When what waits at a worker begins, by its heartbeat."""
    every_s, told = _figure(worker, "starts_every_s"), worker.get("starts_tokens")
    tokens: list[float] = []
    if every_s > 0 and isinstance(told, list):
        tokens = list(itertools.accumulate(map(_number, told[:MOST_TIMES]), max))
    times = tuple(every_s * (n + 1) for n in range(len(tokens)))
    return Starts(times, tuple(tokens), _figure(worker, "drain_rate"))


def _rounds(ready: Sequence[Mapping[str, Any]]) -> tuple[float, ...] | None:
    told = [w.get("waiting_rounds") for w in ready]
    if not told or not all(isinstance(each, list) for each in told):
        return None
    columns = itertools.zip_longest(*(each for each in told if each), fillvalue=0)
    return tuple(sum(map(_number, column)) for column in columns)


@dataclass(slots=True)
class Lately:
    """When requests were appended, as far as the heartbeats may not tell of them, by pool and
    class."""

    _at: dict[tuple[str, str], collections.deque[float]] = field(default_factory=dict)

    def add(self, pool: str, priority: topics.PriorityClass, now: float) -> None:
        """One more. `now`: monotonic seconds."""
        self._at.setdefault((pool, priority), collections.deque()).append(now)

    def count(
        self, pool: str, priority: topics.PriorityClass, now: float, within_s: float = UNTOLD_S
    ) -> int:
        """How many of the last `within_s` seconds go before a new request. At most UNTOLD_S."""
        ahead = topics.CLASSES[: topics.CLASSES.index(priority) + 1]
        return sum(self._of(pool, each, now, within_s) for each in ahead)

    def _of(self, pool: str, priority: str, now: float, within_s: float) -> int:
        times = self._at.get((pool, priority))
        if times is None:
            return 0
        while times and times[0] < now - UNTOLD_S:
            times.popleft()
        return sum(at >= now - within_s for at in times)


def _figure(worker: Mapping[str, Any], name: str) -> float:
    return _number(worker.get(name))


def _number(value: Any) -> float:
    return float(value) if type(value) in (int, float) and value > 0 else 0.0
