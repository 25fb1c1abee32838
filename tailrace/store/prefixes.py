"""Prompt prefixes: which partition's engine has computed which prefix.

key      prefix:{pool}:<digest>       partition, cached tokens, worker, as JSON
         prefix:{pool}                sorted set of the pool's digests, by time
lives    PREFIX_TTL_S
writer   worker
if lost  the engines' prefix caches are used less
"""

from collections.abc import Sequence
from typing import Annotated, Final, NamedTuple

import msgspec

from tailrace.protocol import ids
from tailrace.store import indexed
from tailrace.store.redis_store import RedisStore, decoded

PREFIX_TTL_S: Final = 10 * 60
MAX_PREFIXES_PER_POOL: Final = 50_000
MAX_DIGESTS_PER_CALL: Final = 64  # the longest prefixes are kept


class PrefixHit(NamedTuple):
    """Where a prefix is warm. `depth` counts the digests of the chain that are warm there: the
    longest of n digests has depth n."""

    partition: int
    depth: int


class _Prefix(msgspec.Struct, frozen=True):
    partition: Annotated[int, msgspec.Meta(ge=0, le=ids.MAX_PARTITION)]
    cached_tokens: Annotated[int, msgspec.Meta(ge=0)]
    worker: str


class Prefixes:
    """Digests of prompt prefixes come as a chain, longest first. Every call raises
    StoreUnavailable."""

    def __init__(self, redis: RedisStore, max_per_pool: int = MAX_PREFIXES_PER_POOL) -> None:
        self._redis = redis
        self._max_per_pool = max_per_pool

    async def publish_prefix(
        self, pool: str, digests: Sequence[str], partition: int, cached_tokens: int, worker: str
    ) -> None:
        """The engine of `partition` holds this chain now."""
        if not digests:
            return
        value = msgspec.json.encode(_Prefix(partition, cached_tokens, worker))
        await indexed.publish(
            self._redis,
            _index(pool),
            digests[:MAX_DIGESTS_PER_CALL],
            value,
            ttl_s=PREFIX_TTL_S,
            most=self._max_per_pool,
        )

    async def lookup_prefix(self, pool: str, digests: Sequence[str]) -> PrefixHit | None:
        """The longest known prefix of the chain, or None."""
        asked = digests[:MAX_DIGESTS_PER_CALL]
        if not asked:
            return None
        found = await self._redis.execute("MGET", *(f"{_index(pool)}:{digest}" for digest in asked))
        for position, value in enumerate(found if isinstance(found, list) else ()):
            prefix = decoded(value, _Prefix)
            if prefix is not None:
                return PrefixHit(prefix.partition, len(digests) - position)
        return None


def _index(pool: str) -> str:
    return f"prefix:{{{pool}}}"
