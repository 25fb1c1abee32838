"""Tells, by way of Redis, where the requests stand that wait in this worker. Best effort: Redis may
be away, and clients are then told nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from tailrace.protocol import topics
from tailrace.protocol.queue_place import Place
from tailrace.store.queues import Queues, rest
from tailrace.store.redis_store import StoreUnavailable
from worker.queue.read_ahead import Overflow
from worker.queue.slots import Slots
from worker.queue.waits import SetAside, places
from worker.queue.workload import Workload

PUBLISH_S: Final = 1.0


class QueuePublisher:
    """Tells once a second, while requests wait.

    Attributes:
        _told: ids of which Redis may know the place.
    """

    def __init__(
        self,
        queues: Queues,
        pool: str,
        models: Iterable[str],
        slots: Slots,
        workload: Workload,
        set_aside: SetAside,
        overflow: Callable[[int], Overflow],
    ) -> None:
        """`unserved` gives the requests of a class that were not taken."""
        self._queues = queues
        self._pool = pool
        self._models = tuple(models)
        self._slots = slots
        self._workload = workload
        self._set_aside = set_aside
        self._overflow = overflow
        self._ids_in_redis: set[str] = set()

    async def run(self) -> None:
        """Tell until cancelled."""
        while True:
            await self.publish()
            await asyncio.sleep(PUBLISH_S)

    async def publish(self) -> None:
        """Tell once; nothing if nothing waits and nothing was told."""
        entries: dict[str, Place] = {}
        if self._slots.queued:
            overflows = [self._overflow(rank) for rank in range(len(topics.CLASSES))]
            entries, last_place = places(self._slots, self._workload, self._set_aside, overflows)
            if last_place is not None:
                entries |= dict.fromkeys(map(rest, self._models), last_place)
        stale = self._ids_in_redis - entries.keys()
        self._ids_in_redis |= entries.keys()
        if entries or stale:
            try:
                await self._queues.tell(self._pool, entries, stale)
            except StoreUnavailable:
                return
            self._ids_in_redis = set(entries)
