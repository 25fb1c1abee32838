"""Heartbeats: what each worker of a pool says about itself.

key      workers:{pool}
value    hash: worker name -> deadline in ms, and the worker's state as JSON
lives    HEARTBEAT_TTL_S per heartbeat
writer   worker
if lost  capacity is unknown until the next heartbeat
"""

from typing import Any, Final

from tailrace.store import expiring_fields
from tailrace.store.redis_store import RedisStore

HEARTBEAT_TTL_S: Final = 5
# A heartbeat that says more is not believed.
MAX_FIGURE: Final = 1e9
MAX_TEXT: Final = 4096


class Workers:
    """The workers of each pool. Every call raises StoreUnavailable."""

    def __init__(self, redis: RedisStore) -> None:
        self._redis = redis

    async def heartbeat(
        self, pool: str, name: str, info: dict[str, Any], ttl_s: float = HEARTBEAT_TTL_S
    ) -> None:
        """`info`: state (loading, ready, draining), features (`tailrace.protocol.features`),
        capacity, running, queued, tokens_per_s, partitions and more."""
        await expiring_fields.write(self._redis, _key(pool), name, info, ttl_s)

    async def list_workers(self, pool: str) -> list[dict[str, Any]]:
        """Every worker whose last heartbeat is still valid, by name: its `info` plus `name` and
        `silent_s`, how old the heartbeat is."""
        fields = await expiring_fields.list_valid(self._redis, _key(pool), dict[str, Any])
        beats = {
            name: info | {"name": name, "silent_s": max(0.0, HEARTBEAT_TTL_S - remaining_s)}
            for name, remaining_s, info in fields
            if all(_plausible(each) for each in info.values())
        }
        return [beats[name] for name in sorted(beats)]

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
