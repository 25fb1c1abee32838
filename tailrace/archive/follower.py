"""Reads the topics of the archive and folds them while the process runs."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final, TypeVar

from sqlalchemy.ext.asyncio import AsyncEngine

from tailrace import log, telemetry
from tailrace.archive import conversation_rows, database, folding, migration, text_upkeep
from tailrace.log import interfaces
from tailrace.protocol import topics
from tailrace.retry import retry_until

T = TypeVar("T")

RETRY_S: Final = 1.0
# How often to check that the database still has the positions of this process.
CHECK_S: Final = 2.0
# How often to check whether the log was rolled back although no new records arrive.
COMPARE_S: Final = 60.0
# A broker takes longer to come up with an older disk. So records of a partition that was read
# within this time follow the former ones.
RESTART_S: Final = 2.0
REWIND_MS: Final = 3_600_000


class Follower:
    """Folds the topics into a database.

    Attributes:
        readers: one for each of `fold.TOPICS`.
        away: why the database did not answer the last query; empty while it answers.
        _ready: topics that were folded up to their ends at the start.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        log_name: str,
        readers: Mapping[str, interfaces.TailReader],
        offsets: interfaces.TimedOffsetQueries,
        replays: interfaces.RangeReader,
        writer: interfaces.RecordWriter,
    ) -> None:
        self.readers = readers
        self.away = ""
        self._engine = engine
        self._offsets = offsets
        self._replays = replays
        self._writer = writer
        self._folding = folding.Folding(engine, log_name, self._erase)
        self._upkeep = text_upkeep.TextUpkeep(engine, self._persist)
        self._ready: set[str] = set()

    @property
    def ready(self) -> bool:
        """Whether the topics were folded up to their ends at the start, and the database
        answers."""
        return len(self._ready) == len(self.readers) and not self.away

    async def run(self) -> None:
        """Fold until cancelled."""
        await self._persist(lambda: migration.migrate(self._engine))
        async with asyncio.TaskGroup() as tasks:
            for topic, reader in self.readers.items():
                tasks.create_task(self._follow(topic, reader))
            tasks.create_task(self._upkeep.run())

    async def _follow(self, topic: str, reader: interfaces.TailReader) -> None:
        count = await _query(lambda: self._offsets.partitions(topic))
        ends = await _query(lambda: self._offsets.ends(topic, range(count)))
        await self._begin(topic, reader, count)
        check_at = time.monotonic() + CHECK_S
        compare_at = time.monotonic() + COMPARE_S
        last_read = dict.fromkeys(range(count), time.monotonic())
        while True:
            if time.monotonic() >= check_at:
                check_at = time.monotonic() + CHECK_S
                telemetry.ARCHIVE_SET_ASIDE.set(await self._persist(self._folding.set_aside))
                compare_due = time.monotonic() >= compare_at
                if compare_due or await self._database_is_behind(topic, reader, count):
                    compare_at = time.monotonic() + COMPARE_S
                    if await self._begin(topic, reader, count):
                        ends = await _query(lambda: self._offsets.ends(topic, range(count)))
            if topic not in self._ready and all(
                reader.next_offset(partition) >= end for partition, end in ends.items()
            ):
                self._ready.add(topic)
            starts = {(topic, p): reader.next_offset(p) for p in range(count)}
            try:
                batch = await _query(reader.poll)
            except log.HistoryLost:
                if await self._begin(topic, reader, count):
                    ends = await _query(lambda: self._offsets.ends(topic, range(count)))
                await asyncio.sleep(log.RETRY_S)
                continue
            if not batch:
                continue
            began = time.monotonic()
            quiet = {r.partition for r in batch if began - last_read[r.partition] >= RESTART_S}
            last_read.update(dict.fromkeys((r.partition for r in batch), began))
            if quiet and await self._rolled_back(topic, quiet):
                await self._begin(topic, reader, count)
                ends = await _query(lambda: self._offsets.ends(topic, range(count)))
                continue
            result = await self._persist(functools.partial(self._folding.apply, batch, starts))
            telemetry.ARCHIVE_FOLD_SECONDS.observe(time.monotonic() - began)
            self._report(result)
            for (_, partition), offset in result.next.items():
                if reader.next_offset(partition) != offset:
                    reader.follow(partition, offset)

    def _report(self, result: folding.FoldResult) -> None:
        telemetry.ARCHIVED.labels(outcome="row").inc(result.rows)
        telemetry.ARCHIVED.labels(outcome="erased").inc(result.erased)
        telemetry.ARCHIVED.labels(outcome="garbage").inc(result.garbage)
        telemetry.ARCHIVED.labels(outcome="set_aside").inc(len(result.aside))
        for each in result.aside:
            telemetry.log(telemetry.Action.SET_ASIDE, **each._asdict())
        if result.texts:
            self._upkeep.on_erasure()

    async def _database_is_behind(
        self, topic: str, reader: interfaces.TailReader, count: int
    ) -> bool:
        """Whether the database has lost folded records: it was dropped or restored. Partitions with
        new records show it by themselves; the others do not."""
        positions = await self._persist(self._folding.positions)
        return any(positions.get((topic, p), 0) < reader.next_offset(p) for p in range(count))

    async def _begin(self, topic: str, reader: interfaces.TailReader, count: int) -> bool:
        """Follow all partitions from the database's positions, or from earlier ones if the log was
        rolled back; returns whether it was. A position below the beginning of a topic moves to the
        beginning: later records replace those that compaction removed."""
        rolled_back = await self._rolled_back(topic, range(count))
        rewinds = {}
        for partition, was in rolled_back.items():
            rewinds[topic, partition] = was, await self._rewind_offset(topic, partition, was)
        first = await _query(lambda: self._offsets.beginnings(topic, range(count)))
        places = {(topic, partition): offset for partition, offset in first.items()}
        for (_, partition), offset in (
            await self._persist(lambda: self._folding.begin(places, rewinds))
        ).items():
            if not reader.follows(partition) or reader.next_offset(partition) != offset:
                reader.follow(partition, offset)
        for (_, partition), (was, offset) in rewinds.items():
            self._ready.discard(topic)
            telemetry.LOG_ROLLED_BACK.labels(topic=topic).inc()
            telemetry.log(
                telemetry.Action.LOG_ROLLED_BACK,
                topic=topic,
                partition=partition,
                position=was.next,
                again_from=offset,
            )
        return bool(rewinds)

    async def _rolled_back(self, topic: str, partitions: Iterable[int]) -> dict[int, log.Position]:
        """Those positions of the database that do not belong to the log."""
        positions = await self._persist(self._folding.marked_positions)
        here = {p: positions[topic, p] for p in partitions if (topic, p) in positions}
        back = await _query(lambda: log.rolled_back(self._offsets, self._replays, topic, here))
        return {partition: here[partition] for partition in back}

    async def _rewind_offset(self, topic: str, partition: int, was: log.Position) -> int:
        """Where to read again a partition that was rolled back: from the first record that is newer
        than all folded records. For responses an hour earlier, since a broker's clock may have
        been set, and a repeated record changes nothing. Acts on conversations depend on the acts
        before them, and must not be folded twice."""
        if was.mark is None:
            return 0
        newer = was.mark.timestamp + 1 - (0 if topic == topics.CONVERSATIONS else REWIND_MS)
        offsets = await _query(lambda: self._offsets.since(topic, [partition], newer))
        if partition in offsets:
            return offsets[partition]
        return (await _query(lambda: self._offsets.ends(topic, [partition])))[partition]

    async def _erase(self, addresses: set[conversation_rows.Address]) -> None:
        """Write tombstones."""
        appends = [self._writer.append(*each, None) for each in sorted(addresses)]
        await asyncio.gather(*appends)

    async def _persist(self, query: Callable[[], Awaitable[T]]) -> T:
        """Repeat a query until the database answers. Missing tables are created again."""

        async def attempt() -> T:
            try:
                answer = await query()
            except database.ERRORS:
                await migration.migrate(self._engine)
                raise
            self.away = ""
            return answer

        def failed(error: Exception) -> None:
            reason = f"the archive's database: {type(error).__name__}"
            if reason != self.away:
                self.away = reason
                telemetry.log(telemetry.Action.WAITING, reason=reason)

        return await retry_until(
            attempt, on=(*database.ERRORS, log.AppendFailed), pause_s=RETRY_S, failed=failed
        )


async def _query(query: Callable[[], Awaitable[T]]) -> T:
    """Repeat a query until the log answers."""
    return await retry_until(query, on=log.LogUnavailable, pause_s=log.RETRY_S)
