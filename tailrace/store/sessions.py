"""Conversation state of a finished response, so that the next turn need not read the log.

key      session:<response id>        opaque bytes, at most MAX_SESSION_BYTES
         sessions:<hash of the owner>   sorted set: the owner's sessions with their sizes, by the
                                        time at which they are looked for again
         sessions:<hash of the owner>:bytes   their sizes together
lives    SESSION_IDLE_S after the last use
writer   gateway
if lost  rebuilt from the log
"""

from typing import Final

from tailrace.store.redis_store import RedisStore, digest, milliseconds

SESSION_IDLE_S: Final = 30 * 60
MAX_SESSION_BYTES: Final = 1 << 20
# Of one owner; above it the owner's oldest go.
OWNER_BYTES: Final = 16 << 20

# KEYS: the session, the owner's set, the owner's sum. ARGV: state, lifetime in ms, budget in bytes.
# A member is `<size> <session's key>`. One whose time has come may have been used since: then it is
# counted on.
_PUT: Final = """
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local ttl, budget = tonumber(ARGV[2]), tonumber(ARGV[3])
local sum = tonumber(redis.call('GET', KEYS[3])) or 0
local function size_of(member) return tonumber(string.match(member, '^(%d+) ')) or 0 end
for _, member in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, 100)) do
  if redis.call('EXISTS', string.match(member, ' (.*)$') or '') == 1 then
    redis.call('ZADD', KEYS[2], now + ttl, member)
  else
    redis.call('ZREM', KEYS[2], member)
    sum = sum - size_of(member)
  end
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ttl)
if redis.call('ZADD', KEYS[2], now + ttl, #ARGV[1] .. ' ' .. KEYS[1]) == 1 then
  sum = sum + #ARGV[1]
end
while sum > budget do
  local oldest = redis.call('ZPOPMIN', KEYS[2])[1]
  if not oldest then sum = 0 break end
  redis.call('DEL', string.match(oldest, ' (.*)$'))
  sum = sum - size_of(oldest)
end
redis.call('SET', KEYS[3], string.format('%d', math.max(0, sum)), 'PX', 2 * ttl)
redis.call('PEXPIRE', KEYS[2], 2 * ttl)
"""


class Sessions:
    """The cached turns. Every call raises StoreUnavailable."""

    def __init__(self, redis: RedisStore) -> None:
        self._redis = redis

    async def put_turn(self, owner: str, rid: str, state: bytes, budget: int = OWNER_BYTES) -> bool:
        """Keep the state within the owner's budget of bytes. False when it is too large for the
        cache."""
        if len(state) > MAX_SESSION_BYTES:
            return False
        index = f"sessions:{digest(owner)}"
        await self._redis.execute(
            "EVAL",
            _PUT,
            3,
            _key(rid),
            index,
            f"{index}:bytes",
            state,
            milliseconds(SESSION_IDLE_S),
            budget,
        )
        return True

    async def get_turn(self, rid: str) -> bytes | None:
        """The state, or None. Reading starts the idle time anew."""
        value: object = await self._redis.execute(
            "GETEX", _key(rid), "PX", milliseconds(SESSION_IDLE_S)
        )
        return value if isinstance(value, bytes) and len(value) <= MAX_SESSION_BYTES else None

    async def drop_turn(self, rid: str) -> None:
        """Forget the state."""
        await self._redis.execute("DEL", _key(rid))


def _key(rid: str) -> str:
    return f"session:{rid}"
