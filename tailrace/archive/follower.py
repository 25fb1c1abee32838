"""Reads the topics of the archive and folds them, for as long as the process runs."""

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
# How often to look whether the database still stands where this process does.
LOOK_S: Final = 2.0
# How often to look whether the log was rolled back although nothing new comes of it.
COMPARE_S: Final = 60.0
# A broker takes longer to come up with an older disk. So what comes of a partition that was heard
# within this time follows what came before.
RESTART_S: Final = 2.0
AGAIN_MS: Final = 3_600_000


class Follower:
    """Folds the topics into a database.

    Attributes:
        readers: one for each of `fold.FOLLOWED`.
        away: why the database did not answer when it was last asked; empty while it does.
        _ready: topics of which everything was folded that they held at the start.
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
        """Whether everything was folded that the topics held at the start, and the database
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
        count = await _answered(lambda: self._offsets.partitions(topic))
        ends = await _answered(lambda: self._offsets.ends(topic, range(count)))
        await self._begin(topic, reader, count)
        look_at = time.monotonic() + LOOK_S
        compare_at = time.monotonic() + COMPARE_S
        heard = dict.fromkeys(range(count), time.monotonic())
        while True:
            if time.monotonic() >= look_at:
                look_at = time.monotonic() + LOOK_S
                telemetry.ARCHIVE_SET_ASIDE.set(await self._persist(self._folding.set_aside))
                due = time.monotonic() >= compare_at
                if due or await self._lost(topic, reader, count):
                    compare_at = time.monotonic() + COMPARE_S
                    if await self._begin(topic, reader, count):
                        ends = await _answered(lambda: self._offsets.ends(topic, range(count)))
            if topic not in self._ready and all(
                reader.next_offset(partition) >= end for partition, end in ends.items()
            ):
                self._ready.add(topic)
            starts = {(topic, p): reader.next_offset(p) for p in range(count)}
            try:
                batch = await _answered(reader.poll)
            except log.HistoryLost:
                if await self._begin(topic, reader, count):
                    ends = await _answered(lambda: self._offsets.ends(topic, range(count)))
                await asyncio.sleep(log.RETRY_S)
                continue
            if not batch:
                continue
            began = time.monotonic()
            quiet = {r.partition for r in batch if began - heard[r.partition] >= RESTART_S}
            heard.update(dict.fromkeys((r.partition for r in batch), began))
            if quiet and await self._rolled_back(topic, quiet):
                await self._begin(topic, reader, count)
                ends = await _answered(lambda: self._offsets.ends(topic, range(count)))
                continue
            folded = await self._persist(functools.partial(self._folding.apply, batch, starts))
            telemetry.ARCHIVE_FOLD_SECONDS.observe(time.monotonic() - began)
            self._report(folded)
            for (_, partition), offset in folded.next.items():
                if reader.next_offset(partition) != offset:
                    reader.follow(partition, offset)

    def _report(self, folded: folding.Folded) -> None:
        telemetry.ARCHIVED.labels(outcome="row").inc(folded.rows)
        telemetry.ARCHIVED.labels(outcome="erased").inc(folded.erased)
        telemetry.ARCHIVED.labels(outcome="garbage").inc(folded.garbage)
        telemetry.ARCHIVED.labels(outcome="set_aside").inc(len(folded.aside))
        for each in folded.aside:
            telemetry.log(telemetry.Action.SET_ASIDE, **each._asdict())
        if folded.texts:
            self._upkeep.erased()

    async def _lost(self, topic: str, reader: interfaces.TailReader, count: int) -> bool:
        """Whether the database lacks what was folded: it was dropped or restored. Batches tell it
        of partitions that have new records; of the others nothing would."""
        known = await self._persist(self._folding.positions)
        return any(known.get((topic, p), 0) < reader.next_offset(p) for p in range(count))

    async def _begin(self, topic: str, reader: interfaces.TailReader, count: int) -> bool:
        """Follow all partitions from where the database stands, or from where the log is if it was
        rolled back; returns whether it was. Below its beginning a topic has nothing any more: what
        compaction removed, later records say."""
        back = await self._rolled_back(topic, range(count))
        again = {}
        for partition, was in back.items():
            again[topic, partition] = was, await self._again(topic, partition, was)
        first = await _answered(lambda: self._offsets.beginnings(topic, range(count)))
        places = {(topic, partition): offset for partition, offset in first.items()}
        for (_, partition), offset in (
            await self._persist(lambda: self._folding.begin(places, again))
        ).items():
            if not reader.follows(partition) or reader.next_offset(partition) != offset:
                reader.follow(partition, offset)
        for (_, partition), (was, offset) in again.items():
            self._ready.discard(topic)
            telemetry.LOG_ROLLED_BACK.labels(topic=topic).inc()
            telemetry.log(
                telemetry.Action.LOG_ROLLED_BACK,
                topic=topic,
                partition=partition,
                position=was.next,
                again_from=offset,
            )
        return bool(again)

    async def _rolled_back(self, topic: str, partitions: Iterable[int]) -> dict[int, log.Position]:
        """Those positions of the database that do not belong to the log."""
        stored = await self._persist(self._folding.marked)
        here = {p: stored[topic, p] for p in partitions if (topic, p) in stored}
        back = await _answered(lambda: log.rolled_back(self._offsets, self._replays, topic, here))
        return {partition: here[partition] for partition in back}

    async def _again(self, topic: str, partition: int, was: log.Position) -> int:
        """Where to read a partition again that was rolled back: from the first record that is newer
        than all that was folded. Of responses from an hour before, since a broker's clock may have
        been set; what comes twice changes nothing there. Acts on conversations depend on what was
        before them, and are not folded twice."""
        if was.mark is None:
            return 0
        newer = was.mark.timestamp + 1 - (0 if topic == topics.CONVERSATIONS else AGAIN_MS)
        found = await _answered(lambda: self._offsets.since(topic, [partition], newer))
        if partition in found:
            return found[partition]
        return (await _answered(lambda: self._offsets.ends(topic, [partition])))[partition]

    async def _erase(self, of: set[conversation_rows.Address]) -> None:
        """Write tombstones."""
        appended = [self._writer.append(*each, None) for each in sorted(of)]
        await asyncio.gather(*appended)

    async def _persist(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask until the database answers. Tables that are gone are made again."""

        async def attempt() -> T:
            try:
                found = await ask()
            except database.ERRORS:
                await migration.migrate(self._engine)
                raise
            self.away = ""
            return found

        def failed(error: Exception) -> None:
            reason = f"the archive's database: {type(error).__name__}"
            if reason != self.away:
                self.away = reason
                telemetry.log(telemetry.Action.WAITING, reason=reason)

        return await retry_until(
            attempt, on=(*database.ERRORS, log.AppendFailed), pause_s=RETRY_S, failed=failed
        )


async def _answered(ask: Callable[[], Awaitable[T]]) -> T:
    """Ask until the log answers."""
    return await retry_until(ask, on=log.LogUnavailable, pause_s=log.RETRY_S)
