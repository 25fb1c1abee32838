"""The worker's membership in its pool's group: assignments, commits, and what the tail follows."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from tailrace import log, telemetry
from tailrace.log import interfaces
from tailrace.protocol import topics
from tailrace.retry import retry_until
from worker.group.assignment import AssignedPartition, Assignment, find_fold_starts
from worker.log.connections import MakeGroupConsumer
from worker.serving.running_responses import RunningResponses
from worker.serving.worker_context import WorkerContext

COMMIT_S = 1.0
WATCH_S = 15.0
# A member that returns nothing for this time although there are records is stuck and rejoins;
# aiokafka has several such defects.
QUIET_S = 30.0
POLL_MS = 50
REVOKE_COMMIT_S = 2.0
RETRY_S = 0.5

Accept = Callable[[log.Record, AssignedPartition], None]
"""Accepts a request record of an assigned partition."""


class Membership:
    """One member of the group.

    A rebalance revokes every partition: its trackers end, and generations continue (log rule P5).

    Attributes:
        assignment: this worker's partitions; empty between a revoke and the next assignment.
        _member: the group client.
        _paused: partitions that the member does not poll.
        _to_seek: partitions to read from these offsets and then to open. This happens between two
            polls, so that no record before the offset counts as read.
        _last_record_s: when a record last arrived, or a paused partition prevented it.
    """

    def __init__(
        self,
        group_consumer: MakeGroupConsumer,
        offsets: interfaces.OffsetQueries,
        context: WorkerContext,
        responses: RunningResponses,
        tasks: asyncio.TaskGroup,
        accept: Accept,
        *,
        pool: str,
    ) -> None:
        """`accept` is called for records that were read before their partition was opened."""
        self._offsets = offsets
        self._tail = context.tail
        self._monotonic = context.monotonic
        self._responses = responses
        self._tasks = tasks
        self._accept = accept
        self._group = topics.group(pool)
        self._topics = [topics.requests(pool, priority) for priority in topics.CLASSES]
        self._member = group_consumer(
            self._group, self._topics, assigned=self._on_assigned, revoked=self._on_revoked
        )
        self.assignment = Assignment()
        self._paused: set[interfaces.TopicPartition] = set()
        self._to_seek: dict[interfaces.TopicPartition, int] = {}
        self._last_record_s = self._monotonic()

    async def join(self) -> None:
        """Join the group; waits for a broker that is away."""
        await self._member.start()

    async def maintain(self) -> None:
        """Commit, and rejoin when the member is stuck, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._commit_regularly())
            tasks.create_task(self._watch())

    async def leave(self) -> None:
        """Commit finished requests and leave the group. Generations continue (P5) while other
        workers get the partitions."""
        await self._commit_in_time()
        await self._member.stop()
        self._end_assignment()
        self._unfollow_idle()

    async def poll(self, max_records: int) -> list[log.Record]:
        """The next records of partitions that are not paused; empty while the log is away."""
        try:
            self._seek()
            batch = await self._member.poll(max_records=max_records, timeout_ms=POLL_MS)
        except log.LogUnavailable:
            await asyncio.sleep(RETRY_S)
            return []
        if batch or self._paused:
            self._last_record_s = self._monotonic()
        return batch

    def _seek(self) -> None:
        """Raises LogUnavailable."""
        if not self._to_seek:
            return
        self._member.seek(self._to_seek)
        for tp in self._to_seek:
            if (partition := self.assignment.get(tp)) is not None:
                partition.early.clear()
                partition.opened = True
        self._to_seek = {}

    @property
    def answers(self) -> bool:
        """Whether the member is known to receive the records of its partitions."""
        return self._member.answers

    @property
    def pauses(self) -> bool:
        """Whether anything is paused."""
        return bool(self._paused)

    def pause(self, partitions: set[interfaces.TopicPartition]) -> None:
        """Pause exactly these of the assigned partitions, and resume the others."""
        to_resume = {tp for tp in self._paused - partitions if self.assignment.get(tp) is not None}
        try:
            if more := partitions - self._paused:
                self._member.pause(more)
            if to_resume:
                self._member.resume(to_resume)
        except log.LogUnavailable:
            return
        self._paused = partitions

    # ---- rebalances ------------------------------------------------------------------------------

    async def _on_assigned(self, assigned: set[interfaces.TopicPartition]) -> None:
        # A revoke comes before every assignment. If one were missing, its trackers must end here.
        self._end_assignment()
        self.assignment = Assignment(assigned)
        self._paused = set()
        telemetry.log(telemetry.Action.PARTITIONS_ASSIGNED, partitions=self.assignment.numbers)
        if assigned:
            self._tasks.create_task(self._open(self.assignment), name="open")

    async def _on_revoked(self, revoked: set[interfaces.TopicPartition]) -> None:
        if not revoked:
            return
        await self._commit_in_time()
        self._end_assignment()
        telemetry.log(
            telemetry.Action.PARTITIONS_REVOKED,
            partitions=sorted({p for _, p in revoked}),
            responses=len(self._responses),
        )
        self._unfollow_idle()

    def _end_assignment(self) -> None:
        self._to_seek = {}
        self.assignment.end()
        self.assignment = Assignment()

    async def _open(self, assignment: Assignment) -> None:
        """Follow the token partitions from where a successor must fold, then accept the early
        records. Retried until it succeeds or the assignment ends."""
        ranges = await retry_until(
            lambda: self._fold_ranges(assignment), on=log.LogUnavailable, pause_s=RETRY_S
        )
        if not assignment.holds():
            return
        if assignment.moved:
            telemetry.log(
                telemetry.Action.OFFSETS_MOVED, partitions=sorted({p for _, p in assignment.moved})
            )
        for tp, assigned in assignment:
            start, end = ranges[tp[1]]
            self._tail.follow(tp[1], min(start, end), end)
            if tp in assignment.moved:
                self._to_seek[tp] = assignment.moved[tp]
                continue
            assigned.opened = True
            for r in assigned.early:
                self._accept(r, assigned)
            assigned.early.clear()

    async def _fold_ranges(self, assignment: Assignment) -> dict[int, tuple[int, int]]:
        """Where the fold of each token partition starts, and the partition's end; empty when the
        assignment has ended."""
        if not assignment.holds():
            return {}
        starts = await find_fold_starts(assignment, self._offsets, self._group, self._topics)
        # Read after the assignment: every record of a former owner lies below these ends, or is
        # read later.
        ends = await self._offsets.ends(topics.TOKENS, starts)
        return {partition: (start, ends[partition]) for partition, start in starts.items()}

    # ---- commits ---------------------------------------------------------------------------------

    async def _commit_regularly(self) -> None:
        while True:
            await asyncio.sleep(COMMIT_S)
            with contextlib.suppress(log.LogUnavailable):  # the next commit includes this one
                await self.assignment.commit(self._member, self._tail.position)
            self._unfollow_idle()

    async def _commit_in_time(self) -> None:
        """The last commit of an assignment; bounded, because a rebalance waits for it."""
        with contextlib.suppress(log.LogUnavailable, TimeoutError):
            async with asyncio.timeout(REVOKE_COMMIT_S):
                await self.assignment.commit(self._member, self._tail.position)

    def _unfollow_idle(self) -> None:
        """A revoked partition stays in the tail until the last response served here is over
        (P5)."""
        needed = self._responses.partitions | set(self.assignment.numbers)
        for partition in self._tail.partitions:
            if partition not in needed:
                self._tail.leave(partition)

    async def _watch(self) -> None:
        """Rejoin when the member returns nothing although the log has records for it."""
        while True:
            await asyncio.sleep(WATCH_S)
            if self._monotonic() - self._last_record_s < QUIET_S:
                continue
            try:
                stuck = any([await self.assignment.unread(self._offsets, t) for t in self._topics])
            except log.LogUnavailable:
                continue  # the broker is the cause, not the member
            if stuck:
                telemetry.log(
                    telemetry.Action.CONSUMER_REPLACED, partitions=self.assignment.numbers
                )
                self._member.rejoin()
                self._last_record_s = self._monotonic()
