"""Requests that gateways turned away, because they would have waited for too long: workers expect
that as many would come if there were room.

key      turned_away:{pool}
value    hash: gateway name -> deadline in ms, and as JSON what it turned away since it began to
         count: "<class> <name of the principal>" -> [requests, tokens that they asked for]; without
         a name of all principals
lives    TTL_S per telling
writer   gateway
if lost  workers expect only what came before
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from tailrace.protocol import topics
from tailrace.store import expiring_fields
from tailrace.store.redis_store import RedisStore

TTL_S: Final = 5
# A count of more requests, or of requests that ask for more on average, is not believed.
MAX_REQUESTS: Final = 1e9
MAX_TOKENS: Final = 1e9


class Whose(NamedTuple):
    """`rank`: of the class, 0 first. `name`: of the principal, as workers tell its waits
    (`fair_queue.waits_of`); empty: all principals."""

    rank: int
    name: str = ""


class Count(NamedTuple):
    """Requests, and the tokens that they asked for."""

    requests: float
    tokens: float


class TurnedAway:
    """Counts of all gateways. Every call raises StoreUnavailable."""

    def __init__(self, redis: RedisStore) -> None:
        self._redis = redis

    async def tell(self, pool: str, gateway: str, counts: Mapping[Whose, Count]) -> None:
        """What this gateway turned away since it began to count."""
        value = {f"{topics.CLASSES[rank]} {name}": count for (rank, name), count in counts.items()}
        await expiring_fields.put(self._redis, _key(pool), gateway, value, TTL_S)

    async def listed(self, pool: str) -> dict[str, dict[Whose, Count]]:
        """The same of every gateway that tells, by its name."""
        found = await expiring_fields.listed(self._redis, _key(pool), dict[str, Count])
        return {
            gateway: {
                Whose(topics.CLASSES.index(priority), name): count
                for key, count in counts.items()
                for priority, _, name in (key.partition(" "),)
                if priority in topics.CLASSES and _plausible(count)
            }
            for gateway, _, counts in found
        }


def _plausible(count: Count) -> bool:
    requests, tokens = count
    return 1 <= requests <= MAX_REQUESTS and 0 <= tokens <= requests * MAX_TOKENS


def _key(pool: str) -> str:
    return f"turned_away:{{{pool}}}"
