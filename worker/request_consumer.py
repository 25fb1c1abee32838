"""Takes requests from the log while the engine has room.

Requests that do not fit into the engine stay in Kafka: their partitions are paused. Paused
partitions are polled all the same, because polling keeps the membership.
"""

from __future__ import annotations

import asyncio

from tailrace import log, telemetry
from tailrace.log import interfaces
from tailrace.protocol import ids, records, topics
from worker.assignment import AssignedPartition
from worker.connections import MakeGroupConsumer
from worker.delivery import Delivery
from worker.membership import Membership
from worker.servings import Servings
from worker.worker_context import WorkerContext

MAX_IN_FLIGHT_SPAN = 1_000  # of a partition; above it nothing more is taken from it


class RequestConsumer:
    """Reads the pool's request topics and has each request served.

    Attributes:
        _left: the group was left, or is being left; no more requests are taken.
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
        self._context = context
        self._servings = servings
        self._topics = [topics.requests(pool, priority) for priority in topics.CLASSES]
        self._partition_count = partitions
        self._membership = Membership(
            group_consumer, offsets, context, servings, tasks, self._accept, pool=pool
        )
        self._left = False

    @property
    def partitions(self) -> list[int]:
        """Partition numbers whose requests are taken here now."""
        return [] if self._left else self._membership.assignment.numbers

    async def run(self) -> None:
        """Join the group and poll until `leave`."""
        await self._membership.join()
        async with asyncio.TaskGroup() as tasks:
            maintaining = tasks.create_task(self._membership.maintain())
            while not self._left:
                await self._poll()
            maintaining.cancel()

    async def leave(self) -> None:
        """Take no more requests, commit what is finished, and leave the group. What runs here goes
        on; the partitions' next owners wait for it (log rule P5)."""
        self._left = True
        await self._membership.leave()

    async def _poll(self) -> None:
        free = self._free_capacity()
        self._membership.pause(self._to_pause(free))
        polled = await self._membership.poll(max(1, free))
        if self._left:
            return  # not begun, so not committed: the present owner receives it
        for r in sorted(polled, key=lambda r: self._topics.index(r.topic)):  # interactive first
            assigned = self._membership.assignment.get((r.topic, r.partition))
            if assigned is None:
                continue  # revoked since; the present owner receives it
            if assigned.opened:
                self._accept(r, assigned)
            else:
                assigned.early.append(r)

    def _free_capacity(self) -> int:
        """How many more requests to take: the engine's capacity and a quarter of it, which
        waits."""
        capacity = self._context.engine_slots.capacity
        early = self._membership.assignment.early_records
        return capacity + max(2, capacity // 4) - self._servings.wanting_slots - early

    def _to_pause(self, free: int) -> set[interfaces.TopicPartition]:
        """Partitions to take nothing from now. Batch waits while anything interactive waits."""
        slots = self._context.engine_slots
        full = free <= 0
        busy = slots.queued > 0 or self._servings.wanting_slots >= slots.capacity
        return {
            tp
            for tp, assigned in self._membership.assignment
            if full
            or (busy and tp[0] != self._topics[0])
            or assigned.tracker.in_flight_span >= MAX_IN_FLIGHT_SPAN
            or assigned.tracker.in_flight >= MAX_IN_FLIGHT_SPAN
        }

    def _accept(self, r: log.Record, assigned: AssignedPartition) -> None:
        request, problem = read_request(r, self._partition_count)
        if request is None:
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
