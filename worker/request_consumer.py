"""Intake: membership in the pool's group, one tracker per assigned partition, and one `Serving` per
response taken.

- What does not fit into the engine stays in Kafka: partitions are paused, and polled all the same.
- A rebalance revokes everything: trackers die, generations run on (log rule P5), a redelivered
  request joins the serving that is under way.
- Only `Tracker.due` says what is committed.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass, field

from tailrace import log, telemetry
from tailrace.protocol import ids, records, topics
from worker import commit_tracker, serving
from worker.attempt import Stop

COMMIT_S = 1.0
WATCH_S = 15.0
# without a record although there are some: the consumer is stuck (aiokafka has several such
# defects) and is replaced
QUIET_S = 30.0
POLL_MS = 50
MAX_IN_FLIGHT_SPAN = 1_000  # of a partition; above it nothing more is taken from it
REVOKE_COMMIT_S = 2.0
RETRY_S = 0.5
# pause before a serving that failed by a defect of ours is tried again; doubled up to a minute
CRASHED_S = 1.0

TopicPartition = tuple[str, int]


@dataclass(slots=True)
class Assigned:
    """One assigned partition of a request topic.

    Attributes:
        tracker: its offsets; dies with the assignment.
        opened: the token partition is followed from the right place.
        early: records taken before that.
    """

    tracker: commit_tracker.Tracker = field(default_factory=commit_tracker.Tracker)
    opened: bool = False
    early: list[log.Record] = field(default_factory=list)


class RequestConsumer:
    """Takes requests while there is room. `run` joins the group and polls; the others are called by
    the composition root.

    Attributes:
        skipped: records that were no requests, by reason.
        outcomes: finished servings, by outcome.
        _assigned: what the group gave us; replaced as a whole at a rebalance.
        _servings: responses under way here, by id, with their tasks.
        _paused: what the consumer was told to pause.
        _stopping: nothing more is taken.
        _heard: when a record last came, or could not come because something was paused.
        _left: the group was left, or is being left.
    """

    def __init__(
        self,
        bootstrap: str,
        known_offsets: log.Offsets,
        context: serving.WorkerContext,
        tasks: asyncio.TaskGroup,
        *,
        pool: str,
        session_timeout_ms: int,
        partitions: int,
    ) -> None:
        self._group = topics.group(pool)
        self._topics = [topics.requests(pool, priority) for priority in topics.CLASSES]
        self._offsets = known_offsets
        self._worker = context
        self._tasks = tasks
        self._partitions = partitions
        self._member = log.GroupConsumer(
            bootstrap,
            self._group,
            self._topics,
            session_timeout_ms=session_timeout_ms,
            assigned=self._on_assigned,
            revoked=self._on_revoked,
            client_id=context.name,
        )
        self._assigned: dict[TopicPartition, Assigned] = {}
        self._servings: dict[str, tuple[serving.Serving, asyncio.Task[None]]] = {}
        self._paused: set[TopicPartition] = set()
        self._stopping = False
        self._left = False
        self._heard = time.monotonic()
        self.skipped: dict[str, int] = {}
        self.outcomes: dict[serving.Outcome, int] = {}

    # ---- what others ask -------------------------------------------------------------------------

    @property
    def partitions(self) -> list[int]:
        """Partition numbers owned now."""
        return sorted({p for _, p in self._assigned})

    @property
    def under_way(self) -> int:
        """Responses under way here, those that others own included."""
        return len(self._servings)

    @property
    def wanting(self) -> int:
        """Responses that have or want an engine slot."""
        return sum(s.wanting for s, _ in self._servings.values())

    # ---- life ------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Join, then poll and commit until we leave; while draining with everything paused."""
        await self._member.start()
        async with asyncio.TaskGroup() as tasks:
            background = [tasks.create_task(self._commit_often()), tasks.create_task(self._watch())]
            while not self._left:
                await self._poll()
            for task in background:
                task.cancel()

    def stop_taking(self) -> None:
        """First step of a drain."""
        self._stopping = True

    async def finish(self, deadline_s: float) -> None:
        """Let generations end."""
        await self._wait(deadline_s)

    async def leave(self) -> None:
        """Commit what is finished and leave the group. What runs here runs on (P5), and others take
        the partitions over meanwhile."""
        self._left = True
        with contextlib.suppress(log.LogUnavailable, TimeoutError):
            async with asyncio.timeout(REVOKE_COMMIT_S):
                await self._commit()
        await self._member.stop()
        for a in self._assigned.values():
            a.tracker.valid = False
        self._assigned = {}

    async def hand_over(self, after_s: float) -> None:
        """After `leave`: what has not ended by then stops at a token boundary and is yielded. By
        then its request is with whoever goes on, who need not wait for a rebalance."""
        await self._wait(after_s)
        for one, _ in list(self._servings.values()):
            one.interrupt(Stop.DRAIN)
        await self._wait(2.0)
        for _, task in list(self._servings.values()):
            task.cancel()

    async def _wait(self, seconds: float) -> None:
        tasks = [task for _, task in self._servings.values()]
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)

    # ---- taking ----------------------------------------------------------------------------------

    async def _poll(self) -> None:
        room = self._room()
        self._pause(room)
        try:
            taken = await self._member.poll(max_records=max(1, room), timeout_ms=POLL_MS)
        except log.LogUnavailable:
            await asyncio.sleep(RETRY_S)
            return
        if taken or self._paused:
            self._heard = time.monotonic()
        for r in sorted(taken, key=lambda r: self._topics.index(r.topic)):  # interactive first
            assigned = self._assigned.get((r.topic, r.partition))
            if assigned is None:
                continue  # revoked since: it will be delivered to whoever owns it
            if assigned.opened:
                self._accept(r, assigned)
            else:
                assigned.early.append(r)

    def _room(self) -> int:
        capacity = self._worker.engine_slots.capacity
        early = sum(len(a.early) for a in self._assigned.values())
        return capacity + max(2, capacity // 4) - self.wanting - early

    def _pause(self, room: int) -> None:
        """Pause what must not be taken from now; batch waits while anything interactive waits."""
        full = room <= 0 or self._stopping
        busy = (
            self._worker.engine_slots.queued > 0
            or self.wanting >= self._worker.engine_slots.capacity
        )
        paused = {
            tp
            for tp, a in self._assigned.items()
            if full
            or (busy and tp[0] != self._topics[0])
            or a.tracker.in_flight_span >= MAX_IN_FLIGHT_SPAN
            or a.tracker.in_flight >= MAX_IN_FLIGHT_SPAN
        }
        try:
            if more := paused - self._paused:
                self._member.pause(more)
            if fewer := (self._paused & self._assigned.keys()) - paused:
                self._member.resume(fewer)
        except log.LogUnavailable:
            return
        self._paused = paused

    def _accept(self, r: log.Record, assigned: Assigned) -> None:
        request, why = self._read(r)
        if request is None:
            self.skipped[why] = self.skipped.get(why, 0) + 1
            telemetry.log(
                telemetry.Action.RECORD_UNREADABLE,
                reason=why,
                topic=r.topic,
                partition=r.partition,
                offset=r.offset,
            )
            assigned.tracker.skip(r.offset)
            return
        assigned.tracker.begin(r.offset)
        delivery = serving.Delivery(
            r.topic, r.partition, r.offset, r.timestamp, assigned.tracker, r.headers
        )
        self._worker.clock.observe(r.timestamp, time.monotonic())
        under_way = self._servings.get(request.rid)
        if under_way is not None and under_way[0].partition == r.partition:
            under_way[0].join(delivery)
            return
        one = serving.Serving(self._worker, request, delivery)
        self._servings[request.rid] = (
            one,
            self._tasks.create_task(self._serve(one), name=request.rid),
        )

    def _read(self, r: log.Record) -> tuple[records.Request | None, str]:
        """The request, or why it is none. A bad record must stall nobody."""
        request = records.decode_request(r.value)
        if request is None:
            return None, "garbage"
        try:
            address = ids.parse(request.rid, self._partitions)
        except ids.InvalidId:
            return None, "invalid_id"
        return (request, "") if address.partition == r.partition else (None, "wrong_partition")

    async def _serve(self, one: serving.Serving) -> None:
        pause = CRASHED_S
        try:
            while True:
                try:
                    outcome = await one.run()
                except log.LogChanged:
                    raise  # the worker ends
                except log.LogUnavailable:
                    await asyncio.sleep(RETRY_S)
                except Exception as error:
                    # A defect of ours: others are not disturbed, its offset stays unfinished, and
                    # it is tried again ever more rarely.
                    telemetry.log(telemetry.Action.TASK_FAILED, response=one.rid, exc_info=error)
                    if self._worker.leaving:
                        return
                    await asyncio.sleep(pause)
                    pause = min(60.0, pause * 2)
                else:
                    self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1
                    return
        finally:
            self._servings.pop(one.rid, None)

    # ---- rebalances ------------------------------------------------------------------------------

    async def _on_assigned(self, assigned: set[TopicPartition]) -> None:
        for a in (
            self._assigned.values()
        ):  # a revoke always comes first; should it ever not, no tracker may outlive its assignment
            a.tracker.valid = False
        self._assigned = {tp: Assigned() for tp in assigned}
        self._paused = set()
        telemetry.log(telemetry.Action.PARTITIONS_ASSIGNED, partitions=self.partitions)
        if assigned:
            self._tasks.create_task(self._open(dict(self._assigned)), name="open")

    async def _on_revoked(self, revoked: set[TopicPartition]) -> None:
        if not revoked:
            return
        with contextlib.suppress(log.LogUnavailable, TimeoutError):
            async with asyncio.timeout(REVOKE_COMMIT_S):
                await self._commit()
        for a in self._assigned.values():
            a.tracker.valid = False
        self._assigned = {}
        telemetry.log(
            telemetry.Action.PARTITIONS_REVOKED,
            partitions=sorted({p for _, p in revoked}),
            responses=len(self._servings),
        )
        self._leave_idle()

    async def _open(self, opening: dict[TopicPartition, Assigned]) -> None:
        """Follow the token partitions from where a successor must fold, then take what came early.
        Retried until done or revoked."""
        while any(self._assigned.get(tp) is a for tp, a in opening.items()):
            try:
                starts = await self._starts(opening)
                # After the assignment: whatever a former owner wrote before it lost the partition
                # lies below these ends, or is seen later.
                ends = await self._offsets.ends(topics.TOKENS, starts)
            except log.LogUnavailable:
                await asyncio.sleep(RETRY_S)
                continue
            self._opened(opening, starts, ends)
            return

    def _opened(
        self, opening: dict[TopicPartition, Assigned], starts: dict[int, int], ends: dict[int, int]
    ) -> None:
        for tp, assigned in opening.items():
            if self._assigned.get(tp) is not assigned:
                continue
            self._worker.tail.follow(tp[1], min(starts[tp[1]], ends[tp[1]]), ends[tp[1]])
            assigned.opened = True
            for r in assigned.early:
                self._accept(r, assigned)
            assigned.early.clear()

    async def _starts(self, opening: dict[TopicPartition, Assigned]) -> dict[int, int]:
        """Where to fold each token partition from: the lowest that a commit of any class names; the
        beginning where requests exist and no commit."""
        partitions = sorted({p for _, p in opening})
        committed = await self._offsets.committed(self._group)
        beginnings = await self._offsets.beginnings(topics.TOKENS, partitions)
        request_ends = {
            topic: await self._offsets.ends(topic, partitions) for topic in self._topics
        }
        token_ends = await self._offsets.ends(topics.TOKENS, partitions)
        starts = {}
        for p in partitions:
            wanted = []
            for topic in self._topics:
                offset, metadata = committed.get((topic, p), (0, ""))
                if (assigned := opening.get((topic, p))) is not None and (topic, p) in committed:
                    assigned.tracker.start = offset
                if request_ends[topic].get(p, 0) > offset or metadata:
                    named = commit_tracker.token_offset(metadata)
                    wanted.append(0 if named is None else named)
            starts[p] = max(beginnings.get(p, 0), min(wanted, default=token_ends[p]))
        return starts

    # ---- committing ------------------------------------------------------------------------------

    async def _commit_often(self) -> None:
        while True:
            await asyncio.sleep(COMMIT_S)
            with contextlib.suppress(log.LogUnavailable):  # the next one says the same and more
                await self._commit()
            self._leave_idle()

    async def _watch(self) -> None:
        """Replace a consumer that gives nothing although the log has something."""
        while True:
            await asyncio.sleep(WATCH_S)
            if time.monotonic() - self._heard < QUIET_S or not await self._lagging():
                continue
            telemetry.log(telemetry.Action.CONSUMER_REPLACED, partitions=self.partitions)
            self._member.rejoin()
            self._heard = time.monotonic()

    async def _lagging(self) -> bool:
        try:
            for topic in self._topics:
                mine = {p: a.tracker for (t, p), a in self._assigned.items() if t == topic}
                beginnings, ends = (
                    await self._offsets.beginnings(topic, mine),
                    await self._offsets.ends(topic, mine),
                )
                if any(
                    ends[p] > max(tracker.last + 1, tracker.start, beginnings[p])
                    for p, tracker in mine.items()
                ):
                    return True
        except log.LogUnavailable:
            pass  # then it is not the consumer's fault
        return False

    async def _commit(self) -> None:
        due: dict[TopicPartition, tuple[commit_tracker.Tracker, commit_tracker.Commit]] = {}
        for tp, a in self._assigned.items():
            if (
                a.opened
                and (commit := a.tracker.next_commit(self._worker.tail.position(tp[1]))) is not None
            ):
                due[tp] = a.tracker, commit
        if due and await self._member.commit(
            {tp: (commit.offset, commit.metadata) for tp, (_, commit) in due.items()}
        ):
            for tracker, commit in due.values():
                tracker.acknowledged(commit)

    def _leave_idle(self) -> None:
        """A revoked partition stays in the tail until the last response served here is over
        (P5)."""
        needed = set(self.partitions) | {s.partition for s, _ in self._servings.values()}
        for partition in self._worker.tail.followed:
            if partition not in needed:
                self._worker.tail.leave(partition)
