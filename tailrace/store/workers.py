"""Heartbeats: what each worker of a pool says about itself.

key      workers:{pool}
value    hash: worker name -> deadline in ms, and the worker's state as JSON
lives    HEARTBEAT_TTL_S per heartbeat
writer   worker
if lost  capacity is unknown until the next heartbeat
"""

from typing import Any, Final

import msgspec

from tailrace.store.redis_store import RedisStore, decoded, milliseconds

HEARTBEAT_TTL_S: Final = 5
# A heartbeat that says more is not believed.
MAX_FIGURE: Final = 1e9
MAX_TEXT: Final = 4096

# Also for other hashes whose fields are written again and again (`tailrace.store.running`).
# The deadlines are part of the values: fields of a hash expire by themselves only from Redis 7.4.
HEARTBEAT: Final = """
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
redis.call('HSET', KEYS[1], ARGV[1], string.format('%d %s', now + tonumber(ARGV[2]), ARGV[3]))
if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
"""

LIST: Final = """
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local all, alive = redis.call('HGETALL', KEYS[1]), {}
for i = 1, #all, 2 do
  local deadline, info = string.match(all[i + 1], '^(%d+) (.*)$')
  if deadline and tonumber(deadline) >= now then
    table.insert(alive, all[i])
    table.insert(alive, info)
  else
    redis.call('HDEL', KEYS[1], all[i])
  end
end
return alive
"""


class Workers:
    """The workers of each pool. Every call raises StoreUnavailable."""

    def __init__(self, redis: RedisStore) -> None:
        self._redis = redis

    async def heartbeat(
        self, pool: str, name: str, info: dict[str, Any], ttl_s: float = HEARTBEAT_TTL_S
    ) -> None:
        """`info`: state (loading, ready, draining), features (`tailrace.protocol.features`),
        capacity, running, queued, tokens_per_s, partitions and more."""
        await self._redis.execute(
            "EVAL", HEARTBEAT, 1, _key(pool), name, milliseconds(ttl_s), msgspec.json.encode(info)
        )

    async def list_workers(self, pool: str) -> list[dict[str, Any]]:
        """Every worker whose last heartbeat is still valid, by name: its `info` plus `name`."""
        flat: object = await self._redis.execute("EVAL", LIST, 1, _key(pool))
        if not isinstance(flat, list):
            return []
        beats = {
            name.decode(errors="replace"): info
            for name, value in zip(flat[::2], flat[1::2], strict=False)
            if isinstance(name, bytes)
            and (info := decoded(value, dict[str, Any])) is not None
            and all(_plausible(each) for each in info.values())
        }
        return [{**beats[name], "name": name} for name in sorted(beats)]

    async def forget_worker(self, pool: str, name: str) -> None:
        """For a worker that leaves in order: its entry does not wait for its deadline."""
        await self._redis.execute("HDEL", _key(pool), name)


def _plausible(value: object) -> bool:
    """Whether a worker may have said this: waiting times are computed from its figures, and people
    read its texts."""
    if isinstance(value, list):
        return all(not isinstance(each, list) and _plausible(each) for each in value)
    if isinstance(value, str):
        return len(value) <= MAX_TEXT
    return value is None or (isinstance(value, int | float) and 0 <= value <= MAX_FIGURE)


def _key(pool: str) -> str:
    return f"workers:{{{pool}}}"
