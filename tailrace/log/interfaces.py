"""Interfaces of the log client, as protocols.

Callers take these types as arguments. `tailrace.log` implements them over Kafka; the tests
implement them in memory. One contract test class holds both implementations.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from typing import Protocol

from tailrace.log.admin import Layout
from tailrace.protocol import log_words

# (topic, partition)
TopicPartition = tuple[str, int]

# Reads which log this is. Raises LogUnavailable.
LayoutQuery = Callable[[], Awaitable[Layout]]

# Called by a group consumer with the partitions that it got or lost.
RebalanceCallback = Callable[[set[TopicPartition]], Awaitable[None]]


class TailReader(Protocol):
    """Tails partitions of one topic. One task calls `poll`; any task may follow and leave."""

    @property
    def positions(self) -> Mapping[int, int]:
        """Next offset of each followed partition. `poll` returned everything below it."""

    @property
    def answers(self) -> bool:
        """Whether it gets what its partitions hold, as far as is known."""

    def follow(self, partition: int, offset: int) -> None:
        """Read `partition` from `offset` on; takes effect before the next fetch."""

    def leave(self, partition: int) -> None:
        """Stop reading `partition`."""

    def follows(self, partition: int) -> bool:
        """Whether `partition` is, or is about to be, followed."""

    def next_offset(self, partition: int) -> int:
        """Next offset of a partition that is, or is about to be, followed."""

    async def poll(self) -> list[log_words.Record]:
        """The next records, in order within each partition; empty when the wait ran out.

        Raises:
            HistoryLost: a followed offset is not in the log.
            LogUnavailable: no connection, or the fetch failed. The next poll reads on from
                `positions`.
        """

    async def stop(self) -> None:
        """Close the connection; positions stay."""


class RangeReader(Protocol):
    """Reads bounded ranges (replays), on a few connections of its own."""

    async def start(self) -> None:
        """Connect before the first use; waits for a broker that is away."""

    def read(
        self, topic: str, partition: int, start: int, end: int
    ) -> AsyncGenerator[list[log_words.Record], None]:
        """Records of [start, end) in order, in batches. Close the generator
        (`contextlib.aclosing`) when leaving it early: it holds a connection.

        Raises:
            HistoryLost: `start` is below the log's beginning, or above its end.
            LogUnavailable: no answer within the deadline.
        """

    async def stop(self) -> None:
        """Close the connections; those in use close when they are given back."""


class OffsetQueries(Protocol):
    """Queries offsets. Every query raises LogUnavailable without an answer."""

    async def ends(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        """End offset (the next to be written) of each partition."""

    async def beginnings(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        """Oldest offset still held, of each partition."""

    async def committed(self, group: str) -> dict[TopicPartition, tuple[int, str]]:
        """Committed (offset, metadata) of a group by (topic, partition)."""

    async def partitions(self, topic: str) -> int:
        """Number of partitions of `topic`."""

    async def stop(self) -> None:
        """Close the connections."""


class TimedOffsetQueries(OffsetQueries, Protocol):
    """Also finds the offset of a time."""

    async def since(self, topic: str, partitions: Iterable[int], timestamp: int) -> dict[int, int]:
        """Offset of the first record at or after a time (ms), of each partition that has one."""


class RecordWriter(Protocol):
    """Appends records in the order they were given."""

    @property
    def connected(self) -> bool:
        """Whether the writer has a producer."""

    @property
    def stalled(self) -> bool:
        """Whether an acknowledgement is overdue by far."""

    @property
    def backlog(self) -> int:
        """Number of records accepted but not acknowledged."""

    @property
    def incarnation(self) -> int:
        """Number of producers made; a change means that everything in flight has failed."""

    def append(
        self,
        topic: str,
        partition: int,
        key: str,
        value: bytes | None,
        headers: log_words.Headers = (),
    ) -> asyncio.Future[log_words.Appended]:
        """Append one record; without a value, a tombstone. Never waits.

        The future fails with NotAppended (TooLarge is one) when the record was not sent and never
        will be, and with AppendFailed when its outcome is unknown.
        """

    async def run(self) -> None:
        """Send until cancelled."""

    async def stop(self, deadline_s: float = ...) -> None:
        """Flush what was accepted, within the deadline; the rest has failed afterwards."""


class GroupMember(Protocol):
    """One member of a consumer group. Its callbacks report which partitions it owns."""

    @property
    def answers(self) -> bool:
        """Whether it gets what its partitions hold, as far as is known."""

    async def start(self) -> None:
        """Join the group; waits for a broker that is away."""

    async def poll(self, max_records: int, timeout_ms: int = ...) -> list[log_words.Record]:
        """Next records of owned partitions that are not paused.

        Raises:
            LogUnavailable: the membership was given up and everything is revoked. The next poll
                joins again.
        """

    def rejoin(self) -> None:
        """Make the next poll leave the group, so that the poll after it joins again."""

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Return no records of these partitions; partitions not owned are ignored."""

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Return records of these partitions again."""

    def seek(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Read these partitions from these offsets on; partitions not owned are ignored."""

    async def commit(self, offsets: Mapping[TopicPartition, tuple[int, str]]) -> bool:
        """Commit (next offset, metadata) by partition.

        Returns False when a partition is no longer owned; nothing is committed for it.

        Raises:
            LogUnavailable: no answer.
        """

    async def stop(self) -> None:
        """Leave the group."""
