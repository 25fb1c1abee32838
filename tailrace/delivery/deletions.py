"""Which responses their owners deleted."""

from __future__ import annotations

from tailrace import log
from tailrace.delivery.persist import persist
from tailrace.log import interfaces
from tailrace.protocol import records, topics


class Deletions:
    """Reads `llm.conversations` from its beginning on.

    Attributes:
        ready: everything was read that the topic held at the start of `run`.
        _deleted: ids of deleted responses. It only grows: the topic is compacted and small.
    """

    def __init__(self, reader: interfaces.TailReader, offsets: interfaces.OffsetQueries) -> None:
        self._reader = reader
        self._offsets = offsets
        self._deleted: set[str] = set()
        self.ready = False

    def __contains__(self, rid: str) -> bool:
        return rid in self._deleted

    def add(self, rid: str) -> None:
        """This instance appended the deletion. It holds here at once, and on other instances when
        they read the record."""
        self._deleted.add(rid)

    async def run(self) -> None:
        """Read until cancelled."""
        count = await persist(lambda: self._offsets.partitions(topics.CONVERSATIONS))
        begins = await self._beginnings(count)
        ends = await persist(lambda: self._offsets.ends(topics.CONVERSATIONS, range(count)))
        for partition, offset in begins.items():
            self._reader.follow(partition, offset)
        while True:
            self.ready = self.ready or all(
                begins[p] >= end or self._reader.positions.get(p, -1) >= end
                for p, end in ends.items()
            )
            try:
                batch = await persist(self._reader.poll)
            except log.HistoryLost:
                # Compaction removed the record at the position. Its successors say the same.
                for partition, offset in (await self._beginnings(count)).items():
                    position = self._reader.positions.get(partition, 0)
                    self._reader.follow(partition, max(offset, position))
                continue
            for record in batch:
                decoded = records.decode_conversation(record.value)
                if decoded is not None:
                    self._deleted.add(decoded.rid)

    async def _beginnings(self, count: int) -> dict[int, int]:
        return await persist(lambda: self._offsets.beginnings(topics.CONVERSATIONS, range(count)))
