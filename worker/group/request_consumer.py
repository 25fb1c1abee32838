"""Reads requests from the log, further than the engine has room for (`worker.queue.read_ahead`).

Requests without room stay in Kafka: their partitions are paused. Polling continues while partitions
are paused, because it keeps the membership.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Iterator

from tailrace import log, telemetry
from tailrace.log import interfaces
from tailrace.protocol import ids, records, topics
from worker.group.assignment import AssignedPartition, Assignment
from worker.group.membership import Membership
from worker.log.connections import MakeGroupConsumer
from worker.queue import read_ahead
from worker.queue.commit_tracker import Tracker
from worker.queue.delivery import Delivery
from worker.serving.repeated_keys import Place, RepeatedKeys
from worker.serving.response_state import request_cost
from worker.serving.running_responses import RunningResponses
from worker.serving.worker_context import WorkerContext

# Of a partition; above it reading stops. It bounds what a successor reads again.
MAX_IN_FLIGHT_SPAN = 10_000
POLL_RECORDS = 200
AGAIN_RETRY_S = 0.5  # pause after requests that were set aside could not be read
COUNT_S = 1.0  # between counts of unread requests
# Requests that start sooner are in memory, so that offered requests do not start here before other
# workers have them.
STEAL_AHEAD_S = 3.0


class RequestConsumer:
    """Reads the pool's request topics and has each request served.

    Attributes:
        _room: room in memory, as of the last poll.
        _aside: requests that were set aside.
        _reread: task that reads requests that were set aside; None or done without one.
        _reread_key: whose requests are being read again; later ones of the same wait.
        _assignment: the assignment to which requests that were set aside may belong.
        _unread: requests that were not read, by topic, as of the last count.
        _keys: which requests repeat the idempotency key of an earlier one.
        _leaving: the group was left, or is being left; reading has stopped.
        starts_per_s: gives how many requests start per second while others wait. 0 where none is
            offered to other workers.
    """

    def __init__(
        self,
        group_consumer: MakeGroupConsumer,
        offsets: interfaces.OffsetQueries,
        replays: interfaces.RangeReader,
        context: WorkerContext,
        responses: RunningResponses,
        tasks: asyncio.TaskGroup,
        *,
        pool: str,
        partitions: int,
    ) -> None:
        self._context = context
        self._responses = responses
        self._replays = replays
        self._offsets = offsets
        self._topics = [topics.requests(pool, priority) for priority in topics.CLASSES]
        self._partition_count = partitions
        self._membership = Membership(
            group_consumer, offsets, context, responses, tasks, self._accept, pool=pool
        )
        self.starts_per_s: Callable[[], float] = lambda: 0.0
        self._room = self._room_now()
        self._aside = read_ahead.SetAside()
        self._reread: asyncio.Task[None] | None = None
        self._reread_key: read_ahead.Key | None = None
        self._assignment: Assignment | None = None
        self._unread = dict.fromkeys(self._topics, 0)
        self._keys = RepeatedKeys()
        self._leaving = False

    def overflow(self, rank: int) -> read_ahead.Overflow:
        """The requests of a class in the assigned partitions that are not in memory."""
        topic = self._topics[rank]
        return read_ahead.Overflow(self._aside.costs(topic), self._unread[topic])

    def set_aside(self, rank: int) -> dict[str, Iterator[tuple[str, float]]]:
        """Ids and costs of the requests of a class that were set aside, by principal."""
        return self._aside.waiting(self._topics[rank]) if 0 <= rank < len(self._topics) else {}

    @property
    def idle(self) -> bool:
        """Whether it reads requests, and all assigned requests were read and are served."""
        return not (self._leaving or self._aside or any(self._unread.values()))

    @property
    def answers(self) -> bool:
        """Whether the group's member is known to receive the records of its partitions."""
        return self._membership.answers

    @property
    def partitions(self) -> list[int]:
        """Partition numbers whose requests are read here now."""
        return [] if self._leaving else self._membership.assignment.numbers

    async def run(self) -> None:
        """Join the group and poll until `leave`."""
        await self._membership.join()
        async with asyncio.TaskGroup() as tasks:
            maintaining = tasks.create_task(self._membership.maintain())
            counting = tasks.create_task(self._count_unread())
            while not self._leaving:
                await self._poll()
                self._start_reread(tasks)
            maintaining.cancel()
            counting.cancel()
            if self._reread is not None:
                self._reread.cancel()

    async def leave(self) -> None:
        """Stop reading, commit finished requests, and leave the group. Running responses continue;
        the partitions' next owners wait for them (log rule P5)."""
        self._leaving = True
        await self._membership.leave()

    async def _poll(self) -> None:
        self._membership.pause(self._to_pause())
        batch = await self._membership.poll(POLL_RECORDS)
        if self._leaving:
            return  # not begun, so not committed: the present owner receives it
        self._room = self._room_now()
        if self._assignment is not self._membership.assignment:
            self._assignment = self._membership.assignment
            self._aside.drop_revoked()
        for r in sorted(batch, key=lambda r: self._topics.index(r.topic)):  # interactive first
            partition = self._membership.assignment.get((r.topic, r.partition))
            if partition is None:
                continue  # revoked since; the present owner receives it
            if partition.opened:
                self._accept(r, partition)
            else:
                partition.early.append(r)
        telemetry.REQUESTS_SET_ASIDE.set(len(self._aside))

    def _room_now(self) -> read_ahead.Room:
        """For one principal and class: the capacity of the engine, and as many waiting requests
        again, or those that it starts in STEAL_AHEAD_S."""
        capacity = self._context.engine_slots.capacity
        each = capacity + max(capacity, math.ceil(STEAL_AHEAD_S * self.starts_per_s()))
        return read_ahead.Room.after(each, self._responses.footprints)

    def _to_pause(self) -> set[interfaces.TopicPartition]:
        """Partitions to pause now."""
        full = len(self._aside) >= read_ahead.MAX_ASIDE
        batch_full = len(self._aside) >= read_ahead.MAX_BATCH_ASIDE
        return {
            tp
            for tp, partition in self._membership.assignment
            if full
            or (batch_full and tp[0] != self._topics[0])
            or partition.early
            or partition.tracker.in_flight_span >= MAX_IN_FLIGHT_SPAN
            or partition.tracker.in_flight >= MAX_IN_FLIGHT_SPAN
        }

    def _accept(self, r: log.Record, partition: AssignedPartition) -> None:
        """Start serving the request, or set it aside."""
        request = self._request_in(r, partition.tracker)
        if request is None:
            return
        if _reroute(r) is None:  # the key of a reroute counts at its request's offset
            self._keys.note(Place(r.topic, r.partition, r.offset), request)
        partition.tracker.begin(r.offset)
        key, size = read_ahead.Key(r.topic, request.owner.key), len(r.value or b"")
        if not self._responses.serves(request.rid):
            after_others = key in self._aside or key == self._reread_key
            if after_others or not self._room.admits(key, size):
                place = read_ahead.Aside(
                    *(request.rid, r.partition, r.offset, size),
                    *(request_cost(request), partition.tracker),
                )
                self._aside.add(key, place)
                return
            self._room.add(key, size)
        self._serve(r, request, partition.tracker)

    def _request_in(self, r: log.Record, tracker: Tracker) -> records.Request | None:
        request, problem = read_request(r, self._partition_count)
        if request is None:
            telemetry.log(
                telemetry.Action.RECORD_UNREADABLE,
                reason=problem,
                topic=r.topic,
                partition=r.partition,
                offset=r.offset,
            )
            tracker.skip(r.offset)
        return request

    def _serve(self, r: log.Record, request: records.Request, tracker: Tracker) -> None:
        self._context.clock.observe(r.timestamp, self._context.monotonic())
        delivery = Delivery(
            *(r.topic, r.partition, r.offset, request_time_bound(r), tracker, r.headers),
            size=len(r.value or b""),
            continues=continues(r),
            request_ms=broker_time(r),
            repeats=self._keys.earlier(Place(r.topic, r.partition, r.offset), request),
        )
        self._responses.deliver(request, delivery)

    async def _count_unread(self) -> None:
        """Count while partitions are paused; otherwise everything is read at once."""
        while True:
            for topic in self._topics:
                count = 0
                if self._membership.pauses:
                    try:
                        count = await self._membership.assignment.unread(self._offsets, topic)
                    except log.LogUnavailable:
                        continue
                self._unread[topic] = count
            await asyncio.sleep(COUNT_S)

    # ---- requests that were set aside ------------------------------------------------------------

    def _start_reread(self, tasks: asyncio.TaskGroup) -> None:
        """Start to read requests that have room now, unless a read is running."""
        if self._aside and not self._leaving and (self._reread is None or self._reread.done()):
            reread = self._aside.next_reread(self._room)
            if reread is not None:
                self._reread = tasks.create_task(self._run_reread(reread))

    async def _run_reread(self, reread: read_ahead.Reread | None) -> None:
        while reread is not None:
            self._reread_key = reread.key
            try:
                by_offset = await self._read(reread)
            except log.LogUnavailable:
                self._aside.put_back(reread.key, reread.requests)
                await asyncio.sleep(AGAIN_RETRY_S)
                return
            except log.HistoryLost:  # of the first; the next read checks the others
                self._report_lost(reread.key, reread.requests[0])
                self._aside.put_back(reread.key, reread.requests[1:])
                return
            finally:
                self._reread_key = None
            self._serve_reread(reread, by_offset)
            self._room = self._room_now()
            reread = None if self._leaving else self._aside.next_reread(self._room)

    async def _read(self, reread: read_ahead.Reread) -> dict[int, log.Record]:
        """The records by offset.

        Raises:
            LogUnavailable, HistoryLost
        """
        offsets = {place.offset for place in reread.requests}
        start, end = reread.requests[0].offset, reread.requests[-1].offset + 1
        by_offset: dict[int, log.Record] = {}
        reading = self._replays.read(reread.key.topic, reread.partition, start, end)
        async with contextlib.aclosing(reading) as batches:
            async for batch in batches:
                by_offset.update((r.offset, r) for r in batch if r.offset in offsets)
        return by_offset

    def _serve_reread(self, reread: read_ahead.Reread, by_offset: dict[int, log.Record]) -> None:
        for place in reread.requests:
            r = by_offset.get(place.offset)
            if not place.tracker.valid:
                continue  # revoked since; the present owner receives it
            if r is None:
                self._report_lost(reread.key, place)
                continue
            request = self._request_in(r, place.tracker)
            if request is not None:
                self._serve(r, request, place.tracker)

    def _report_lost(self, key: read_ahead.Key, place: read_ahead.Aside) -> None:
        telemetry.log(
            telemetry.Action.RECORD_UNREADABLE,
            reason="history lost",
            topic=key.topic,
            partition=place.partition,
            offset=place.offset,
        )
        place.tracker.finish(place.offset)


