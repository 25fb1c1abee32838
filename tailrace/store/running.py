"""How many responses the busiest principals run, as each gateway says.

key      running:gateways
value    hash: gateway name -> deadline in ms, and counts by hash of the principal, as JSON
lives    TTL_S per telling
writer   gateway
if lost  each gateway knows its own responses only, until the next telling
"""

from collections import Counter
from collections.abc import Mapping
from typing import Final

import msgspec

from tailrace.store.redis_store import RedisStore, decoded, digest, milliseconds
from tailrace.store.workers import HEARTBEAT, LIST

TTL_S: Final = 5
_KEY: Final = "running:gateways"


class Running:
    """Counts of all gateways. Every call raises StoreUnavailable."""

    def __init__(self, redis: RedisStore) -> None:
        self._redis = redis

    async def tell(self, gateway: str, counts: Mapping[str, int]) -> None:
        """What this gateway runs, by principal."""
        value = msgspec.json.encode({digest(name): count for name, count in counts.items()})
        await self._redis.execute("EVAL", HEARTBEAT, 1, _KEY, gateway, milliseconds(TTL_S), value)

    async def elsewhere(self, gateway: str) -> Counter[str]:
        """What the other gateways run, by `digest` of the principal."""
        flat: object = await self._redis.execute("EVAL", LIST, 1, _KEY)
        found = Counter[str]()
        if isinstance(flat, list):
            for name, value in zip(flat[::2], flat[1::2], strict=False):
                if name != gateway.encode():
                    counts = decoded(value, dict[str, int]) or {}
                    found.update({key: n for key, n in counts.items() if n > 0})
        return found
