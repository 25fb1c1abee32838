"""Writes a topic of a pipeline to a database, and commits its position.

The position is that of a consumer group and is committed after the server's acknowledgement. So a
kill, a rebalance or a server that is away repeats rows, which changes nothing, and loses none.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Final
from urllib.parse import quote, urlsplit

from pipelines import definition, metrics, runner, servers
from pipelines.sinks.clickhouse import Table
from pipelines.sinks.opensearch import Index
from pipelines.sinks.outputs import Output, of_record
from pipelines.sinks.target import Rejection, Target
from tailrace import log
from tailrace.log import interfaces

_logger = logging.getLogger(__name__)

SEARCH: Final = ("opensearch+http", "opensearch+https")
SESSION_MS: Final = 6_000
POLL: Final = 500  # records
COMPARE_S: Final = 30.0  # between checks whether the topic was rolled back
FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 30.0


class RowRefused(Exception):
    """The server refuses a row because of its content. The text names it, without its content."""


class RolledBack(Exception):
    """The topic does not hold what was written. The text says what to do."""


def open_target(url: str, pipeline: definition.Pipeline, what: str) -> Target:
    """The database of a URL: `opensearch+http(s)://[user@]host:port/index`, or
    `http(s)://[user@]host:port/database` of ClickHouse (`servers.parse`).

    Raises:
        ValueError: it is invalid. The message contains no part of it.
        OSError: the file of the CA cannot be read, or holds none.
    """
    if urlsplit(url).scheme in SEARCH:
        return Index(servers.parse(url, schemes=SEARCH))
    return Table(servers.parse(url), f"{pipeline.name.replace('-', '_')}_{what}")


def group(url: str, pipeline: definition.Pipeline, what: str) -> str:
    """The consumer group: sinks of one topic into one database share it."""
    parts = urlsplit(url)
    place = quote(f"{parts.netloc.rpartition('@')[2]}{parts.path}", safe="").replace("%", "_")
    engine = "opensearch" if parts.scheme in SEARCH else "clickhouse"
    return f"{pipeline.group}.sink.{what}.{engine}.{place}"


class Sink:
    """One member of a sink's group.

    Attributes:
        rows: that were acknowledged by the server, repeated ones too.
        refusals: number of rows that were left out.
        _uncommitted: next offsets after rows that were written and not committed.
        _compare_at: monotonic seconds.
    """

    def __init__(
        self,
        target: Target,
        topic: str,
        group: str,
        member: interfaces.GroupMember,
        offsets: interfaces.OffsetQueries,
        replays: interfaces.RangeReader,
        *,
        strict: bool = False,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`strict`: end at a row that the server refuses, instead of leaving it out."""
        self._target, self._topic, self._group = target, topic, group
        self._member, self._offsets, self._replays = member, offsets, replays
        self._strict = strict
        self._sleep, self._clock = sleep, clock
        metrics.SINK_ROWS.labels(group=group, outcome="refused")  # an alert sees no first value
        self.rows = 0
        self.refusals = 0
        self._uncommitted: dict[tuple[str, int], tuple[int, str]] = {}
        self._compare_at = float("-inf")

    async def run(self, *, once: bool = False) -> None:
        """Write, until it is cancelled or, with `once`, up to the end that the topic has now.

        Raises:
            servers.Refused: the server will not take rows.
            RowRefused: it will not take one of them.
            RolledBack: rows are there that the topic does not hold.
            LogUnavailable: the ends are not known.
        """
        ends: dict[int, int] = {}
        if once:
            numbers = range(await self._offsets.partitions(self._topic))
            ends = await self._offsets.ends(self._topic, numbers)
        while True:
            try:
                await self._compare()
                records = await self._member.poll(POLL, timeout_ms=200)
                if records:
                    await self._write([of_record(record) for record in records])
                    self._uncommitted |= {
                        (r.topic, r.partition): (r.offset + 1, str(log.Mark.from_record(r)))
                        for r in records
                    }
                await self._commit()
                if once and not records and await self._through(ends):
                    return
            except log.LogUnavailable as error:
                _logger.warning("%s: %s", self._group, error)
                await self._sleep(log.RETRY_S)

    async def _compare(self) -> None:
        """Raises RolledBack. It does not begin anew: of a row that was answered again the database
        would retain the former output, whose version is higher."""
        if self._clock() < self._compare_at:
            return
        committed = await self._offsets.committed(self._group)
        positions = {
            partition: log.Position(offset, log.Mark.parse(mark))
            for (topic, partition), (offset, mark) in committed.items()
            if topic == self._topic
        }
        lost_partitions = await log.rolled_back(
            self._offsets, self._replays, self._topic, positions
        )
        if lost_partitions:
            raise RolledBack(
                f"{self._topic} does not hold what was written of partitions "
                f"{sorted(lost_partitions)}: it was rolled back or made again. Empty the table or "
                f"index, and delete the group {self._group}; or take another database"
            )
        self._compare_at = self._clock() + COMPARE_S

    async def _write(self, rows: Sequence[Output]) -> None:
        """Return when the server has all rows that it does not refuse."""
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                # The member has to send heartbeats meanwhile.
                result = await asyncio.to_thread(self._target.write, rows)
            except servers.Unavailable as error:
                _logger.warning("%s: %s", self._group, error)
            else:
                self._leave_out(result.rejections)
                count = len(rows) - len(result.retries) - len(result.rejections)
                self.rows += count
                metrics.SINK_ROWS.labels(group=self._group, outcome="written").inc(count)
                if not result.retries:
                    return
                rows = result.retries
                _logger.warning("%s: %d rows were not taken now", self._group, len(rows))
            await self._sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _leave_out(self, rejections: Sequence[Rejection]) -> None:
        for row, why in rejections:
            text = f"the server refuses the row of {row.place}: {why}"
            if self._strict:
                raise RowRefused(text)
            metrics.SINK_ROWS.labels(group=self._group, outcome="refused").inc()
            _logger.warning("%s: %s", self._group, text)
            self.refusals += 1

    async def _commit(self) -> None:
        """Of a partition that moved to another member nothing is committed: it repeats the rows.

        Raises:
            LogUnavailable: no answer. The next call commits it.
        """
        if self._uncommitted:
            await self._member.commit(self._uncommitted)
            self._uncommitted = {}

    async def _through(self, ends: dict[int, int]) -> bool:
        """Whether the group has reached these ends. Offsets after its position may not be records:
        ends of transactions, and aborted ones."""
        committed = await self._offsets.committed(self._group)
        begins = await self._offsets.beginnings(self._topic, ends)
        for number, end in ends.items():
            first = max(begins[number], committed.get((self._topic, number), (0, ""))[0])
            if first >= end:
                continue
            reading = self._replays.read(self._topic, number, first, end)
            async with contextlib.aclosing(reading) as batches:
                async for _ in batches:
                    return False
        return True


async def run(
    target: Target, kafka: str, topic: str, group: str, *, once: bool, strict: bool
) -> Sink:
    """Run a sink on Kafka (`Sink.run`); leave the group at the end. Raises MissingTopic, too."""
    name = f"{group}-{secrets.token_hex(3)}"
    offsets = log.Offsets(kafka, client_id=name)
    replays = log.Replays(kafka, client_id=name, read_committed=True)
    member = log.GroupConsumer(
        kafka,
        group,
        [topic],
        session_timeout_ms=SESSION_MS,
        assigned=_ignore,
        revoked=_ignore,
        client_id=name,
        read_committed=True,
    )
    sink = Sink(target, topic, group, member, offsets, replays, strict=strict)
    try:
        if not await offsets.existing([topic]):
            raise runner.MissingTopic(f"there is no topic {topic}")
        await sink.run(once=once)
    finally:
        with contextlib.suppress(log.LogUnavailable):
            await member.stop()
        await offsets.stop()
        await replays.stop()
    return sink


async def _ignore(_: Collection[tuple[str, int]]) -> None:
    """A sink has no state of a partition."""
