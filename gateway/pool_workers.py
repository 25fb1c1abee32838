"""The workers of a pool as placement sees them: which partitions they have, and how loaded they are
(pure; docs/design.md, Prefix affinity).

Their heartbeats tell of the requests of all gateways. What this one has placed since then is added.
What waits behind a request's class, or makes way for it, is no load to it.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from gateway import backlog


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


def of(
    work: backlog.Backlog, among: Collection[int], new: backlog.NewRequest, each: float
) -> list[PoolWorker]:
    """The ready workers with a partition that may be chosen, as a request finds them.

    Args:
        work: of the pool.
        among: those partitions.
        each: tokens that a request makes.
    """
    found = []
    for beat in work.ready:
        chosen = tuple(p for p in backlog.partitions_of(beat) if p in among)
        if not chosen:
            continue
        count = new.behind(beat, backlog.UNTOLD_S).all
        told_waiting = [_number(tokens) for tokens in _listed(beat.get("waiting_tokens"))]
        waiting, all_waiting = sum(told_waiting[: new.rank + 1]), sum(told_waiting)
        # Heartbeats do not tell the number of those that wait by class.
        queued = _number(beat.get("queued")) * (waiting / all_waiting if all_waiting else 1.0)
        running, load = _number(beat.get("running")), _number(beat.get("running_tokens"))
        if new.priority == "interactive":
            running = max(0.0, running - _number(beat.get("pausable")))
            load = max(0.0, load - _number(beat.get("pausable_tokens")))
        wait_s: float | None = 0.0
        if running + count >= _number(beat.get("capacity")):
            wait_s = work.wait_at(beat, new, crowd=True)
        found.append(
            PoolWorker(
                str(beat.get("incarnation", "")),
                chosen,
                max(1, int(_number(beat.get("capacity")))),
                int(running + queued) + count,
                load + waiting + count * each,
                waits=bool(queued or waiting),
                wait_s=math.inf if wait_s is None else wait_s,
            )
        )
    if any(math.isinf(worker.wait_s) for worker in found):
        return [replace(worker, wait_s=0.0) for worker in found]
    return found


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _number(value: Any) -> float:
    return float(value) if type(value) in (int, float) and value > 0 else 0.0
