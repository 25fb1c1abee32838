"""The live half of delivery: from the tail of `llm.tokens` to the streams of the hub."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from tailrace import log, telemetry
from tailrace.delivery import hub
from tailrace.delivery.catch_up import CatchUp
from tailrace.delivery.persist import persist
from tailrace.delivery.token_tail import TokenTail
from tailrace.log import interfaces
from tailrace.log.identity import LogIdentity, require_not_rolled_back
from tailrace.protocol import topics

_PUSH_SECONDS = telemetry.STAGE_SECONDS.labels(stage="push")


class LiveTail:
    """Dispatches new records to streams, and follows a partition while it has streams.

    Attributes:
        streams: every stream of this instance.
        ready: the preferred partitions are followed.
        _following: partitions about to be followed; the task ends when they are.
    """

    def __init__(
        self,
        streams: hub.Hub,
        tail: TokenTail,
        offsets: interfaces.OffsetQueries,
        identity: LogIdentity,
        preferred: Iterable[int],
        *,
        clock: Callable[[], float],
        sweep_s: float,
    ) -> None:
        self.streams = streams
        self._tail = tail
        self._offsets = offsets
        self._identity = identity
        self._preferred = frozenset(preferred)
        self._clock = clock
        self._sweep_s = sweep_s
        self._following: dict[int, asyncio.Task[None]] = {}
        self._catch_up = CatchUp(topics.TOKENS, offsets, self._read_below)
        self.ready = False

    async def run(self) -> None:
        """Tail until cancelled.

        Raises:
            log.LogChanged: in an exception group.
        """
        ends = await persist(lambda: self._offsets.ends(topics.TOKENS, self._preferred))
        for partition, offset in ends.items():
            # A client may already have connected. Its stream begins where the tail began for it.
            if not self._tail.follows(partition):
                self._tail.follow(partition, offset)
        self.ready = True
        async with asyncio.TaskGroup() as tasks:
            for reader in self._tail.readers:
                tasks.create_task(self._dispatch(reader))
            tasks.create_task(self._sweep())

    async def follow(self, partition: int) -> None:
        """Follow `partition`, from an offset that is in the log now; returns when it is followed.

        Raises:
            log.LogUnavailable
        """
        if self._tail.follows(partition):
            return
        task = self._following.get(partition)
        if task is None:
            task = asyncio.create_task(self._follow_from_end(partition))
            self._following[partition] = task
            task.add_done_callback(lambda _t: self._following.pop(partition, None))
        await asyncio.shield(task)

    def follow_from(self, partition: int, offset: int) -> None:
        """Follow `partition` from `offset` on, if it is not followed."""
        if not self._tail.follows(partition):
            self._tail.follow(partition, offset)

    def next_offset(self, partition: int) -> int:
        """Next offset of a followed partition. Everything below it was dispatched, or lies before
        the start."""
        return self._tail.next_offset(partition)

    async def end(self, partition: int) -> int:
        """The end of `partition` as of this call or later. Raises log.LogUnavailable."""
        return (await self._catch_up.ends([partition]))[partition]

    async def caught_up(self, stream: hub.Stream, enough: Callable[[], bool]) -> None:
        """Wait until all present records of a registered stream were dispatched, until `enough`, or
        until the log has lost it.

        Raises:
            log.HistoryLost
            log.LogUnavailable: also if the tail lags for too long.
        """
        if not enough():
            await self._catch_up.wait(
                [stream.partition], lambda: enough() or stream.lost is not None
            )
        if stream.lost is not None:
            raise stream.lost

    async def stop(self) -> None:
        """Close the connections."""
        await self._tail.stop()

    def _read_below(self, partition: int) -> int:
        return self._tail.next_offset(partition) if self._tail.follows(partition) else -1

    async def _follow_from_end(self, partition: int) -> None:
        self.follow_from(partition, await self.end(partition))

    async def _dispatch(self, reader: interfaces.TailReader) -> None:
        while True:
            try:
                batch = await persist(reader.poll)
            except log.HistoryLost:
                await self._lost(reader)
                continue
            now = self._clock()
            for record in batch:
                self.streams.dispatch(record, now)
            if batch:
                _PUSH_SECONDS.observe(self._clock() - now)
            self._catch_up.on_move()

    async def _lost(self, reader: interfaces.TailReader) -> None:
        """A position is not in the log: retention passed it after a stall of hours, or this is
        another log, or one that was rolled back.

        Raises:
            log.LogChanged
        """
        await persist(self._identity.check)
        positions = dict(reader.positions)
        beginnings = await persist(lambda: self._offsets.beginnings(topics.TOKENS, positions))
        ends = await persist(lambda: self._offsets.ends(topics.TOKENS, positions))
        require_not_rolled_back(topics.TOKENS, positions, ends)
        for partition, position in positions.items():
            if beginnings[partition] <= position:
                continue
            for stream in self.streams.streams_on(partition):
                stream.fail(log.HistoryLost(f"the log no longer holds all of {stream.rid}"))
                self.streams.drop(stream.rid)
            reader.follow(partition, ends[partition])

    async def _sweep(self) -> None:
        """Drop streams that are not used, and leave on-demand partitions that have none."""
        while True:
            await asyncio.sleep(self._sweep_s)
            self.streams.sweep(self._clock())
            for partition in set(self._tail.positions) - self._preferred:
                if not self.streams.load(partition) and partition not in self._following:
                    self._tail.leave(partition)
