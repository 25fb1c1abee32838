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
from tailrace.store.redis_store import RedisStore, decoded, milliseconds

PREFIX_TTL_S: Final = 10 * 60
MAX_PREFIXES_PER_POOL: Final = 50_000
MAX_DIGESTS_PER_CALL: Final = 64  # the longest prefixes are kept

# KEYS[1] the sorted set. ARGV: ttl in ms, most entries, value, digests...
# An entry is dropped by age, or, over the bound, oldest first.
_PUBLISH: Final = """
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local ttl = tonumber(ARGV[1])
for i = 4, #ARGV do
  redis.call('SET', KEYS[1] .. ':' .. ARGV[i], ARGV[3], 'PX', ttl)
  redis.call('ZADD', KEYS[1], now, ARGV[i])
end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - ttl)
local excess = redis.call('ZCARD', KEYS[1]) - tonumber(ARGV[2])
if excess > 0 then
  local oldest = redis.call('ZPOPMIN', KEYS[1], excess)
  for i = 1, #oldest, 2 do redis.call('DEL', KEYS[1] .. ':' .. oldest[i]) end
end
redis.call('PEXPIRE', KEYS[1], ttl)
"""


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
        await self._redis.execute(
            "EVAL",
            _PUBLISH,
            1,
            _index(pool),
            milliseconds(PREFIX_TTL_S),
            self._max_per_pool,
            value,
            *digests[:MAX_DIGESTS_PER_CALL],
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
