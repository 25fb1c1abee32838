"""Prompt prefixes: which workers' engines hold which beginnings of conversations.

key      prefix:{pool}:<digest>       a line for each worker: name, cached tokens, deadline in ms
         prefix:{pool}                sorted set of the pool's digests, by time
lives    PREFIX_TTL_S per telling
writer   worker
if lost  the engines' prefix caches are used less
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from tailrace.store import indexed
from tailrace.store.redis_store import RedisStore, digest, milliseconds

PREFIX_TTL_S: Final = 5 * 60
MAX_PREFIXES_PER_POOL: Final = 50_000
MAX_DIGESTS_PER_CALL: Final = 64  # of a look-up; the longest prefixes are used
MAX_HOLDERS: Final = 8  # of one prefix; those that published last stay
# What says more is not believed.
MAX_TOKENS: Final = 10_000_000
_NAME: Final = 12
_LINE: Final = re.compile(rb"([0-9a-f]{12}) ([1-9]\d{0,8}) \d+")

# As in `indexed`. ARGV further: most holders, holder, then pairs of digest and tokens; 0: it holds
# it no longer.
_PUBLISH: Final = (
    indexed.BEGIN
    + """
local holder = ARGV[4]
for i = 5, #ARGV, 2 do
  local key, lines = KEYS[1] .. ':' .. ARGV[i], {}
  if ARGV[i + 1] ~= '0' then
    lines[1] = string.format('%s %s %d', holder, ARGV[i + 1], now + ttl)
  end
  for line in string.gmatch(redis.call('GET', key) or '', '[^\\n]+') do
    local name, deadline = string.match(line, '^(%x+) %d+ (%d+)$')
    if name and name ~= holder and tonumber(deadline) > now and #lines < tonumber(ARGV[3]) then
      table.insert(lines, line)
    end
  end
  if #lines > 0 then
    redis.call('SET', key, table.concat(lines, '\\n'), 'PX', ttl)
    redis.call('ZADD', KEYS[1], now, ARGV[i])
  else
    redis.call('DEL', key)
    redis.call('ZREM', KEYS[1], ARGV[i])
  end
end
"""
    + indexed.TRIM
)


def holder_name(incarnation: str) -> str:
    """The name of a worker's process in Redis."""
    return digest(incarnation)[:_NAME]


class Prefixes:
    """Digests of prompt prefixes. Every call raises StoreUnavailable."""

    def __init__(self, redis: RedisStore, max_per_pool: int = MAX_PREFIXES_PER_POOL) -> None:
        self._redis = redis
        self._max_per_pool = max_per_pool

    async def publish(self, pool: str, incarnation: str, tokens: Mapping[str, int]) -> None:
        """Publish how many tokens of these prefixes the worker's engine holds now; 0: none."""
        if not tokens:
            return
        await self._redis.execute(
            "EVAL",
            _PUBLISH,
            1,
            _index(pool),
            milliseconds(PREFIX_TTL_S),
            self._max_per_pool,
            MAX_HOLDERS,
            holder_name(incarnation),
            *(each for pair in tokens.items() for each in pair),
        )

    async def held(self, pool: str, digests: Sequence[str]) -> dict[str, int]:
        """Tokens of a prompt that workers hold, by the worker's `holder_name`. `digests`: of
        the prompt's beginnings, the longest last."""
        wanted_digests = digests[-MAX_DIGESTS_PER_CALL:]
        if not wanted_digests:
            return {}
        values = await self._redis.execute(
            "MGET", *(f"{_index(pool)}:{each}" for each in wanted_digests)
        )
        most: dict[str, int] = {}
        for value in values if isinstance(values, list) else ():
            for line in value.split(b"\n", MAX_HOLDERS) if isinstance(value, bytes) else ():
                match = _LINE.fullmatch(line)
                if match is not None and (tokens := int(match[2])) <= MAX_TOKENS:
                    name = match[1].decode()
                    most[name] = max(most.get(name, 0), tokens)
        return most


def _index(pool: str) -> str:
    return f"prefix:{{{pool}}}"
