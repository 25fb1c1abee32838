"""Takes requests from the log, further than the engine has room for (`worker.queue.read_ahead`).

What cannot be taken stays in Kafka: its partitions are paused. Paused partitions are polled all the
same, because polling keeps the membership.
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
from worker.serving.served_response import asked
from worker.serving.servings import Servings
from worker.serving.worker_context import WorkerContext

# Of a partition; above it nothing more is taken from it. It bounds what a successor reads again.
MAX_IN_FLIGHT_SPAN = 10_000
POLL_RECORDS = 200
AGAIN_RETRY_S = 0.5  # pause after requests that were set aside could not be read
COUNT_S = 1.0  # between counts of what was not read
# Requests that start sooner are in memory, so that what is offered to other workers does not start
# here before they have it.
STEAL_AHEAD_S = 3.0


class RequestConsumer:
    """Reads the pool's request topics and has each request served.

    Attributes:
        _room: what may be kept in memory, as of the last poll.
        _aside: requests that were read and not kept.
        _again: reads requests that were set aside; None or done while none is due.
        _being_read: whose requests are being read again; later ones of the same wait.
        _assignment: the assignment to which those that are set aside may belong.
        _unread: requests that were not read, by topic, as of the last count.
        _keys: which requests repeat the idempotency key of an earlier one.
        _left: the group was left, or is being left; no more requests are taken.
        starts_per_s: gives how many requests start in a second while others wait. 0 where none is
            offered to other workers.
    """

    def __init__(
        self,
        group_consumer: MakeGroupConsumer,
        offsets: interfaces.OffsetQueries,
        replays: interfaces.RangeReader,
        context: WorkerContext,
        servings: Servings,
        tasks: asyncio.TaskGroup,
        *,
        pool: str,
        partitions: int,
    ) -> None:
        self._context = context
        self._servings = servings
        self._replays = replays
        self._offsets = offsets
        self._topics = [topics.requests(pool, priority) for priority in topics.CLASSES]
        self._partition_count = partitions
        self._membership = Membership(
            group_consumer, offsets, context, servings, tasks, self._accept, pool=pool
        )
        self.starts_per_s: Callable[[], float] = lambda: 0.0
        self._room = self._room_now()
        self._aside = read_ahead.SetAside()
        self._again: asyncio.Task[None] | None = None
        self._being_read: read_ahead.Key | None = None
        self._assignment: Assignment | None = None
        self._unread = dict.fromkeys(self._topics, 0)
        self._keys = RepeatedKeys()
        self._left = False

    def unserved(self, rank: int) -> read_ahead.Unserved:
        """The requests of a class that lie in the assigned partitions and were not taken."""
        topic = self._topics[rank]
        return read_ahead.Unserved(self._aside.asked(topic), self._unread[topic])

    def set_aside(self, rank: int) -> dict[str, Iterator[tuple[str, float]]]:
        """Ids of the requests of a class that were set aside and what they ask for, by
        principal."""
        return self._aside.waiting(self._topics[rank]) if 0 <= rank < len(self._topics) else {}

    @property
    def idle(self) -> bool:
        """Whether it takes requests, and everything that was assigned was read and is served."""
        return not (self._left or self._aside or any(self._unread.values()))

    @property
    def answers(self) -> bool:
        """Whether the group's member gets what its partitions hold, as far as is known."""
        return self._membership.answers

    @property
    def partitions(self) -> list[int]:
        """Partition numbers whose requests are taken here now."""
        return [] if self._left else self._membership.assignment.numbers

    async def run(self) -> None:
        """Join the group and poll until `leave`."""
        await self._membership.join()
        async with asyncio.TaskGroup() as tasks:
            maintaining = tasks.create_task(self._membership.maintain())
            counting = tasks.create_task(self._count_unread())
            while not self._left:
                await self._poll()
                self._read_again(tasks)
            maintaining.cancel()
            counting.cancel()
            if self._again is not None:
                self._again.cancel()

    async def leave(self) -> None:
        """Take no more requests, commit what is finished, and leave the group. What runs here goes
        on; the partitions' next owners wait for it (log rule P5)."""
        self._left = True
        await self._membership.leave()

    async def _poll(self) -> None:
        self._membership.pause(self._to_pause())
        polled = await self._membership.poll(POLL_RECORDS)
        if self._left:
            return  # not begun, so not committed: the present owner receives it
        self._room = self._room_now()
        if self._assignment is not self._membership.assignment:
            self._assignment = self._membership.assignment
            self._aside.drop_revoked()
        for r in sorted(polled, key=lambda r: self._topics.index(r.topic)):  # interactive first
            assigned = self._membership.assignment.get((r.topic, r.partition))
            if assigned is None:
                continue  # revoked since; the present owner receives it
            if assigned.opened:
                self._accept(r, assigned)
            else:
                assigned.early.append(r)
        telemetry.REQUESTS_SET_ASIDE.set(len(self._aside))

    def _room_now(self) -> read_ahead.Room:
        """Of one principal and class as much again waits as the engine can run at once, or what it
        starts in STEAL_AHEAD_S."""
        capacity = self._context.engine_slots.capacity
        each = capacity + max(capacity, math.ceil(STEAL_AHEAD_S * self.starts_per_s()))
        return read_ahead.Room.of(each, self._servings.kept)

    def _to_pause(self) -> set[interfaces.TopicPartition]:
        """Partitions to take nothing from now."""
        full = len(self._aside) >= read_ahead.MAX_ASIDE
        batch_full = len(self._aside) >= read_ahead.MAX_BATCH_ASIDE
        return {
            tp
            for tp, assigned in self._membership.assignment
            if full
            or (batch_full and tp[0] != self._topics[0])
            or assigned.early
            or assigned.tracker.in_flight_span >= MAX_IN_FLIGHT_SPAN
            or assigned.tracker.in_flight >= MAX_IN_FLIGHT_SPAN
        }

    def _accept(self, r: log.Record, assigned: AssignedPartition) -> None:
        """Have the request served, or set it aside."""
        request = self._request_in(r, assigned.tracker)
        if request is None:
            return
        if _reroute(r) is None:  # the key of a reroute counts where its request lies
            self._keys.note(Place(r.topic, r.partition, r.offset), request)
        assigned.tracker.begin(r.offset)
        key, size = read_ahead.Key(r.topic, request.owner.key), len(r.value or b"")
        if not self._servings.serves(request.rid):
            behind = key in self._aside or key == self._being_read
            if behind or not self._room.admits(key, size):
                place = read_ahead.Aside(
                    *(request.rid, r.partition, r.offset, size),
                    *(asked(request), assigned.tracker),
                )
                self._aside.add(key, place)
                return
            self._room.take(key, size)
        self._serve(r, request, assigned.tracker)

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
            *(r.topic, r.partition, r.offset, asked_at(r), tracker, r.headers),
            size=len(r.value or b""),
            continues=continues(r),
            asked_ms=broker_time(r),
            repeats=self._keys.ahead(Place(r.topic, r.partition, r.offset), request),
        )
        self._servings.deliver(request, delivery)

    async def _count_unread(self) -> None:
        """Count while something is paused; everything else is read at once."""
        while True:
            for topic in self._topics:
                counted = 0
                if self._membership.pauses:
                    try:
                        counted = await self._membership.assignment.unread(self._offsets, topic)
                    except log.LogUnavailable:
                        continue
                self._unread[topic] = counted
            await asyncio.sleep(COUNT_S)

    # ---- what was set aside ----------------------------------------------------------------------

    def _read_again(self, tasks: asyncio.TaskGroup) -> None:
        """Start to read what is due, unless that is under way."""
        if self._aside and not self._left and (self._again is None or self._again.done()):
            due = self._aside.due(self._room)
            if due is not None:
                self._again = tasks.create_task(self._serve_again(due))

    async def _serve_again(self, due: read_ahead.Due | None) -> None:
        while due is not None:
            self._being_read = due.key
            try:
                found = await self._read(due)
            except log.LogUnavailable:
                self._aside.put_back(due.key, due.requests)
                await asyncio.sleep(AGAIN_RETRY_S)
                return
            except log.HistoryLost:  # of the first; of the others, the next read will tell
                self._lost(due.key, due.requests[0])
                self._aside.put_back(due.key, due.requests[1:])
                return
            finally:
                self._being_read = None
            self._take(due, found)
            self._room = self._room_now()
            due = None if self._left else self._aside.due(self._room)

    async def _read(self, due: read_ahead.Due) -> dict[int, log.Record]:
        """The records by offset.

        Raises:
            LogUnavailable, HistoryLost
        """
        wanted = {place.offset for place in due.requests}
        start, end = due.requests[0].offset, due.requests[-1].offset + 1
        found: dict[int, log.Record] = {}
        reading = self._replays.read(due.key.topic, due.partition, start, end)
        async with contextlib.aclosing(reading) as batches:
            async for batch in batches:
                found.update((r.offset, r) for r in batch if r.offset in wanted)
        return found

    def _take(self, due: read_ahead.Due, found: dict[int, log.Record]) -> None:
        for place in due.requests:
            r = found.get(place.offset)
            if not place.tracker.valid:
                continue  # revoked since; the present owner receives it
            if r is None:
                self._lost(due.key, place)
                continue
            request = self._request_in(r, place.tracker)
            if request is not None:
                self._serve(r, request, place.tracker)

    def _lost(self, key: read_ahead.Key, place: read_ahead.Aside) -> None:
        telemetry.log(
            telemetry.Action.RECORD_UNREADABLE,
            reason="history lost",
            topic=key.topic,
            partition=place.partition,
            offset=place.offset,
        )
        place.tracker.finish(place.offset)


