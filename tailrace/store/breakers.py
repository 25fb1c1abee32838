"""Breakers of pools that are open, as the gateways tell each other.

key      breakers
value    hash: pool -> deadline in ms, and why it is open as JSON
lives    for as long as the breaker is open
writer   gateway
if lost  each gateway learns of a broken pool by its own requests
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final, NamedTuple

import msgspec

from tailrace.store.redis_store import RedisStore, decoded, milliseconds
from tailrace.store.workers import HEARTBEAT

_KEY: Final = "breakers"
MOST_S: Final = 600.0
# What another value says is not believed, and not shown to clients.
Reason = Annotated[str, msgspec.Meta(pattern=r"^[a-z_]{1,32}\Z")]
Times = Annotated[int, msgspec.Meta(ge=1, le=1_000)]

# As `tailrace.store.workers.LIST`, with what is left of the time in place of the deadline.
LIST: Final = """
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local all, open = redis.call('HGETALL', KEYS[1]), {}
for i = 1, #all, 2 do
  local deadline, info = string.match(all[i + 1], '^(%d+) (.*)$')
  if deadline and tonumber(deadline) > now then
    table.insert(open, all[i])
    table.insert(open, tostring(tonumber(deadline) - now))
    table.insert(open, info)
  else
    redis.call('HDEL', KEYS[1], all[i])
  end
end
return open
"""


class Open(NamedTuple):
    """A breaker that is open for `for_s` more, for the time number `opened` in a row. `by`: the
    gateway that tells."""

    by: str
    opened: int
    reason: str
    for_s: float


class _Told(msgspec.Struct):
    by: str
    opened: Times
    reason: Reason


class Breakers:
    """Every call raises StoreUnavailable."""

    def __init__(self, redis: RedisStore) -> None:
        self._redis = redis

    async def tell(self, pool: str, found: Open) -> None:
        """A breaker has opened here."""
        value = msgspec.json.encode(_Told(found.by, found.opened, found.reason))
        lives = milliseconds(found.for_s)
        await self._redis.execute("EVAL", HEARTBEAT, 1, _KEY, pool, lives, value)

    async def listed(self) -> Mapping[str, Open]:
        """Those that are open, by pool."""
        flat: Any = await self._redis.execute("EVAL", LIST, 1, _KEY)
        found: dict[str, Open] = {}
        if not isinstance(flat, list):
            return found
        for pool, left, value in zip(flat[::3], flat[1::3], flat[2::3], strict=False):
            told = decoded(value, _Told)
            timed = isinstance(left, bytes) and left.isdigit() and len(left) < 16
            if told is not None and timed and isinstance(pool, bytes):
                name, for_s = pool.decode(errors="replace"), min(int(left) / 1000, MOST_S)
                found[name] = Open(told.by, told.opened, told.reason, for_s)
        return found
