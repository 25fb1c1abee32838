"""Revoked principals.

key      revoked:<hash of the principal>
value    1
lives    as long as the caller says
writer   operator
if lost  a revoked principal is let in until its credential expires
"""

from tailrace.store.redis_store import RedisStore, digest, milliseconds


class Revocations:
    """Every call raises StoreUnavailable."""

    def __init__(self, redis: RedisStore) -> None:
        self._redis = redis

    async def revoke(self, principal_key: str, ttl_s: float) -> None:
        """Refuse this principal. `ttl_s`: at least the longest lifetime its credentials can still
        have."""
        await self._redis.execute("SET", _key(principal_key), b"1", "PX", milliseconds(ttl_s))

    async def is_revoked(self, principal_key: str) -> bool:
        """Whether the principal is refused. What holds while Redis is away is the caller's
        decision."""
        return bool(await self._redis.execute("EXISTS", _key(principal_key)))


def _key(principal_key: str) -> str:
    return f"revoked:{digest(principal_key)}"
