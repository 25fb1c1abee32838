"""Open breakers of pools, which gateways publish to each other.

key      breakers
value    hash: pool -> deadline in ms, and why it is open as JSON
lives    for as long as the breaker is open
writer   gateway
if lost  each gateway learns of a broken pool by its own requests
"""

from collections.abc import Mapping
from typing import Annotated, Final, NamedTuple

import msgspec

from tailrace.store import expiring_fields
from tailrace.store.redis_store import RedisStore

_KEY: Final = "breakers"
MOST_S: Final = 600.0
# What another value says is not believed, and not shown to clients.
Reason = Annotated[str, msgspec.Meta(pattern=r"^[a-z_]{1,32}\Z")]
Times = Annotated[int, msgspec.Meta(ge=1, le=1_000)]


class Open(NamedTuple):
    """A breaker that is open for `for_s` more, for the time number `opened` in a row. `by`: the
    gateway that published it."""

    by: str
    opened: int
    reason: str
    for_s: float


class _Entry(msgspec.Struct):
    by: str
    opened: Times
    reason: Reason


class Breakers:
    """Every call raises StoreUnavailable."""

    def __init__(self, redis: RedisStore) -> None:
        self._redis = redis

    async def publish(self, pool: str, breaker: Open) -> None:
        """A breaker has opened here."""
        value = _Entry(breaker.by, breaker.opened, breaker.reason)
        await expiring_fields.write(self._redis, _KEY, pool, value, breaker.for_s)

    async def list_open(self) -> Mapping[str, Open]:
        """Those that are open, by pool."""
        breakers: dict[str, Open] = {}
        for pool, remaining_s, entry in await expiring_fields.list_valid(self._redis, _KEY, _Entry):
            breakers[pool] = Open(entry.by, entry.opened, entry.reason, min(remaining_s, MOST_S))
        return breakers
