"""Where responses stand that no worker has begun: from Redis to their subscribers.

What follows from the log alone has numbers and is replayed; this is neither. It is of this moment,
and while Redis is away there is none.
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

LOOK_S: Final = 1.0
# Looks at which a response waits before Redis is asked about it: most begin sooner.
QUIET: Final = 1
# The same before a bound is told instead: a worker tells once a second of what it has read.
UNKNOWN: Final = 4


@dataclass(slots=True)
class _Waiting:
    """`looks`: how often it was seen waiting. `told`: what its subscribers were told last. `pool`:
    whose workers told of it at the last look; empty if none did."""

    looks: int = 0
    told: Place | None = None
    pool: str = ""


class QueueNews:
    """Looks once a second, and asks Redis only about responses that wait here.

    Attributes:
        _waiting: those that waited at the last look, by id.
    """

    def __init__(
        self, queues: Queues, streams: hub.Hub, pools: Callable[[], Sequence[str]]
    ) -> None:
        self._queues = queues
        self._streams = streams
        self._pools = pools
        self._waiting: dict[str, _Waiting] = {}

    async def run(self) -> None:
        """Tell until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            await self.look()

    async def look(self) -> None:
        """Tell the subscribers of what waits, where its place has changed noticeably."""
        streams = {stream.rid: stream for stream in self._streams.waiting()}
        self._waiting = {rid: self._waiting.get(rid) or _Waiting() for rid in streams}
        late = [streams[rid] for rid, each in self._waiting.items() if each.looks >= QUIET]
        for each in self._waiting.values():
            each.looks += 1
        try:
            places = await self._read(late) if late else {}
        except StoreUnavailable:
            return
        for stream in late:
            known = self._waiting[stream.rid]
            place = places.get(stream.rid)
            bound = places.get(rest(stream.model))
            if place is None and bound is not None and known.looks > UNKNOWN:
                place = bound._replace(at_least=True)
            if place is not None and stream.waits and place.noticeable(known.told):
                known.told = place
                stream.tell(place)

    async def _read(self, streams: Sequence[hub.Stream]) -> dict[str, Place]:
        """What the pools' workers say of these, and of the others for the same models."""
        found: dict[str, Place] = {}
        for pool in self._pools():
            asked = [s for s in streams if self._waiting[s.rid].pool in ("", pool)]
            if not asked:
                continue
            bounds = {rest(s.model) for s in asked}
            told = await self._queues.read(pool, [*(s.rid for s in asked), *sorted(bounds)])
            for stream in asked:
                self._waiting[stream.rid].pool = pool if stream.rid in told else ""
            found |= told
        return found
