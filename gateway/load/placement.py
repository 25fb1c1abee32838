"""Which partition a new response gets (pure; docs/design/placement.md).

A partition decides the worker. `place` uses the workers' heartbeats: it prefers the worker whose
engine caches most of the prompt, then the one that had the conversation before, then the one where
the response starts first, or the least loaded one. The load bound is that of consistent hashing
with bounded loads: no worker may have more than its fair share times a constant, whatever it
caches. Where requests wait, the load is the wait: equal queues move at unequal speed when one
worker has more long answers.

`choose` works without heartbeats, from this gateway's own counts. A conversation keeps its
partition, and a new one gets the least loaded preferred partition, with the same bound. A partition
without a ready worker is skipped if there is another one: its worker drains or crashed, and a
request would wait for the next rebalance.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec

from gateway.load.pool_workers import PoolWorker

PREFERRED_PARTITIONS: Final = 4
LOAD_FACTOR: Final = 1.25
# Below this many responses on a partition, or at a worker with free slots, a cached prefix is worth
# more than an even load.
FLOOR: Final = 8
# Cached tokens count in units of this size: computing fewer is faster than placing for them.
WORTH_TOKENS: Final = 64
MAX_DIGESTS: Final = 64


def preferred_partitions(partitions: int, offset: int) -> list[int]:
    """A gateway's preferred partitions, evenly spaced, starting at `offset`.

    Workers own contiguous ranges, so evenly spaced partitions reach all workers.
    """
    count = min(PREFERRED_PARTITIONS, partitions)
    return sorted({(offset + i * partitions // count) % partitions for i in range(count)})


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a response.

    Attributes:
        cached: prompt tokens that the worker's engine caches, as published.
        outcome: whether the worker with the longest cached prefix was chosen.
    """

    partition: int
    incarnation: str
    cached: int
    outcome: Literal["hit", "miss", "overridden"]


def place(
    workers: Sequence[PoolWorker],
    preferred: Sequence[int],
    running: Callable[[int], int],
    *,
    cached: Mapping[str, int],
    each: float,
    sticky: int | None = None,
    turn: int = 0,
) -> Place:
    """The place of a response.

    Args:
        workers: at least one.
        preferred: the gateway's preferred partitions.
        running: returns the number of this gateway's responses on a partition.
        cached: cached tokens of the prompt, by incarnation.
        each: tokens of one response.
        sticky: the partition of the previous response.
        turn: any number that differs from call to call.
    """
    capacity = sum(w.capacity for w in workers)
    share = LOAD_FACTOR * (sum(w.load for w in workers) + each) / capacity
    longest_s = LOAD_FACTOR * sum(w.wait_s * w.capacity for w in workers) / capacity

    def fits(w: PoolWorker) -> bool:
        if not w.waits and w.requests < min(FLOOR, w.capacity):
            return True
        return w.wait_s <= longest_s if longest_s else w.load <= share * w.capacity

    def worth(w: PoolWorker) -> int:
        return cached.get(w.incarnation, 0) // WORTH_TOKENS

    def order(w: PoolWorker) -> tuple[float, float, float, int]:
        turns = (workers.index(w) - turn) % len(workers)
        return w.wait_s, w.load / w.capacity, w.requests / w.capacity, turns

    fitting = [w for w in workers if fits(w)]
    warm = [w for w in fitting if worth(w)]
    staying = [w for w in fitting if sticky in w.partitions]
    if warm:
        worker = min(warm, key=lambda w: (-worth(w), sticky not in w.partitions, order(w)))
    elif staying:
        worker = staying[0]
    else:
        near = [w for w in fitting if any(p in preferred for p in w.partitions)]
        worker = min(near or fitting or workers, key=order)
    most = max(map(worth, workers))
    outcome: Literal["hit", "miss", "overridden"] = "overridden"
    if not most:
        outcome = "miss"
    elif worth(worker) == most:
        outcome = "hit"
    own = [p for p in worker.partitions if p in preferred] or worker.partitions
    if sticky is not None and sticky in worker.partitions:
        partition = sticky
    else:
        turns = turn // len(workers)  # each worker gets one of `len(workers)` turns
        partition = min(own, key=lambda p: (running(p), (own.index(p) - turns) % len(own)))
    return Place(partition, worker.incarnation, cached.get(worker.incarnation, 0), outcome)


def choose(
    preferred: Sequence[int],
    partitions: int,
    load: Callable[[int], int],
    *,
    sticky: int | None = None,
    turn: int = 0,
    ready_partitions: Collection[int] = (),
) -> int:
    """The partition for a response.

    Args:
        preferred: the gateway's preferred partitions.
        partitions: partition count of the log.
        load: returns the number of responses on a partition that this gateway knows.
        sticky: the partition of the previous response.
        turn: any number that differs from call to call. It breaks ties between equally loaded
            partitions.
        ready_partitions: partitions with a ready worker; empty: unknown.
    """
    usable = [p for p in range(partitions) if p in ready_partitions] or range(partitions)
    preferred = [p for p in preferred if p in usable] or usable
    if (
        sticky is not None
        and sticky in usable
        and load(sticky) < _load_bound({*preferred, sticky}, load)
    ):
        return sticky
    return min(preferred, key=lambda p: (load(p), (preferred.index(p) - turn) % len(preferred)))


def _load_bound(candidates: Collection[int], load: Callable[[int], int]) -> int:
    """The most responses that one of these partitions may have, the new one included."""
    return max(FLOOR, math.ceil(LOAD_FACTOR * (sum(map(load, candidates)) + 1) / len(candidates)))


def partition_of_key(principal: str, key: str, partitions: int) -> int:
    """The partition of a request with an idempotency key.

    It is a hash of principal and key. So after a loss of Redis, one partition shows whether the
    request exists (log rule §10).
    """
    digest = hashlib.blake2b(msgspec.json.encode([principal, key]), digest_size=8).digest()
    return int.from_bytes(digest, "big") % partitions


def prefix(scope: str, model: str, messages: Sequence[dict[str, Any]]) -> list[str]:
    """A chain of digests, one per message, each over all messages up to its own.

    Returns the longest `MAX_DIGESTS`, longest last. `scope` (`Owner.cache_scope`) is part of each
    digest, so that no user learns from placement or timing what others have sent.
    """
    state = hashlib.blake2b(msgspec.json.encode([scope, model]), digest_size=16).digest()
    chain = []
    for message in messages:
        state = hashlib.blake2b(
            state + msgspec.json.encode([message["role"], _content(message["content"])]),
            digest_size=16,
        ).digest()
        chain.append(state.hex())
    return chain[-MAX_DIGESTS:]


def _content(content: Any) -> Any:
    """A message's content, with images as digests only."""
    if isinstance(content, str):
        return content
    return [{k: v for k, v in part.items() if k not in ("data", "file")} for part in content]
