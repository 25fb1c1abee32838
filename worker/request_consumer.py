"""Consumes the pool's request topics as a member of its group.

- Requests that do not fit into the engine stay in Kafka: their partitions are paused. Paused
  partitions are polled all the same, because polling keeps the membership.
- A rebalance revokes every partition: its trackers die, generations run on (log rule P5), and a
  redelivered request joins the serving that is under way.
- Only a `Tracker` says what is committed.
"""

from __future__ import annotations

import asyncio
import contextlib

from tailrace import log, telemetry
from tailrace.log import interfaces
from tailrace.protocol import ids, records, topics
from worker.assignment import AssignedPartition, Assignment, find_fold_starts
from worker.connections import MakeGroupConsumer
from worker.delivery import Delivery
from worker.servings import Servings
from worker.worker_context import WorkerContext

COMMIT_S = 1.0
WATCH_S = 15.0
# A member that returns nothing for so long although there are records is stuck and joins anew;
# aiokafka has several such defects.
QUIET_S = 30.0
POLL_MS = 50
MAX_IN_FLIGHT_SPAN = 1_000  # of a partition; above it nothing more is taken from it
REVOKE_COMMIT_S = 2.0
RETRY_S = 0.5


class RequestConsumer:
    """Takes requests while the engine has room. `run` joins the group and polls.

    Attributes:
        skipped: number of records that were no requests, by reason.
        _member: this worker's membership in the group.
        _assignment: what the group gave us; empty between a revoke and the next assignment.
        _paused: partitions that the member was told to pause.
        _stopping: no more requests are taken.
        _left: the group was left, or is being left.
        _last_record_s: when a record last came, or could not come because something was paused.
    """

    def __init__(
        self,
        group_consumer: MakeGroupConsumer,
        offsets: interfaces.OffsetQueries,
        context: WorkerContext,
        servings: Servings,
        tasks: asyncio.TaskGroup,
        *,
        pool: str,
        partitions: int,
    ) -> None:
        self._offsets = offsets
        self._context = context
        self._servings = servings
        self._tasks = tasks
        self._group = topics.group(pool)
        self._topics = [topics.requests(pool, priority) for priority in topics.CLASSES]
        self._partition_count = partitions
        self._member = group_consumer(
            self._group, self._topics, assigned=self._on_assigned, revoked=self._on_revoked
        )
        self._assignment = Assignment()
        self._paused: set[interfaces.TopicPartition] = set()
        self._stopping = False
        self._left = False
        self._last_record_s = context.monotonic()
        self.skipped: dict[str, int] = {}

    @property
    def partitions(self) -> list[int]:
        """Partition numbers assigned now."""
        return self._assignment.numbers

    async def run(self) -> None:
        """Join, then poll and commit until `leave`; during a drain with everything paused."""
        await self._member.start()
        async with asyncio.TaskGroup() as tasks:
            background = [
                tasks.create_task(self._commit_regularly()),
                tasks.create_task(self._watch()),
            ]
            while not self._left:
                await self._poll()
            for task in background:
                task.cancel()

    def stop_taking(self) -> None:
        """Take no more requests: the first step of a drain."""
        self._stopping = True

    async def leave(self) -> None:
        """Commit what is finished and leave the group. Generations run on (P5) while other workers
        take the partitions over."""
        self._left = True
        await self._commit_in_time()
        await self._member.stop()
        self._end_assignment()

    # ---- taking requests -------------------------------------------------------------------------

    async def _poll(self) -> None:
        free = self._free_capacity()
        self._pause(free)
        try:
            polled = await self._member.poll(max_records=max(1, free), timeout_ms=POLL_MS)
        except log.LogUnavailable:
            await asyncio.sleep(RETRY_S)
            return
        if polled or self._paused:
            self._last_record_s = self._context.monotonic()
        for r in sorted(polled, key=lambda r: self._topics.index(r.topic)):  # interactive first
            assigned = self._assignment.get((r.topic, r.partition))
            if assigned is None:
                continue  # revoked since; the present owner receives it
            if assigned.opened:
                self._accept(r, assigned)
            else:
                assigned.early.append(r)

    def _free_capacity(self) -> int:
        """How many more requests to take: the engine's capacity and a quarter, which waits."""
        capacity = self._context.engine_slots.capacity
        waiting = self._servings.wanting_slots + self._assignment.early_records
        return capacity + max(2, capacity // 4) - waiting

    def _pause(self, free: int) -> None:
        """Pause what must not be taken from now. Batch waits while anything interactive waits."""
        slots = self._context.engine_slots
        full = free <= 0 or self._stopping
        busy = slots.queued > 0 or self._servings.wanting_slots >= slots.capacity
        paused = {
            tp
            for tp, assigned in self._assignment
            if full
            or (busy and tp[0] != self._topics[0])
            or assigned.tracker.in_flight_span >= MAX_IN_FLIGHT_SPAN
            or assigned.tracker.in_flight >= MAX_IN_FLIGHT_SPAN
        }
        resumed = {tp for tp in self._paused - paused if self._assignment.get(tp) is not None}
        try:
            if more := paused - self._paused:
                self._member.pause(more)
            if resumed:
                self._member.resume(resumed)
        except log.LogUnavailable:
            return
        self._paused = paused

    def _accept(self, r: log.Record, assigned: AssignedPartition) -> None:
        request, problem = read_request(r, self._partition_count)
        if request is None:
            self.skipped[problem] = self.skipped.get(problem, 0) + 1
            telemetry.log(
                telemetry.Action.RECORD_UNREADABLE,
                reason=problem,
                topic=r.topic,
                partition=r.partition,
                offset=r.offset,
            )
            assigned.tracker.skip(r.offset)
            return
        assigned.tracker.begin(r.offset)
        self._context.clock.observe(r.timestamp, self._context.monotonic())
        self._servings.deliver(
            request,
            Delivery(r.topic, r.partition, r.offset, r.timestamp, assigned.tracker, r.headers),
        )

    # ---- rebalances ------------------------------------------------------------------------------

    async def _on_assigned(self, assigned: set[interfaces.TopicPartition]) -> None:
        # A revoke comes before every assignment. If one were missing, its trackers must end here.
        self._end_assignment()
        self._assignment = Assignment(assigned)
        self._paused = set()
        telemetry.log(telemetry.Action.PARTITIONS_ASSIGNED, partitions=self.partitions)
        if assigned:
            self._tasks.create_task(self._open(self._assignment), name="open")

    async def _on_revoked(self, revoked: set[interfaces.TopicPartition]) -> None:
        if not revoked:
            return
        await self._commit_in_time()
        self._end_assignment()
        telemetry.log(
            telemetry.Action.PARTITIONS_REVOKED,
            partitions=sorted({p for _, p in revoked}),
            responses=len(self._servings),
        )
        self._unfollow_idle()

    def _end_assignment(self) -> None:
        self._assignment.end()
        self._assignment = Assignment()

    async def _open(self, assignment: Assignment) -> None:
        """Follow the token partitions from where a successor must fold, then accept the early
        records. Retried until it succeeds or the assignment ends."""
        while assignment.holds():
            try:
                starts = await find_fold_starts(
                    assignment, self._offsets, self._group, self._topics
                )
                # Asked after the assignment: whatever a former owner wrote before it lost the
                # partition lies below these ends, or is seen later.
                ends = await self._offsets.ends(topics.TOKENS, starts)
            except log.LogUnavailable:
                await asyncio.sleep(RETRY_S)
                continue
            if not assignment.holds():
                return
            for (_, partition), assigned in assignment:
                start, end = starts[partition], ends[partition]
                self._context.tail.follow(partition, min(start, end), end)
                assigned.opened = True
                for r in assigned.early:
                    self._accept(r, assigned)
                assigned.early.clear()
            return

    # ---- committing ------------------------------------------------------------------------------

    async def _commit_regularly(self) -> None:
        while True:
            await asyncio.sleep(COMMIT_S)
            with contextlib.suppress(log.LogUnavailable):  # the next commit says the same and more
                await self._assignment.commit(self._member, self._context.tail.position)
            self._unfollow_idle()

    async def _commit_in_time(self) -> None:
        """The last commit of an assignment; bounded, because a rebalance waits for it."""
        with contextlib.suppress(log.LogUnavailable, TimeoutError):
            async with asyncio.timeout(REVOKE_COMMIT_S):
                await self._assignment.commit(self._member, self._context.tail.position)

    def _unfollow_idle(self) -> None:
        """A revoked partition stays in the tail until the last response served here is over
        (P5)."""
        needed = self._servings.partitions | set(self.partitions)
        for partition in self._context.tail.followed:
            if partition not in needed:
                self._context.tail.leave(partition)

    async def _watch(self) -> None:
        """Join anew when the member returns nothing although the log has records for it."""
        while True:
            await asyncio.sleep(WATCH_S)
            quiet_s = self._context.monotonic() - self._last_record_s
            if quiet_s < QUIET_S or not await self._lags():
                continue
            telemetry.log(telemetry.Action.CONSUMER_REPLACED, partitions=self.partitions)
            self._member.rejoin()
            self._last_record_s = self._context.monotonic()

    async def _lags(self) -> bool:
        try:
            return await self._assignment.lags(self._offsets, self._topics)
        except log.LogUnavailable:
            return False  # then it is not the member's fault


def read_request(r: log.Record, partitions: int) -> tuple[records.Request | None, str]:
    """The request in a record, or None and the reason why it is none. A record that is no request
    is skipped, so that it stalls no other."""
    request = records.decode_request(r.value)
    if request is None:
        return None, "garbage"
    try:
        address = ids.parse(request.rid, partitions)
    except ids.InvalidId:
        return None, "invalid_id"
    return (request, "") if address.partition == r.partition else (None, "wrong_partition")