def read_request(r: log.Record, partitions: int) -> tuple[records.Request | None, str]:
    """The request in a record, or None and the reason. A record is skipped, so that it delays no
    other, if it is not a request or its gateway gave it up before the broker had it."""
    request = records.request_of(r.key, r.value)
    if request is None:
        reroute = records.reroute_of(r.key, r.value)
        if reroute is None:
            return None, "garbage"
        request = reroute.request  # the request is in the log already, so this copy is never late
    elif request.late(r.timestamp):
        return None, "late"
    try:
        address = ids.parse(request.rid, partitions)
    except ids.InvalidId:
        return None, "invalid_id"
    return (request, "") if address.partition == r.partition else (None, "wrong_partition")


def request_time_bound(r: log.Record) -> int:
    """The broker time of a request or shortly after it, by its record or by a reroute of it."""
    reroute = _reroute(r)
    if reroute is None:
        return r.timestamp
    return min(r.timestamp, reroute.asked_ms or reroute.request.append_by or r.timestamp)


def broker_time(r: log.Record) -> int:
    """The broker time of a request, by its record or by a reroute of it; 0 where a reroute does not
    have it."""
    reroute = _reroute(r)
    return r.timestamp if reroute is None else reroute.asked_ms


def continues(r: log.Record) -> bool:
    """Whether it asks for the continuation of another model's text (log rule §25)."""
    reroute = _reroute(r)
    return reroute is not None and reroute.continues


def _reroute(r: log.Record) -> records.Reroute | None:
    return records.reroute_of(r.key, r.value) if b'"REROUTE"' in (r.value or b"")[:64] else None