def read_request(r: log.Record, partitions: int) -> tuple[records.Request | None, str]:
    """The request in a record, or None and the reason why it is none. A record that is no request,
    or that its gateway gave up before the broker had it, is skipped, so that it stalls no other."""
    request = records.request_of(r.key, r.value)
    if request is None:
        reroute = records.reroute_of(r.key, r.value)
        if reroute is None:
            return None, "garbage"
        request = reroute.request  # it is in the log already, so this copy is never late
    elif request.late(r.timestamp):
        return None, "late"
    try:
        address = ids.parse(request.rid, partitions)
    except ids.InvalidId:
        return None, "invalid_id"
    return (request, "") if address.partition == r.partition else (None, "wrong_partition")


def asked_at(r: log.Record) -> int:
    """The broker time of a request, by its record or by a reroute of it."""
    reroute = _reroute(r)
    if reroute is None:
        return r.timestamp
    return min(r.timestamp, reroute.asked_ms or reroute.request.append_by or r.timestamp)


def broker_time(r: log.Record) -> int:
    """The broker time of a request, by its record or by a reroute of it; 0 where that one does not
    say it."""
    reroute = _reroute(r)
    return r.timestamp if reroute is None else reroute.asked_ms


def continues(r: log.Record) -> bool:
    """Whether it asks for the continuation of another model's text (log rule §25)."""
    reroute = _reroute(r)
    return reroute is not None and reroute.continues


def _reroute(r: log.Record) -> records.Reroute | None:
    return records.reroute_of(r.key, r.value) if b'"REROUTE"' in (r.value or b"")[:64] else None
