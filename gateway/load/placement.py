"""Which partition a new response gets (pure; docs/design/placement.md).

A partition decides the worker. `place` goes by what the workers tell: the one whose engine holds
most of the prompt, else the one that had the conversation before, else the one where it begins
first, or the least loaded one. The load bound is the one of consistent hashing with bounded loads:
no worker may have more than its fair share times a constant, whatever it holds. Where requests
wait, the load is the wait: equal queues move at unequal speed when one worker has more long
answers.

`choose` goes by what this gateway knows alone, while nothing is told. A conversation keeps its
partition, and a new one takes the least loaded preferred partition, with the same bound on
partitions. One that no ready worker takes requests from is left out while there is another: its
worker drains or died, and the request would wait until the group has assigned it again.
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
# Below this many responses on a partition, or at a worker that has places left, a warm prefix is
# worth more than evenness.
FLOOR: Final = 8
# Cached tokens count by so many: fewer are computed sooner than a place is found.
WORTH_TOKENS: Final = 64
MAX_DIGESTS: Final = 64


def preferred_partitions(partitions: int, offset: int) -> list[int]:
    """A gateway's preferred partitions, evenly spaced from `offset` on.

    Workers own contiguous ranges, so evenly spaced partitions reach all workers.
    """
    count = min(PREFERRED_PARTITIONS, partitions)
    return sorted({(offset + i * partitions // count) % partitions for i in range(count)})


@dataclass(frozen=True, slots=True)
class Place:
    """Where a response goes.

    Attributes:
        cached: prompt tokens that the worker's engine is said to hold.
        outcome: whether a worker that holds most of the prompt was taken.
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
        running: responses of this gateway that run on a partition.
        cached: tokens of the prompt that workers hold, by incarnation.
        each: tokens that a response makes.
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
        turns = turn // len(workers)  # each worker gets every so many turns
        partition = min(own, key=lambda p: (running(p), (own.index(p) - turns) % len(own)))
    return Place(partition, worker.incarnation, cached.get(worker.incarnation, 0), outcome)


def choose(
    preferred: Sequence[int],
    partitions: int,
    load: Callable[[int], int],
    *,
    sticky: int | None = None,
    turn: int = 0,
    served: Collection[int] = (),
) -> int:
    """The partition for a response.

    Args:
        preferred: the gateway's preferred partitions.
        partitions: partition count of the log.
        load: responses running on a partition, as far as this gateway knows.
        sticky: the partition of the previous response.
        turn: any number that differs from call to call. It breaks ties between equally loaded
            partitions.
        served: partitions from which a ready worker takes requests; empty while nothing is known.
    """
    usable = [p for p in range(partitions) if p in served] or range(partitions)
    preferred = [p for p in preferred if p in usable] or usable
    if (
        sticky is not None
        and sticky in usable
        and load(sticky) < _bound({*preferred, sticky}, load)
    ):
        return sticky
    return min(preferred, key=lambda p: (load(p), (preferred.index(p) - turn) % len(preferred)))


def _bound(candidates: Collection[int], load: Callable[[int], int]) -> int:
    """How many responses one of these partitions may have, the new one included."""
    return max(FLOOR, math.ceil(LOAD_FACTOR * (sum(map(load, candidates)) + 1) / len(candidates)))


def partition_of_key(principal: str, key: str, partitions: int) -> int:
    """The partition of a request with an idempotency key.

    It is a hash of principal and key, so that after a loss of Redis one partition tells whether the
    request is there (log rule §10).
    """
    digest = hashlib.blake2b(msgspec.json.encode([principal, key]), digest_size=8).digest()
    return int.from_bytes(digest, "big") % partitions


def prefix(scope: str, model: str, messages: Sequence[dict[str, Any]]) -> list[str]:
    """A chain of digests, one per message, each over all messages up to its own.

    The longest `MAX_DIGESTS` are kept, longest last. `scope` (`Owner.cache_scope`) is
    part of each digest: no user may learn from placement or timing what others have asked.
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
    """A message's content, with images by their digests only, wherever their files are."""
    if isinstance(content, str):
        return content
    return [{k: v for k, v in part.items() if k not in ("data", "file")} for part in content]
