"""Publishes the queue positions of this worker's requests in Redis. Best effort: while Redis is
away, clients see no position."""

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
    """Publishes once a second while requests wait.

    Attributes:
        _ids_in_redis: ids whose position Redis may have.
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
        """`overflow` gives the requests of a class that are not in memory."""
        self._queues = queues
        self._pool = pool
        self._models = tuple(models)
        self._slots = slots
        self._workload = workload
        self._set_aside = set_aside
        self._overflow = overflow
        self._ids_in_redis: set[str] = set()

    async def run(self) -> None:
        """Publish until cancelled."""
        while True:
            await self.publish()
            await asyncio.sleep(PUBLISH_S)

    async def publish(self) -> None:
        """Publish once; no call if nothing waits and nothing was published."""
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
                await self._queues.publish(self._pool, entries, stale)
            except StoreUnavailable:
                return
            self._ids_in_redis = set(entries)
