"""The workers of a pool as placement sees them: which partitions they have, and how loaded they are
(pure; docs/design.md, Prefix affinity).

Their heartbeats tell of the requests of all gateways. What this one has placed since then is added.
What waits behind a request's class, or makes way for it, is no load to it.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gateway import backlog
from tailrace.protocol import topics


@dataclass(frozen=True, slots=True)
class PoolWorker:
    """One ready worker.

    Attributes:
        partitions: that it takes requests from, and that may be chosen.
        capacity: responses that its engine runs at once.
        requests: that run or wait there.
        load: tokens that its engine will make for them.
        waits: whether one of them waits for a place in the engine.
        wait_s: seconds until a request that is placed there now would begin; 0 where not all
            workers have told that.
    """

    incarnation: str
    partitions: tuple[int, ...]
    capacity: int = 1
    requests: int = 0
    load: float = 0.0
    waits: bool = False
    wait_s: float = 0.0


@dataclass(slots=True)
class Placed:
    """Requests that this gateway placed, as far as the heartbeats may not tell of them.

    Attributes:
        _at: when, with how many tokens, and of which rank, by worker.
    """

    _at: dict[str, collections.deque[tuple[float, float, int]]] = field(default_factory=dict)

    def add(self, incarnation: str, tokens: float, now: float, rank: int = 0) -> None:
        """One more. `now`: monotonic seconds."""
        self._at.setdefault(incarnation, collections.deque()).append((now, tokens, rank))

    def of(self, incarnation: str, now: float, rank: int) -> tuple[int, float]:
        """How many of this rank or a better one, and their tokens."""
        found = self._at.get(incarnation)
        while found and found[0][0] < now - backlog.UNTOLD_S:
            found.popleft()
        if not found:
            self._at.pop(incarnation, None)
            return 0, 0.0
        ahead = [tokens for _, tokens, of in found if of <= rank]
        return len(ahead), sum(ahead)


def of(
    beats: Sequence[Mapping[str, Any]],
    among: Collection[int],
    placed: Placed,
    now: float,
    priority: topics.PriorityClass,
    principal: str = "",
) -> list[PoolWorker]:
    """The ready workers with a partition that may be chosen, as a request of this class and
    principal finds them. `among`: those partitions."""
    rank = topics.CLASSES.index(priority)
    found = []
    for beat in beats:
        told = beat.get("partitions")
        partitions = tuple(
            p for p in (told if isinstance(told, list) else ()) if type(p) is int and p in among
        )
        if beat.get("state") != "ready" or not partitions:
            continue
        incarnation = str(beat.get("incarnation", ""))
        count, tokens = placed.of(incarnation, now, rank)
        told_waiting = [_number(each) for each in _listed(beat.get("waiting_tokens"))]
        waiting, all_waiting = sum(told_waiting[: rank + 1]), sum(told_waiting)
        # Heartbeats do not tell the number of those that wait by class.
        queued = _number(beat.get("queued")) * (waiting / all_waiting if all_waiting else 1.0)
        running, load = _number(beat.get("running")), _number(beat.get("running_tokens"))
        if priority == "interactive":
            running = max(0.0, running - _number(beat.get("pausable")))
            load = max(0.0, load - _number(beat.get("pausable_tokens")))
        found.append(
            PoolWorker(
                incarnation,
                partitions,
                max(1, int(_number(beat.get("capacity")))),
                int(running + queued) + count,
                load + waiting + tokens,
                waits=bool(queued or waiting),
                wait_s=0.0
                if running + count < _number(beat.get("capacity"))
                else _wait_s(beat, priority, principal, tokens),
            )
        )
    if any(math.isinf(worker.wait_s) for worker in found):
        return [replace(worker, wait_s=0.0) for worker in found]
    return found


def _wait_s(
    beat: Mapping[str, Any], priority: topics.PriorityClass, principal: str, untold: float
) -> float:
    """Infinite where the worker does not tell it. `untold`: tokens that it does not count yet."""
    wait_s = backlog.wait_of(beat, priority, principal)
    if wait_s is None:
        return math.inf
    rate = _number(beat.get("drain_rate"))
    return wait_s + untold / rate if rate else math.inf


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _number(value: Any) -> float:
    return float(value) if type(value) in (int, float) and value > 0 else 0.0
