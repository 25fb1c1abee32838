"""Which partition a new response gets (pure; docs/design.md, Identity and place).

A conversation keeps its partition while the load allows, because the worker that owns the partition
has the conversation's prefix in its cache. A new conversation takes the least loaded preferred
partition. The load bound is the one of consistent hashing with bounded loads: no partition may have
more than its fair share times a constant.

A partition that no ready worker takes requests from is left out while there is another: its worker
drains or died, and the request would wait until the group has assigned it again.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

import msgspec

PREFERRED_PARTITIONS: Final = 4
LOAD_FACTOR: Final = 1.25
# Below this many running responses on a partition a warm prefix is worth more than evenness.
FLOOR: Final = 8
MAX_DIGESTS: Final = 64


def preferred_partitions(
    partitions: int, offset: int, size: int = PREFERRED_PARTITIONS
) -> list[int]:
    """A gateway's preferred partitions, evenly spaced from `offset` on.

    Workers own contiguous ranges, so evenly spaced partitions reach all workers.
    """
    count = min(size, partitions)
    return sorted({(offset + i * partitions // count) % partitions for i in range(count)})


def choose(
    preferred: Sequence[int],
    partitions: int,
    load: Callable[[int], int],
    *,
    warm: int | None = None,
    sticky: int | None = None,
    turn: int = 0,
    served: Collection[int] = (),
) -> int:
    """The partition for a response.

    Args:
        preferred: the gateway's preferred partitions.
        partitions: partition count of the log.
        load: responses running on a partition, as far as this gateway knows.
        warm: the partition whose worker holds the prompt's prefix, by the cache metadata.
        sticky: the partition of the previous response.
        turn: any number that differs from call to call. It breaks ties between equally loaded
            partitions.
        served: partitions from which a ready worker takes requests; empty while nothing is known.
    """
    taken = [p for p in range(partitions) if p in served] or range(partitions)
    preferred = [p for p in preferred if p in taken] or taken
    for cached in (warm, sticky):
        if (
            cached is not None
            and cached in taken
            and load(cached) < _bound({*preferred, cached}, load)
        ):
            return cached
    return min(preferred, key=lambda p: (load(p), (preferred.index(p) - turn) % len(preferred)))


def _bound(candidates: Collection[int], load: Callable[[int], int]) -> int:
    """How many responses one of these partitions may have, the new one included."""
    return max(FLOOR, math.ceil(LOAD_FACTOR * (sum(map(load, candidates)) + 1) / len(candidates)))


def of_key(principal: str, key: str, partitions: int) -> int:
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
            state + msgspec.json.encode([message["role"], _said(message["content"])]),
            digest_size=16,
        ).digest()
        chain.append(state.hex())
    return chain[-MAX_DIGESTS:]


def _said(content: Any) -> Any:
    """A message's content, with images by their digests only, wherever their files are."""
    if isinstance(content, str):
        return content
    return [{k: v for k, v in part.items() if k not in ("data", "file")} for part in content]
