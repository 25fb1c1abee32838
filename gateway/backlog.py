"""How long a request would wait, by the heartbeats of its pool's workers (pure).

The backlog of a pool is the work that its workers have not done yet, in tokens that their engines
will make: what runs, and what waits of each class, read or not (`worker.workload`). Workers also
tell how long a new request of each principal would wait (`worker.told_waits`).
"""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tailrace.fair_queue import tenant_of, waits_of
from tailrace.protocol import topics

# Between an append and the heartbeat that tells of it here, on average: half of the time between
# two heartbeats, and half of that between two looks of this process.
UNTOLD_S: Final = 1.0
BUSY_UNTOLD_S: Final = 0.25
_WAITS: Final = {"interactive": "interactive_waits_s", "batch": "batch_waits_s"}


@dataclass(frozen=True, slots=True)
class Backlog:
    """The work ahead of one pool.

    Attributes:
        running: tokens left of what runs.
        waiting: tokens of what waits, by class.
        rate: tokens per second while requests wait; 0 while it is not known.
        free: places in the engines that nothing waits for.
        each: tokens of one request; 0 while it is not known.
        ready: the heartbeats of ready workers.
    """

    running: float = 0.0
    waiting: tuple[float, ...] = (0.0,) * len(topics.CLASSES)
    rate: float = 0.0
    free: int = 0
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

    def wait_s(
        self, priority: topics.PriorityClass, principal: str = "", lately: int = 0
    ) -> float | None:
        """Seconds until a request that is appended now would start; None while unknown. It goes to
        the worker where it starts first.

        Args:
            principal: whose it is.
            lately: requests that go before it, and that the heartbeats do not tell of yet.
        """
        lately = max(0, lately - self.free)
        # As many as are made in that time may have started in it: the heartbeats do not tell of
        # that either.
        untold = max(0.0, lately * self.each - self.rate * self.untold_s)
        told = [wait_of(worker, priority, principal) for worker in self.ready]
        known = [wait_s for wait_s in told if wait_s is not None]
        if not known and (ahead := sum(self.waiting[: topics.CLASSES.index(priority) + 1])):
            return (ahead + untold) / self.rate if self.rate > 0 else None
        shortest_s = min(known, default=0.0)
        if untold <= 0:
            return shortest_s
        return shortest_s + untold / self.rate if self.rate > 0 else None


def wait_of(
    worker: Mapping[str, Any], priority: topics.PriorityClass, principal: str
) -> float | None:
    """How long a new request of the principal would wait at a worker, in seconds, by its heartbeat:
    as that tells of the principal, else of its tenant, else of all others. None: it does not."""
    names, waits = worker.get("waits_of"), worker.get(_WAITS[priority])
    if isinstance(names, list) and isinstance(waits, list):
        for name in map(waits_of, (principal, tenant_of(principal))):
            if name in names[: len(waits)]:
                return _number(waits[names.index(name)])
    others, rank = worker.get("waits_s"), topics.CLASSES.index(priority)
    return _number(others[rank]) if isinstance(others, list) and len(others) > rank else None


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
    # A worker that nothing has waited for yet is as quick as the others.
    rates = [rate for w in ready if (rate := _figure(w, "drain_rate")) > 0]
    sizes = [each for w in ready if (each := _figure(w, "request_tokens")) > 0]
    return Backlog(
        running=sum(_figure(w, "running_tokens") for w in workers),
        waiting=tuple(waiting),
        rate=sum(rates) * len(ready) / len(rates) if rates else 0.0,
        free=int(free),
        each=sum(sizes) / len(sizes) if sizes else 0.0,
        ready=ready,
    )


@dataclass(slots=True)
class Lately:
    """Which requests were appended, as far as the heartbeats may not tell of them.

    Attributes:
        _sent: when, and whose, by pool and class.
    """

    _sent: dict[tuple[str, str], collections.deque[tuple[float, str]]] = field(default_factory=dict)

    def add(self, pool: str, priority: topics.PriorityClass, principal: str, now: float) -> None:
        """One more. `now`: monotonic seconds."""
        sent = self._sent.setdefault((pool, priority), collections.deque())
        sent.append((now, principal))

    def count(
        self,
        pool: str,
        priority: topics.PriorityClass,
        principal: str,
        now: float,
        within_s: float = UNTOLD_S,
    ) -> int:
        """How many of the last `within_s` seconds go before a new request of a principal: its own,
        and one of each other one. At most UNTOLD_S."""
        ahead = topics.CLASSES[: topics.CLASSES.index(priority) + 1]
        found = [each for of in ahead for each in self._of(pool, of, now, within_s)]
        own = found.count(principal)
        return own + len({*found} - {principal})

    def _of(self, pool: str, priority: str, now: float, within_s: float) -> list[str]:
        sent = self._sent.get((pool, priority))
        if sent is None:
            return []
        while sent and sent[0][0] < now - UNTOLD_S:
            sent.popleft()
        return [whose for at, whose in sent if at >= now - within_s]


def _figure(worker: Mapping[str, Any], name: str) -> float:
    return _number(worker.get(name))


def _number(value: Any) -> float:
    return float(value) if type(value) in (int, float) and value > 0 else 0.0
