"""Revisions that get no new requests because they are worse. Gateways publish them to each other.

key      canaries
value    hash: pool/revision -> deadline in ms, and why as JSON
lives    until the revision is tried again, at most MOST_S
writer   gateway
if lost  each gateway that knows it publishes it again
"""

from collections.abc import Mapping
from typing import Annotated, Final, NamedTuple

import msgspec

from tailrace.store import expiring_fields
from tailrace.store.redis_store import RedisStore

_KEY: Final = "canaries"
MOST_S: Final = 86_400.0
MAX_NAME: Final = 256
# What another value says is not believed, and not shown to clients.
Reason = Annotated[str, msgspec.Meta(pattern=r"^[a-z_]{1,32}\Z")]
Digest = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{1,64}\Z")]


class Returned(NamedTuple):
    """A revision that gets nothing for `for_s` more. `terms`: digest of the pool's members by which
    it was judged."""

    terms: str
    reason: str
    for_s: float


class _Entry(msgspec.Struct):
    terms: Digest
    reason: Reason


class Canaries:
    """Every call raises StoreUnavailable."""

    def __init__(self, redis: RedisStore) -> None:
        self._redis = redis

    async def publish(self, pool: str, revision: str, verdict: Returned) -> None:
        """A revision gets no new requests."""
        value = _Entry(verdict.terms, verdict.reason)
        name, lives_s = f"{pool}/{revision}", min(verdict.for_s, MOST_S)
        await expiring_fields.write(self._redis, _KEY, name, value, lives_s)

    async def list_returned(self) -> Mapping[tuple[str, str], Returned]:
        """Those that get nothing, by pool and revision."""
        verdicts: dict[tuple[str, str], Returned] = {}
        for name, remaining_s, entry in await expiring_fields.list_valid(self._redis, _KEY, _Entry):
            if len(name) <= MAX_NAME:
                pool, _, revision = name.partition("/")
                verdicts[pool, revision] = Returned(
                    entry.terms, entry.reason, min(remaining_s, MOST_S)
                )
        return verdicts
