"""Idempotency keys: the response of a client's key.

key      idem:<hash of principal and key>    response id
         idem:of:<hash of the principal>    list: the principal's keys, oldest first
lives    as long as the caller says, and while it is one of the principal's newest
writer   gateway
if lost  looked up in the log
"""

from typing import Final

from tailrace.protocol import ids
from tailrace.store.redis_store import RedisStore, digest, milliseconds

# Returns the value that stands after the call. SET with NX and GET together needs Redis 7.
# A value that is not a response id is overwritten: else it would hide the key until it
# expires. Keys of one principal; above it the oldest are forgotten. 260 bytes each, with the list.
MOST: Final = 50_000

# KEYS: the key, the principal's list. ARGV: response id, lifetime in ms, most keys.
_CLAIM: Final = """
local first = redis.call('GET', KEYS[1])
if first and string.match(first, '^resp_[%w_-]+$') then return first end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
redis.call('RPUSH', KEYS[2], KEYS[1])
redis.call('PEXPIRE', KEYS[2], ARGV[2])
for _ = 1, redis.call('LLEN', KEYS[2]) - ARGV[3] do
  redis.call('DEL', redis.call('LPOP', KEYS[2]))
end
return ARGV[1]
"""

_RELEASE: Final = """
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
"""


class IdempotencyKeys:
    """Set-if-absent per (principal, key). Every call raises StoreUnavailable."""

    def __init__(self, redis: RedisStore) -> None:
        self._redis = redis

    async def claim_key(
        self, principal_key: str, key: str, rid: str, ttl_s: float, most: int = MOST
    ) -> str:
        """The response id that holds `key`: `rid` if it is the first, else the first one's. Of a
        principal's keys the `most` newest are known.

        A value that is not a response id counts as missing; the log then decides.
        """
        value: object = await self._redis.execute(
            "EVAL",
            _CLAIM,
            2,
            _key(principal_key, key),
            f"idem:of:{digest(principal_key)}",
            rid,
            milliseconds(ttl_s),
            most,
        )
        first = value.decode("ascii", "replace") if isinstance(value, bytes) else ""
        try:
            ids.parse(first)
        except ids.InvalidId:
            return rid
        return first

    async def release_key(self, principal_key: str, key: str, rid: str) -> None:
        """Free `key` if `rid` holds it. For a submission that certainly failed: a retry must not be
        attached to a response that will never exist."""
        await self._redis.execute("EVAL", _RELEASE, 1, _key(principal_key, key), rid)


def _key(principal_key: str, key: str) -> str:
    return f"idem:{digest(principal_key, key)}"
