"""Whether a stored position still belongs to the log: a log can be rolled back.

A broker that comes up with an older disk has lost its newest records, and gives their offsets to
other records. Its topics keep their incarnation, and a restored cluster may use the same leader
epochs again. So whoever stores a position stores a mark with it: the identity of the last record
below the position.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Mapping
from typing import Final, NamedTuple

from tailrace.log import interfaces
from tailrace.protocol import log_words

_UNREAD: Final = "-"  # digest of a record whose value was withheld


class Mark(NamedTuple):
    """The identity of one record. Its text is short ASCII without spaces.

    Attributes:
        timestamp: the broker's, in ms.
        digest: of key and value; `_UNREAD` for a forged record. Keys may be rotated: a record that
            was forged for one process may have a value for the next.
    """

    offset: int
    timestamp: int
    digest: str

    @classmethod
    def from_record(cls, record: log_words.Record) -> Mark:
        """The mark of a record."""
        if record.forgery:
            return cls(record.offset, record.timestamp, _UNREAD)
        checksum = 0
        for field in (record.key, record.value):
            size = -1 if field is None else len(field)
            checksum = zlib.crc32(b"%d:" % size + (field or b""), checksum)
        return cls(record.offset, record.timestamp, f"{checksum:08x}")

    @classmethod
    def parse(cls, text: str) -> Mark | None:
        """The mark in a text, or None: the text is not a mark."""
        with contextlib.suppress(ValueError):
            offset, timestamp, digest = text.split(":")
            return cls(int(offset), int(timestamp), digest)
        return None

    def __str__(self) -> str:
        return f"{self.offset}:{self.timestamp}:{self.digest}"

    def names(self, record: log_words.Record) -> bool:
        """Whether it is the mark of this record."""
        other = Mark.from_record(record)
        if _UNREAD in (self.digest, other.digest):
            return self[:2] == other[:2]
        return self == other


class Position(NamedTuple):
    """The position of a follower of a partition.

    Attributes:
        next: the next offset to be read.
        mark: of the last record that was read below `next`; None: not known.
    """

    next: int
    mark: Mark | None = None


async def rolled_back(
    offsets: interfaces.OffsetQueries,
    replays: interfaces.RangeReader,
    topic: str,
    positions: Mapping[int, Position],
) -> frozenset[int]:
    """The partitions whose positions no longer belong to the log: it ends below them, or
    has another record where the mark is. A mark that retention or compaction removed cannot be
    compared, and its position counts as good.

    One question for all ends, one for all beginnings, and a read of one record for each mark.

    Raises:
        LogUnavailable: no answer.
    """
    if not positions:
        return frozenset()
    ends = await offsets.ends(topic, positions)
    begins = await offsets.beginnings(topic, positions)
    lost_partitions = {
        partition for partition, at in positions.items() if at.next > ends[partition]
    }
    for partition, (_, mark) in positions.items():
        if partition in lost_partitions or mark is None or mark.offset < begins[partition]:
            continue
        record = await record_at(replays, topic, partition, mark.offset)
        if record is not None and not mark.names(record):
            lost_partitions.add(partition)
    return frozenset(lost_partitions)


async def record_at(
    replays: interfaces.RangeReader, topic: str, partition: int, offset: int
) -> log_words.Record | None:
    """The record at an offset, or None: the log does not hold it (now)."""
    # If the log loses the offset between query and read, the next comparison finds that.
    with contextlib.suppress(log_words.HistoryLost):
        async with contextlib.aclosing(
            replays.read(topic, partition, offset, offset + 1)
        ) as batches:
            async for batch in batches:
                return batch[0]
    return None
