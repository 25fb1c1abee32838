"""Waits until a tail has read up to the log's end as of the call.

Everything that any instance has sent to a client lies below the log's end. So before an instance
answers that a response runs, is unknown or is locked, its tail reads up to the end that the log had
when the client's request arrived.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from tailrace import log
from tailrace.log import interfaces

WITHIN_S: Final = 2.0


class Behind(log.LogUnavailable):
    """The tail has not read up to the end in time."""


class CatchUp:
    """The tail of one topic, for callers that wait for it.

    At most one query of ends runs at a time. Callers that arrive meanwhile share the next one: the
    answer of the running query may be older than what their client knows.

    Attributes:
        _next: partitions and answer of the next query; None while no caller needs one.
        _query_lock: held while a query runs.
        _move: set and replaced when the tail has moved.
    """

    def __init__(
        self, topic: str, offsets: interfaces.OffsetQueries, position: Callable[[int], int]
    ) -> None:
        """`position`: the offset below which the tail has passed everything on; -1 for a partition
        that it does not follow."""
        self._topic = topic
        self._offsets = offsets
        self._position = position
        self._next: tuple[set[int], asyncio.Task[dict[int, int]]] | None = None
        self._query_lock = asyncio.Lock()
        self._move = asyncio.Event()

    def on_move(self) -> None:
        """The tail may have moved."""
        move, self._move = self._move, asyncio.Event()
        move.set()

    async def ends(self, partitions: Iterable[int]) -> dict[int, int]:
        """End offsets as of this call or later; of these partitions and perhaps of others. Raises
        log.LogUnavailable."""
        if self._next is None:
            partition_set = set[int]()
            task = asyncio.create_task(self._query(partition_set))
            task.add_done_callback(lambda t: t.cancelled() or t.exception())
            self._next = partition_set, task
        partition_set, task = self._next
        partition_set.update(partitions)
        return await asyncio.shield(task)

    async def wait(
        self,
        partitions: Iterable[int],
        enough: Callable[[], bool] = lambda: False,
        within_s: float | None = None,
    ) -> None:
        """Wait until the tail has passed on these partitions up to their present ends, or until
        `enough`.
        `within_s`: None is `WITHIN_S`.

        Raises:
            Behind, log.LogUnavailable
        """
        waiting = list(partitions)
        try:
            async with asyncio.timeout(WITHIN_S if within_s is None else within_s):
                ends = await self.ends(waiting)
                while not enough() and any(self._position(p) < ends[p] for p in waiting):
                    await self._move.wait()
        except TimeoutError as error:
            raise Behind(f"{self._topic} is not read up to its end") from error

    async def _query(self, partitions: set[int]) -> dict[int, int]:
        async with self._query_lock:
            self._next = None  # no caller joins a running query
            return await self._offsets.ends(self._topic, sorted(partitions))
