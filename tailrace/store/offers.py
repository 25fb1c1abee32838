"""Offers: requests that wait at a busy worker, for idle workers of its pool to steal; and running
responses of another model revision, for workers that have it; and responses whose first token is
late, for a worker that may be faster.

key      offers:{pool}, handover:{pool}, hedges:{pool}
value    hash: worker name (hedges: response id) -> deadline in ms, and its offer as JSON
lives    OFFER_TTL_S per telling
writer   worker; gateway (hedges)
if lost  requests and responses wait for the worker that is assigned their partition; late ones for
         their owner
"""

from typing import Annotated, Final, Generic, Literal, TypeVar

import msgspec

from tailrace.protocol import ids
from tailrace.store import expiring_fields
from tailrace.store.redis_store import RedisStore

OFFER_TTL_S: Final = 1.5

T = TypeVar("T", bound=msgspec.Struct)


class Late(msgspec.Struct, frozen=True, array_like=True):
    """Where the request of a response lies whose first token is late, in the interactive topic of
    the pool."""

    partition: Annotated[int, msgspec.Meta(ge=0, le=ids.MAX_PARTITION)]
    offset: Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class Offers(Generic[T]):
    """The offers of each pool, as structs of one type. Every call raises StoreUnavailable."""

    def __init__(
        self,
        redis: RedisStore,
        offer: type[T],
        kind: Literal["offers", "handover", "hedges"] = "offers",
    ) -> None:
        self._redis = redis
        self._offer = offer
        self._kind = kind

    def _key(self, pool: str) -> str:
        return f"{self._kind}:{{{pool}}}"

    async def publish(self, pool: str, name: str, offer: T, ttl_s: float = OFFER_TTL_S) -> None:
        """The worker `name` offers this; replaces its former offer."""
        await expiring_fields.write(self._redis, self._key(pool), name, offer, ttl_s)

    async def withdraw(self, pool: str, name: str) -> bool:
        """Nothing more is offered as `name`. Returns whether this call removed it: of all that
        remove one offer, one gets True."""
        return bool(await self._redis.execute("HDEL", self._key(pool), name))

    async def all_of(self, pool: str) -> dict[str, T]:
        """Every offer that is still valid, by the worker's name."""
        fields = await expiring_fields.list_valid(self._redis, self._key(pool), self._offer)
        return {name: offer for name, _, offer in fields}
