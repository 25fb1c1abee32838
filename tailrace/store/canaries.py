"""Revisions that get no new requests, because they are worse, as the gateways tell each other.

key      canaries
value    hash: pool/revision -> deadline in ms, and why as JSON
lives    until the revision is tried again, at most MOST_S
writer   gateway
if lost  each gateway that knows it tells it again
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final, NamedTuple

import msgspec

from tailrace.store.breakers import LIST
from tailrace.store.redis_store import RedisStore, decoded, milliseconds
from tailrace.store.workers import HEARTBEAT

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


class _Told(msgspec.Struct):
    terms: Digest
    reason: Reason


class Canaries:
    """Every call raises StoreUnavailable."""

    def __init__(self, redis: RedisStore) -> None:
        self._redis = redis

    async def tell(self, pool: str, revision: str, found: Returned) -> None:
        """A revision gets no new requests."""
        value = msgspec.json.encode(_Told(found.terms, found.reason))
        lives = milliseconds(min(found.for_s, MOST_S))
        await self._redis.execute("EVAL", HEARTBEAT, 1, _KEY, f"{pool}/{revision}", lives, value)

    async def listed(self) -> Mapping[tuple[str, str], Returned]:
        """Those that get nothing, by pool and revision."""
        flat: Any = await self._redis.execute("EVAL", LIST, 1, _KEY)
        found: dict[tuple[str, str], Returned] = {}
        if not isinstance(flat, list):
            return found
        for name, left, value in zip(flat[::3], flat[1::3], flat[2::3], strict=False):
            told = decoded(value, _Told)
            timed = isinstance(left, bytes) and left.isdigit() and len(left) < 16
            if told is None or not timed or not isinstance(name, bytes) or len(name) > MAX_NAME:
                continue
            pool, _, revision = name.decode(errors="replace").partition("/")
            for_s = min(int(left) / 1000, MOST_S)
            found[pool, revision] = Returned(told.terms, told.reason, for_s)
        return found
