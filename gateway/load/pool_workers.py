"""The workers of a pool for placement: their partitions and their load (pure;
docs/design/placement.md, Prefix affinity).

Heartbeats count the requests of all gateways. The requests that this gateway placed since then are
added. Queued requests of a worse class, and responses that the request may pause, are no load for
it.
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
        partitions: its request partitions that may be chosen.
        capacity: concurrent responses of its engine.
        requests: number of running and waiting requests.
        load: tokens that its engine will generate for them.
        waits: whether one of them waits for an engine slot.
        wait_s: estimated seconds until a request placed there now starts; 0 if a worker's wait is
            unknown.
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
    """The ready workers with a partition that may be chosen, as one request sees them.

    Args:
        work: of the pool.
        among: those partitions.
        priority, principal: of the request.
        each: tokens of one request.
    """
    workers, rank = [], topics.CLASSES.index(priority)
    for worker in work.ready:
        partitions = tuple(p for p in worker.partitions if p in among)
        if not partitions:
            continue
        count = work.placements.number(worker.incarnation, rank)
        waiting, all_waiting = sum(worker.waiting[: rank + 1]), sum(worker.waiting)
        # Heartbeats do not have the number of queued requests by class.
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
