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

from tailrace.store import expiring_fields
from tailrace.store.redis_store import RedisStore, digest

TTL_S: Final = 5
_KEY: Final = "running:gateways"


class Running:
    """Counts of all gateways. Every call raises StoreUnavailable."""

    def __init__(self, redis: RedisStore) -> None:
        self._redis = redis

    async def publish(self, gateway: str, counts: Mapping[str, int]) -> None:
        """What this gateway runs, by principal."""
        value = {digest(name): count for name, count in counts.items()}
        await expiring_fields.write(self._redis, _KEY, gateway, value, TTL_S)

    async def elsewhere(self, gateway: str) -> Counter[str]:
        """What the other gateways run, by `digest` of the principal."""
        totals = Counter[str]()
        for name, _, counts in await expiring_fields.list_valid(self._redis, _KEY, dict[str, int]):
            if name != gateway:
                totals.update({key: n for key, n in counts.items() if n > 0})
        return totals
