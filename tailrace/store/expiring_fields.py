"""Hashes in Redis whose fields expire: reports of several processes on themselves or on others.

A value is "<deadline in ms> <JSON>", because fields of a hash expire by themselves only from Redis
7.4. Deadlines are by Redis's clock, so no two clocks are compared.
"""

from typing import Final, Generic, NamedTuple, TypeVar

import msgspec

from tailrace.store.redis_store import RedisStore, decode, milliseconds

T = TypeVar("T")

_WRITE: Final = """
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
redis.call('HSET', KEYS[1], ARGV[1], string.format('%d %s', now + tonumber(ARGV[2]), ARGV[3]))
if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
"""

_LIST: Final = """
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local all, valid = redis.call('HGETALL', KEYS[1]), {}
for i = 1, #all, 2 do
  local deadline, value = string.match(all[i + 1], '^(%d+) (.*)$')
  if deadline and tonumber(deadline) > now then
    table.insert(valid, all[i])
    table.insert(valid, tostring(tonumber(deadline) - now))
    table.insert(valid, value)
  else
    redis.call('HDEL', KEYS[1], all[i])
  end
end
return valid
"""


class Field(NamedTuple, Generic[T]):
    """A valid field. `remaining_s`: until it expires."""

    name: str
    remaining_s: float
    value: T


async def write(redis: RedisStore, key: str, field: str, value: object, lives_s: float) -> None:
    """Write a field; replaces the former one. Raises StoreUnavailable."""
    encoded = msgspec.json.encode(value)
    await redis.execute("EVAL", _WRITE, 1, key, field, milliseconds(lives_s), encoded)


async def list_valid(redis: RedisStore, key: str, shape: type[T]) -> list[Field[T]]:
    """Every field that is valid and has this shape. Raises StoreUnavailable."""
    flat: object = await redis.execute("EVAL", _LIST, 1, key)
    if not isinstance(flat, list):
        return []
    return [
        Field(name.decode(errors="replace"), int(remaining_ms) / 1000, value)
        for name, remaining_ms, encoded in zip(flat[::3], flat[1::3], flat[2::3], strict=False)
        if isinstance(name, bytes)
        and isinstance(remaining_ms, bytes)
        and remaining_ms.isdigit()
        and len(remaining_ms) < 16
        and (value := decode(encoded, shape)) is not None
    ]
