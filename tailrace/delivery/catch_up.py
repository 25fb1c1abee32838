"""Waits until a tail has read all that the log held when it was asked.

What a client was told by any instance lies below the log's end from then on. So before an instance
says that something runs, is not there or is locked, its tail reads up to that end as it was when
the client asked.
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
    """The tail of one topic, for those who wait for it.

    However many wait, at most one question about ends is under way. Who comes meanwhile shares the
    next one: the answer to the former may be older than what this client was told.

    Attributes:
        _next: partitions and answer of the question that is asked next; None while nobody needs
            one.
        _asking: held while a question is under way.
        _moved: set and replaced when the tail has moved.
    """

    def __init__(
        self, topic: str, offsets: interfaces.OffsetQueries, position: Callable[[int], int]
    ) -> None:
        """`position`: the offset below which the tail has passed on everything; -1 for a partition
        that it does not follow."""
        self._topic = topic
        self._offsets = offsets
        self._position = position
        self._next: tuple[set[int], asyncio.Task[dict[int, int]]] | None = None
        self._asking = asyncio.Lock()
        self._moved = asyncio.Event()

    def moved(self) -> None:
        """The tail may have moved."""
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()

    async def ends(self, partitions: Iterable[int]) -> dict[int, int]:
        """End offsets as of this call or later; of these partitions and perhaps of others. Raises
        log.LogUnavailable."""
        if self._next is None:
            asked = set[int]()
            task = asyncio.create_task(self._ask(asked))
            task.add_done_callback(lambda t: t.cancelled() or t.exception())
            self._next = asked, task
        asked, task = self._next
        asked.update(partitions)
        return await asyncio.shield(task)

    async def wait(
        self,
        partitions: Iterable[int],
        enough: Callable[[], bool] = lambda: False,
        within_s: float | None = None,
    ) -> None:
        """Wait until the tail has passed on what these partitions hold now, or until `enough`.
        `within_s`: None is `WITHIN_S`.

        Raises:
            Behind, log.LogUnavailable
        """
        wanted = list(partitions)
        try:
            async with asyncio.timeout(WITHIN_S if within_s is None else within_s):
                ends = await self.ends(wanted)
                while not enough() and any(self._position(p) < ends[p] for p in wanted):
                    await self._moved.wait()
        except TimeoutError as error:
            raise Behind(f"{self._topic} is not read up to its end") from error

    async def _ask(self, asked: set[int]) -> dict[int, int]:
        async with self._asking:
            self._next = None  # nobody joins a question that is under way
            return await self._offsets.ends(self._topic, sorted(asked))
