"""Queue places of responses that no worker has begun: from Redis to their subscribers.

Events that follow from the log have numbers and are replayed. A queue place has no number and is
not replayed: it holds for the moment, and while Redis is away there is none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from tailrace.delivery import hub
from tailrace.protocol.queue_place import Place
from tailrace.store.queues import Queues, rest
from tailrace.store.redis_store import StoreUnavailable

POLL_S: Final = 1.0
# Polls for which a response waits before Redis is queried for it: most begin sooner.
QUIET: Final = 1
# The same before a bound is sent instead: a worker publishes the places that it knows once a
# second.
UNKNOWN: Final = 4


@dataclass(slots=True)
class _Waiting:
    """`polls`: how often it was seen waiting. `published`: the place that its subscribers got last.
    `pool`: whose workers published its place at the last poll; empty if none did."""

    polls: int = 0
    published: Place | None = None
    pool: str = ""


class QueueNews:
    """Polls once a second, and queries Redis only for responses that wait here.

    Attributes:
        _waiting: those that waited at the last poll, by id.
    """

    def __init__(
        self, queues: Queues, streams: hub.Hub, pools: Callable[[], Sequence[str]]
    ) -> None:
        self._queues = queues
        self._streams = streams
        self._pools = pools
        self._waiting: dict[str, _Waiting] = {}

    async def run(self) -> None:
        """Poll until cancelled."""
        while True:
            await asyncio.sleep(POLL_S)
            await self.poll()

    async def poll(self) -> None:
        """Send subscribers the places that have changed noticeably."""
        streams = {stream.rid: stream for stream in self._streams.waiting()}
        self._waiting = {rid: self._waiting.get(rid) or _Waiting() for rid in streams}
        late = [streams[rid] for rid, each in self._waiting.items() if each.polls >= QUIET]
        for each in self._waiting.values():
            each.polls += 1
        try:
            places = await self._read(late) if late else {}
        except StoreUnavailable:
            return
        for stream in late:
            entry = self._waiting[stream.rid]
            place = places.get(stream.rid)
            bound = places.get(rest(stream.model))
            if place is None and bound is not None and entry.polls > UNKNOWN:
                place = bound._replace(at_least=True)
            if place is not None and stream.waits and place.noticeable(entry.published):
                entry.published = place
                stream.publish(place)

    async def _read(self, streams: Sequence[hub.Stream]) -> dict[str, Place]:
        """The places of these, and bounds for their models, as the pools' workers published
        them."""
        places: dict[str, Place] = {}
        for pool in self._pools():
            candidates = [s for s in streams if self._waiting[s.rid].pool in ("", pool)]
            if not candidates:
                continue
            bounds = {rest(s.model) for s in candidates}
            pool_places = await self._queues.read(
                pool, [*(s.rid for s in candidates), *sorted(bounds)]
            )
            for stream in candidates:
                self._waiting[stream.rid].pool = pool if stream.rid in pool_places else ""
            places |= pool_places
        return places
