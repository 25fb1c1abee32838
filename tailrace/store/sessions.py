"""Conversation state of a finished response, so that the next turn need not read the log.

key      session:<response id>        opaque bytes, at most MAX_SESSION_BYTES
         sessions:<hash of the owner>   list: the owner's sessions, oldest first, each with its
                                        size and the time at which it is looked for again
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

# KEYS: the session, the owner's list and sum. ARGV: state, lifetime in ms, budget in bytes.
# An entry is `<size> <time in ms> <session's key>`. One whose time has come may have been used
# since: then it is counted on.
_PUT: Final = """
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local ttl, budget = tonumber(ARGV[2]), tonumber(ARGV[3])
local sum = tonumber(redis.call('GET', KEYS[3])) or 0
local function append(size, key)
  redis.call('RPUSH', KEYS[2], string.format('%d %d %s', size, now + ttl, key))
end
local function parts(entry)
  local size, due, key = string.match(entry, '^(%d+) (%d+) (.*)$')
  return tonumber(size) or 0, tonumber(due) or 0, key or ''
end
for _ = 1, 100 do
  local entry = redis.call('LINDEX', KEYS[2], 0)
  if not entry then break end
  local size, due, key = parts(entry)
  if due > now then break end
  redis.call('LPOP', KEYS[2])
  if redis.call('EXISTS', key) == 1 then append(size, key) else sum = sum - size end
end
if redis.call('EXISTS', KEYS[1]) == 0 then
  append(#ARGV[1], KEYS[1])
  sum = sum + #ARGV[1]
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ttl)
while sum > budget do
  local oldest = redis.call('LPOP', KEYS[2])
  if not oldest then sum = 0 break end
  local size, _, key = parts(oldest)
  redis.call('DEL', key)
  sum = sum - size
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
        """The state, or None. Reading starts the idle time again."""
        value: object = await self._redis.execute(
            "GETEX", _key(rid), "PX", milliseconds(SESSION_IDLE_S)
        )
        return value if isinstance(value, bytes) and len(value) <= MAX_SESSION_BYTES else None

    async def drop_turn(self, rid: str) -> None:
        """Forget the state."""
        await self._redis.execute("DEL", _key(rid))


def _key(rid: str) -> str:
    return f"session:{rid}"
