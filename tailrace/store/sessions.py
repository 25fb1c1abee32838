"""Conversation state of a finished response, so that the next turn need not read the log.

key      session:<response id>
value    opaque bytes, at most MAX_SESSION_BYTES
lives    SESSION_IDLE_S after the last use
writer   gateway
if lost  rebuilt from the log
"""

from typing import Final

from tailrace.store.redis_store import RedisStore, milliseconds

SESSION_IDLE_S: Final = 30 * 60
MAX_SESSION_BYTES: Final = 1 << 20


class Sessions:
    """The cached turns. Every call raises StoreUnavailable."""

    def __init__(self, redis: RedisStore) -> None:
        self._redis = redis

    async def put_turn(self, rid: str, state: bytes) -> bool:
        """Keep the state. False when it is too large for the cache."""
        if len(state) > MAX_SESSION_BYTES:
            return False
        await self._redis.execute("SET", _key(rid), state, "PX", milliseconds(SESSION_IDLE_S))
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
