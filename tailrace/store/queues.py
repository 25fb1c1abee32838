"""Queue places of requests that wait in the workers' memory.

key      queue:{pool}
value    hash: response id -> position and seconds until its turn, as text
lives    TTL_S after the last publication
writer   worker
if lost  waiting clients get no places until the next publication, a second later
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from tailrace.protocol.queue_place import Place
from tailrace.store.redis_store import RedisStore, digest, milliseconds

TTL_S: Final = 5
# A worker that dies does not delete its fields. With more of them than this all are deleted.
MAX_FIELDS: Final = 50_000
# A larger value is not believed.
MAX_POSITION: Final = 1_000_000
MAX_ETA_S: Final = 86_400.0

PUBLISH: Final = """
if redis.call('HLEN', KEYS[1]) > tonumber(ARGV[2]) then redis.call('DEL', KEYS[1]) end
for rid in string.gmatch(ARGV[4], '%S+') do redis.call('HDEL', KEYS[1], rid) end
for rid, place in string.gmatch(ARGV[3], '(%S+) (%S+ %S+)') do
  redis.call('HSET', KEYS[1], rid, place)
end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
"""


def rest(model: str) -> str:
    """A key instead of a response id: its place is a lower bound for requests for the model that
    no worker has published."""
    return f"*{digest(model)}"


class Queues:
    """The waiting requests of each pool. Every call raises StoreUnavailable."""

    def __init__(self, redis: RedisStore) -> None:
        self._redis = redis

    async def publish(
        self, pool: str, places: Mapping[str, Place], finished: Collection[str]
    ) -> None:
        """Publish the present places of requests, by id. `finished`: those that wait no more."""
        lines = "\n".join([f"{rid} {_text(place)}" for rid, place in places.items()])
        bounds = milliseconds(TTL_S), MAX_FIELDS
        await self._redis.execute(
            "EVAL", PUBLISH, 1, _key(pool), *bounds, lines, " ".join(finished)
        )

    async def read(self, pool: str, rids: Sequence[str]) -> dict[str, Place]:
        """The places of those that wait. `rids`: at least one."""
        values: object = await self._redis.execute("HMGET", _key(pool), *rids)
        if not isinstance(values, list):
            return {}
        places = {rid: _place(value) for rid, value in zip(rids, values, strict=False)}
        return {rid: place for rid, place in places.items() if place is not None}


def _text(place: Place) -> str:
    return f"{place.position} {'-' if place.eta_s is None else round(place.eta_s, 1)}"


def _place(value: object) -> Place | None:
    if not isinstance(value, bytes):
        return None
    try:
        position, eta = value.decode().split(" ")
        place = Place(int(position), None if eta == "-" else float(eta))
    except ValueError:
        return None
    if not 0 <= place.position <= MAX_POSITION:
        return None
    if place.eta_s is not None and not 0 <= place.eta_s <= MAX_ETA_S:
        return None
    return place


def _key(pool: str) -> str:
    return f"queue:{{{pool}}}"
