"""A small topic that a service must know whole: read from its beginning on, and then followed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final

from tailrace import log
from tailrace.delivery.catch_up import CatchUp
from tailrace.delivery.persist import persist
from tailrace.log import interfaces
from tailrace.log.identity import require_not_rolled_back

# Longer than for a tail: who changed something is to read the change, not a refusal.
CAUGHT_UP_S: Final = 5.0


class WholeTopic:
    """Reads one topic.

    Attributes:
        ready: everything was read that the topic held at the start of `run`.
        _taken: for each partition, the offset below which `take` has returned.
    """

    def __init__(
        self,
        topic: str,
        reader: interfaces.TailReader,
        offsets: interfaces.OffsetQueries,
        take: Callable[[list[log.Record]], Awaitable[None]],
    ) -> None:
        """`take` gets the records of each poll, also when there are none."""
        self._topic = topic
        self._reader = reader
        self._offsets = offsets
        self._take = take
        self.ready = False
        self._taken: dict[int, int] = {}
        self._catch_up = CatchUp(topic, offsets, lambda p: self._taken.get(p, -1))

    async def caught_up(
        self, partitions: Iterable[int] = (0,), within_s: float | None = None
    ) -> None:
        """Wait until everything was taken that these partitions hold now. `within_s`: None is
        `CAUGHT_UP_S`.

        Raises:
            catch_up.Behind, log.LogUnavailable
        """
        await self._catch_up.wait(
            partitions, within_s=CAUGHT_UP_S if within_s is None else within_s
        )

    async def run(self, start: Mapping[int, int] | None = None) -> None:
        """Read until cancelled. `start`: offsets below which everything is known already; one above
        the end is of a log that was rolled back, and its partition is read from its beginning.

        Raises:
            log.LogChanged: the log was rolled back.
        """
        count = await persist(lambda: self._offsets.partitions(self._topic))
        begins = await self._beginnings(count)
        ends = await persist(lambda: self._offsets.ends(self._topic, range(count)))
        for partition, offset in begins.items():
            known = (start or {}).get(partition, 0)
            begins[partition] = max(offset, known) if known <= ends[partition] else offset
            self._reader.follow(partition, begins[partition])
        while True:
            self.ready = self.ready or all(
                begins[p] >= end or self._reader.positions.get(p, -1) >= end
                for p, end in ends.items()
            )
            try:
                batch = await persist(self._reader.poll)
            except log.HistoryLost:
                positions = dict(self._reader.positions)
                ends = await persist(lambda: self._offsets.ends(self._topic, range(count)))
                require_not_rolled_back(self._topic, positions, ends)
                # Compaction removed the record at the position. Its successors say the same.
                for partition, offset in (await self._beginnings(count)).items():
                    position = self._reader.positions.get(partition, 0)
                    self._reader.follow(partition, max(offset, position))
                continue
            await self._take(batch)
            # Only now: the reader's own positions are those of what it handed over.
            self._taken = dict(self._reader.positions)
            self._catch_up.moved()

    async def _beginnings(self, count: int) -> dict[int, int]:
        return await persist(lambda: self._offsets.beginnings(self._topic, range(count)))
