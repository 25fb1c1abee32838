"""Which partition a new response gets (pure; design, identity and place).

A conversation keeps its partition while the load allows, so that the worker that owns it has the
prefix in its cache; a new one takes the least loaded home partition. "While the load allows" is the
bound of consistent hashing with bounded loads: no partition above its fair share times a
constant."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

import msgspec

HOME_PARTITIONS: Final = 4
LOAD_FACTOR: Final = 1.25
# a warm prefix is worth more than evenness while a partition has fewer running responses than this
FLOOR: Final = 8
MAX_DIGESTS: Final = 64


def home(partitions: int, offset: int, size: int = HOME_PARTITIONS) -> list[int]:
    """A gateway's home partitions, spread evenly: workers own contiguous ranges, so an even spread
    reaches all of them. `offset` is drawn at start."""
    count = min(size, partitions)
    return sorted({(offset + i * partitions // count) % partitions for i in range(count)})


def choose(
    homes: Sequence[int],
    partitions: int,
    load: Callable[[int], int],
    *,
    warm: int | None = None,
    sticky: int | None = None,
    turn: int = 0,
) -> int:
    """The partition for a response.

    Args:
        load: responses running on a partition, as far as this gateway knows.
        warm: the partition whose worker holds the prompt's prefix, by the cache metadata.
        sticky: the partition of the previous response.
        turn: any number that differs from call to call; breaks ties, so that equal partitions take
            turns.
    """
    for preferred in (warm, sticky):
        if (
            preferred is not None
            and 0 <= preferred < partitions
            and load(preferred) < _bound({*homes, preferred}, load)
        ):
            return preferred
    return min(homes, key=lambda p: (load(p), (homes.index(p) - turn) % len(homes)))


def _bound(candidates: Collection[int], load: Callable[[int], int]) -> int:
    """What one of these partitions may have, counting the response to be placed."""
    return max(FLOOR, math.ceil(LOAD_FACTOR * (sum(map(load, candidates)) + 1) / len(candidates)))


def of_key(principal: str, key: str, partitions: int) -> int:
    """With an idempotency key the partition follows from it, so that after a loss of Redis one
    partition tells whether the request is there (log rule §10)."""
    digest = hashlib.blake2b(msgspec.json.encode([principal, key]), digest_size=8).digest()
    return int.from_bytes(digest, "big") % partitions


def prefix(tenant: str, model: str, messages: Sequence[dict[str, Any]]) -> list[str]:
    """A chain of digests, one per message, each over all before it; the last (longest) ones are
    kept, longest last.

    The tenant is part of it: one tenant must not learn from placement or timing what another one
    has asked.
    """
    state = hashlib.blake2b(msgspec.json.encode([tenant, model]), digest_size=16).digest()
    chain = []
    for message in messages:
        state = hashlib.blake2b(
            state + msgspec.json.encode([message["role"], message["content"]]), digest_size=16
        ).digest()
        chain.append(state.hex())
    return chain[-MAX_DIGESTS:]
