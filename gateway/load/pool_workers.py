"""The workers of a pool as placement sees them: which partitions they have, and how loaded they are
(pure; docs/design/placement.md, Prefix affinity).

Their heartbeats tell of the requests of all gateways. What this one has placed since then is added.
What waits behind a request's class, or makes way for it, is no load to it.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace

from gateway.load import backlog
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


def candidates(
    work: backlog.Backlog,
    among: Collection[int],
    priority: topics.PriorityClass,
    principal: str,
    each: float,
) -> list[PoolWorker]:
    """The ready workers with a partition that may be chosen, as a request finds them.

    Args:
        work: of the pool.
        among: those partitions.
        priority, principal: of the request.
        each: tokens that a request makes.
    """
    workers, rank = [], topics.CLASSES.index(priority)
    for worker in work.ready:
        partitions = tuple(p for p in worker.partitions if p in among)
        if not partitions:
            continue
        count = work.placements.number(worker.incarnation, rank)
        waiting, all_waiting = sum(worker.waiting[: rank + 1]), sum(worker.waiting)
        # Heartbeats do not tell the number of those that wait by class.
        queued = worker.queued * (waiting / all_waiting if all_waiting else 1.0)
        running, load = worker.running, worker.running_tokens
        if priority == "interactive":
            running = max(0.0, running - worker.pausable)
            load = max(0.0, load - worker.pausable_tokens)
        wait_s: float | None = 0.0
        if running + count >= worker.capacity:
            wait_s = work.wait_at(worker, priority, principal)
        workers.append(
            PoolWorker(
                worker.incarnation,
                partitions,
                max(1, int(worker.capacity)),
                int(running + queued) + count,
                load + waiting + count * each,
                waits=bool(queued or waiting),
                wait_s=math.inf if wait_s is None else wait_s,
            )
        )
    if any(math.isinf(worker.wait_s) for worker in workers):
        return [replace(worker, wait_s=0.0) for worker in workers]
    return workers
