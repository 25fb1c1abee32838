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
from worker.queue.read_ahead import Unserved
from worker.queue.slots import Slots
from worker.queue.waits import SetAside, places
from worker.queue.workload import Workload

TELL_S: Final = 1.0


class QueueTeller:
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
        unserved: Callable[[int], Unserved],
    ) -> None:
        """`unserved` gives the requests of a class that were not taken."""
        self._queues = queues
        self._pool = pool
        self._models = tuple(models)
        self._slots = slots
        self._workload = workload
        self._set_aside = set_aside
        self._unserved = unserved
        self._told: set[str] = set()

    async def run(self) -> None:
        """Tell until cancelled."""
        while True:
            await self.tell()
            await asyncio.sleep(TELL_S)

    async def tell(self) -> None:
        """Tell once; nothing if nothing waits and nothing was told."""
        told: dict[str, Place] = {}
        if self._slots.queued:
            unserved = [self._unserved(rank) for rank in range(len(topics.CLASSES))]
            told, bound = places(self._slots, self._workload, self._set_aside, unserved)
            if bound is not None:
                told |= dict.fromkeys(map(rest, self._models), bound)
        gone = self._told - told.keys()
        self._told |= told.keys()
        if told or gone:
            try:
                await self._queues.tell(self._pool, told, gone)
            except StoreUnavailable:
                return
            self._told = set(told)
