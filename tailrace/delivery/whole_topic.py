"""A small topic that a service must know whole: read from its beginning on, and then followed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final

from tailrace import log
from tailrace.delivery.catch_up import CatchUp
from tailrace.delivery.persist import persist
from tailrace.log import interfaces
from tailrace.log.identity import require_not_rolled_back

# Longer than for a tail: a caller that changed something must read the change, not a refusal.
CAUGHT_UP_S: Final = 5.0


class WholeTopic:
    """Reads one topic.

    Attributes:
        ready: everything was read that the topic held at the start of `run`.
        _applied: for each partition, the offset below which `apply` has returned.
    """

    def __init__(
        self,
        topic: str,
        reader: interfaces.TailReader,
        offsets: interfaces.OffsetQueries,
        apply: Callable[[list[log.Record]], Awaitable[None]],
    ) -> None:
        """`apply` gets the records of each poll, also when there are none."""
        self._topic = topic
        self._reader = reader
        self._offsets = offsets
        self._apply = apply
        self.ready = False
        self._applied: dict[int, int] = {}
        self._catch_up = CatchUp(topic, offsets, lambda p: self._applied.get(p, -1))

    async def caught_up(
        self, partitions: Iterable[int] = (0,), within_s: float | None = None
    ) -> None:
        """Wait until the present records of these partitions were applied. `within_s`: None is
        `CAUGHT_UP_S`.

        Raises:
            catch_up.Behind, log.LogUnavailable
        """
        await self._catch_up.wait(
            partitions, within_s=CAUGHT_UP_S if within_s is None else within_s
        )

    async def run(self, start: Mapping[int, int] | None = None) -> None:
        """Read until cancelled. `start`: offsets below which everything is known already. If one is
        above the end, the log was rolled back, and its partition is read from its beginning.

        Raises:
            log.LogChanged: the log was rolled back.
        """
        count = await persist(lambda: self._offsets.partitions(self._topic))
        begins = await self._beginnings(count)
        ends = await persist(lambda: self._offsets.ends(self._topic, range(count)))
        for partition, offset in begins.items():
            start_offset = (start or {}).get(partition, 0)
            begins[partition] = (
                max(offset, start_offset) if start_offset <= ends[partition] else offset
            )
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
                # Compaction removed the record at the position. Its successors replace it.
                for partition, offset in (await self._beginnings(count)).items():
                    position = self._reader.positions.get(partition, 0)
                    self._reader.follow(partition, max(offset, position))
                continue
            await self._apply(batch)
            # Only now: the reader's own positions are those of the records that it has returned.
            self._applied = dict(self._reader.positions)
            self._catch_up.on_move()

    async def _beginnings(self, count: int) -> dict[int, int]:
        return await persist(lambda: self._offsets.beginnings(self._topic, range(count)))
