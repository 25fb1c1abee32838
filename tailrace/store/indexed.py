"""Values under digests, with a maximum number for each pool: the oldest are removed first.

key      <index>:<digest>       the value
         <index>                sorted set of the digests, by time
"""

from collections.abc import Sequence
from typing import Final

from tailrace.store.redis_store import RedisStore, milliseconds

# KEYS[1] is the sorted set; ARGV begins with the ttl in ms and the most entries. What writes
# entries stands between these two. An entry is dropped by age, or, over the bound, oldest first.
BEGIN: Final = """
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local ttl = tonumber(ARGV[1])
"""
TRIM: Final = """
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - ttl)
local excess = redis.call('ZCARD', KEYS[1]) - tonumber(ARGV[2])
if excess > 0 then
  local oldest = redis.call('ZPOPMIN', KEYS[1], excess)
  for i = 1, #oldest, 2 do redis.call('DEL', KEYS[1] .. ':' .. oldest[i]) end
end
redis.call('PEXPIRE', KEYS[1], ttl)
"""

# ARGV further: value, digests...
_PUBLISH: Final = f"""{BEGIN}
for i = 4, #ARGV do
  redis.call('SET', KEYS[1] .. ':' .. ARGV[i], ARGV[3], 'PX', ttl)
  redis.call('ZADD', KEYS[1], now, ARGV[i])
end
{TRIM}"""


async def publish(
    redis: RedisStore, index: str, digests: Sequence[str], value: bytes, *, ttl_s: float, most: int
) -> None:
    """Write `value` under each digest. `most`: entries of the index. Raises StoreUnavailable."""
    await redis.execute("EVAL", _PUBLISH, 1, index, milliseconds(ttl_s), most, value, *digests)
