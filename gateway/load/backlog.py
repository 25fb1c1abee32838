"""Estimates how long a request waits, from the heartbeats of its pool's workers (pure).

The backlog of a pool is the open work of its workers, in tokens that their engines will generate:
running responses, and queued requests of each class, read or not (`worker.queue.workload`). Workers
also publish the estimated wait of a new request of each principal (`worker.queue.waits`).
Heartbeats are read once per refresh, and a request costs a few look-ups.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tailrace.fair_queue import tenant_of, waits_of
from tailrace.protocol import topics

# Between an append and the heartbeat that counts it here, on average: half of the time between two
# heartbeats, and half of that between two refreshes of this process.
UNCOUNTED_S: Final = 1.0
BUSY_UNCOUNTED_S: Final = 0.25

_Counts = dict[tuple[str, int], Counter[str]]


@dataclass(slots=True)
class Placements:
    """The requests that this gateway placed since the last two refreshes. Heartbeats may not count
    them yet.

    Attributes:
        _recent, _before: their number by principal, for each worker and class: since the last
            refresh, and between the last two.
    """

    _recent: _Counts = field(default_factory=dict)
    _before: _Counts = field(default_factory=dict)

    def add(self, incarnation: str, principal: str, rank: int) -> None:
        """One more."""
        self._recent.setdefault((incarnation, rank), Counter())[principal] += 1

    def remove(self, incarnation: str, principal: str, rank: int) -> None:
        """Remove one that is not written."""
        for period in (self._recent, self._before):
            counts = period.get((incarnation, rank))
            if counts is not None and counts[principal]:
                counts[principal] -= 1
                return

    def refresh(self) -> None:
        """Heartbeats were read."""
        self._recent, self._before = {}, self._recent

    def number(self, incarnation: str, rank: int) -> int:
        """The number of a class and better ones."""
        return sum(counts.total() for counts in self._counts(incarnation, rank))

    def turns(self, incarnation: str, principal: str, rank: int) -> int:
        """The number that starts before a new request: those of its principal, and one of each
        other."""
        counts = Counter[str]()
        for each in self._counts(incarnation, rank):
            counts.update(each)
        own = counts.pop(principal, 0)
        return own + sum(count > 0 for count in counts.values())

    def _counts(self, incarnation: str, rank: int) -> Iterator[Counter[str]]:
        for period in (self._recent, self._before):
            for better in range(rank + 1):
                if (counts := period.get((incarnation, better))) is not None:
                    yield counts


@dataclass(frozen=True, slots=True)
class Worker:
    """The heartbeat of a ready worker.

    Attributes:
        partitions: its request partitions.
        capacity, running, queued: numbers of requests.
        running_tokens: tokens that running responses will still generate.
        pausable, pausable_tokens: the part of these that interactive requests may pause.
        waiting: tokens of queued requests, by class.
        rate: tokens per second while requests wait; 0: unknown.
        waits_by_name: estimated seconds of a new request of each class, by digest of a principal or
            tenant.
        others: the same for any other principal; empty: unknown.
    """

    incarnation: str
    partitions: tuple[int, ...]
    capacity: float
    running: float
    queued: float
    running_tokens: float
    pausable: float
    pausable_tokens: float
    waiting: tuple[float, ...]
    rate: float
    waits_by_name: Mapping[str, Sequence[float]]
    others: Sequence[float]

    @property
    def free(self) -> int:
        """Engine slots that no request waits for."""
        return 0 if self.queued else int(max(0.0, self.capacity - self.running))

    def wait_s(self, names: Sequence[str], rank: int) -> float | None:
        """Estimated seconds until a new request of a class starts; None: unknown. `names`: the
        digests of its principal and its tenant."""
        for name in names:
            if (waits := self.waits_by_name.get(name)) is not None:
                return waits[rank]
        if self.others:
            return self.others[rank]
        ahead = sum(self.waiting[: rank + 1])
        if not ahead:
            return 0.0
        return ahead / self.rate if self.rate else None


@dataclass(frozen=True, slots=True)
class Backlog:
    """The work ahead of one pool.

    Attributes:
        running: tokens that running responses will still generate.
        waiting: tokens of what waits, by class.
        rate: tokens per second while requests wait; 0: unknown.
        each: tokens of one request; 0: unknown.
        ready: the ready workers.
        placements: requests that their heartbeats may not count.
    """

    running: float = 0.0
    waiting: tuple[float, ...] = (0.0,) * len(topics.CLASSES)
    rate: float = 0.0
    each: float = 0.0
    ready: Sequence[Worker] = ()
    placements: Placements = field(default_factory=Placements)

    @property
    def busy(self) -> bool:
        """Requests wait."""
        return any(self.waiting)

    def serving(self, partition: int) -> list[Worker]:
        """The ready workers of a request partition."""
        return [worker for worker in self.ready if partition in worker.partitions]

    def wait_s(
        self, priority: topics.PriorityClass, principal: str, partition: int | None = None
    ) -> float | None:
        """Estimated seconds until a new request starts; None: unknown.

        Args:
            partition: its partition. None: the worker where it starts first.
        """
        workers = self.ready if partition is None else self.serving(partition) or self.ready
        waits = [self.wait_at(worker, priority, principal) for worker in workers]
        estimates = [wait_s for wait_s in waits if wait_s is not None]
        if not estimates and any(self.waiting[: topics.CLASSES.index(priority) + 1]):
            return None
        return min(estimates, default=0.0)

    def wait_at(
        self, worker: Worker, priority: topics.PriorityClass, principal: str
    ) -> float | None:
        """The same for one of the ready workers."""
        rank = topics.CLASSES.index(priority)
        wait_s = worker.wait_s(_names(principal), rank)
        more = self.placements.turns(worker.incarnation, principal, rank) - worker.free
        if wait_s is None or more <= 0 or not worker.rate:
            return wait_s
        # In this time other requests may have started, which heartbeats do not show yet.
        uncounted_s = BUSY_UNCOUNTED_S if self.busy else UNCOUNTED_S
        return wait_s + max(0.0, more * self.each / worker.rate - uncounted_s)


@functools.lru_cache(maxsize=4096)
def _names(principal: str) -> tuple[str, str]:
    """The digests of a principal and its tenant."""
    return waits_of(principal), waits_of(tenant_of(principal))


def from_heartbeats(
    beats: Sequence[Mapping[str, Any]], placements: Placements | None = None
) -> Backlog:
    """The backlog from heartbeats."""
    waiting = [0.0] * len(topics.CLASSES)
    for beat in beats:
        for rank, tokens in enumerate(_waiting(beat)):
            waiting[rank] += tokens
    ready = [beat for beat in beats if beat.get("state") == "ready"]
    # A worker without a measured rate gets the mean of the others.
    rates = [rate for beat in ready if (rate := _figure(beat, "drain_rate"))]
    usual = sum(rates) / len(rates) if rates else 0.0
    sizes = [each for beat in ready if (each := _figure(beat, "request_tokens"))]
    return Backlog(
        running=sum(_figure(beat, "running_tokens") for beat in beats),
        waiting=tuple(waiting),
        rate=usual * len(ready),
        each=sum(sizes) / len(sizes) if sizes else 0.0,
        ready=[_worker(beat, usual) for beat in ready],
        placements=Placements() if placements is None else placements,
    )


def _worker(beat: Mapping[str, Any], usual: float) -> Worker:
    waits = [_numbers(beat, f"{priority}_waits_s") for priority in topics.CLASSES]
    names = [name for name in _list(beat, "waits_of") if isinstance(name, str)]
    others = _numbers(beat, "waits_s")
    return Worker(
        incarnation=str(beat.get("incarnation", "")),
        partitions=partitions_of(beat),
        capacity=_figure(beat, "capacity"),
        running=_figure(beat, "running"),
        queued=_figure(beat, "queued"),
        running_tokens=_figure(beat, "running_tokens"),
        pausable=_figure(beat, "pausable"),
        pausable_tokens=_figure(beat, "pausable_tokens"),
        waiting=tuple(_waiting(beat)),
        rate=_figure(beat, "drain_rate") or usual,
        waits_by_name=dict(zip(names, zip(*waits, strict=False), strict=False)),
        others=others if len(others) == len(topics.CLASSES) else (),
    )


def partitions_of(beat: Mapping[str, Any]) -> tuple[int, ...]:
    """The request partitions of a worker, from its heartbeat."""
    return tuple(p for p in _list(beat, "partitions") if type(p) is int)


def _waiting(beat: Mapping[str, Any]) -> list[float]:
    tokens = _numbers(beat, "waiting_tokens")[: len(topics.CLASSES)]
    return tokens + [0.0] * (len(topics.CLASSES) - len(tokens))


def _numbers(beat: Mapping[str, Any], name: str) -> list[float]:
    return [_number(value) for value in _list(beat, name)]


def _list(beat: Mapping[str, Any], name: str) -> list[Any]:
    value = beat.get(name)
    return value if isinstance(value, list) else []


def _figure(beat: Mapping[str, Any], name: str) -> float:
    return _number(beat.get(name))


def _number(value: Any) -> float:
    return float(value) if type(value) in (int, float) and value > 0 else 0.0
