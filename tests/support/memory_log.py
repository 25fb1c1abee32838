"""A log in memory, held to the same contract as Kafka (`tests/support/log_contract.py`).

`MemoryLog` makes the clients that production code takes as arguments (`tailrace.log.interfaces`)
and has a switch for each fault. All of it runs on one event loop; nothing sleeps unless a reader
waits for records.
"""

from __future__ import annotations

import asyncio
import bisect
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tailrace import log
from tailrace.log import interfaces
from tailrace.protocol import ids, log_words, records, topics

PARTITIONS = 8
ANSWER_DEADLINE_S = 0.2
BATCH_RECORDS = 500

TopicPartition = tuple[str, int]


@dataclass(slots=True)
class _Partition:
    """One partition.

    Attributes:
        begin: oldest offset held.
        end: next offset to be written.
        held: records in offset order; offsets may have holes.
        visible: tail readers return nothing from this offset on; None when they see everything.
    """

    begin: int = 0
    end: int = 0
    held: list[log_words.Record] = field(default_factory=list)
    visible: int | None = None

    def from_offset(self, start: int, end: int, limit: int) -> list[log_words.Record]:
        """Up to `limit` records of [start, end)."""
        first = bisect.bisect_left(self.held, start, key=lambda r: r.offset)
        found = self.held[first : first + limit]
        while found and found[-1].offset >= end:
            found.pop()
        return found


@dataclass(slots=True)
class _Failure:
    """What happens to one append: its error, and whether the record is in the log all the same."""

    error: Exception
    landed: bool


class MemoryLog:
    """A broker with its topics.

    Attributes:
        layout: which log this is; `replace` changes it.
        away: no client gets an answer while it is set; use `go_away` and `come_back`.
        unheard: topics of which tail readers and members get nothing and know it; use `deafen`.
        questions_fail: questions about offsets get no answer; use `unanswered`.
        appended: every record that landed, in the order of arrival.
        reads: (topic, partition, start, end) of every replay that got a connection.
        layout_reads: how often the layout was asked for.
        replays_wanted: replays that are open now, those that wait for a connection included.
        most_replays_wanted: the largest value of `replays_wanted` so far.
        committed_offsets: (offset, metadata) by group and partition.
    """

    def __init__(
        self,
        incarnation: str = "one",
        partitions: int = PARTITIONS,
        *,
        pools: Sequence[str] = ("default",),
        clock: Callable[[], float] = time.time,
        answer_deadline_s: float = ANSWER_DEADLINE_S,
    ) -> None:
        self.layout = log.Layout(incarnation, ids.incarnation_tag(incarnation), partitions)
        self.away = self.questions_fail = False
        self.unheard: set[str] = set()
        self.appended: list[log_words.Record] = []
        self.reads: list[tuple[str, int, int, int]] = []
        self.layout_reads = 0
        self.replays_wanted = self.most_replays_wanted = 0
        self.committed_offsets: dict[str, dict[TopicPartition, tuple[int, str]]] = {}
        self.clock = clock
        self.answer_deadline_s = answer_deadline_s
        self._topics: dict[str, list[_Partition]] = {}
        self._changed = asyncio.Event()
        self._failures: list[_Failure] = []
        self._groups: dict[str, list[_Member]] = {}
        self._writers: list[_Writer] = []
        self._replays_open = asyncio.Event()
        self._replays_open.set()
        self._acknowledging = asyncio.Event()
        self._acknowledging.set()
        for row in topics.table(list(pools)):
            self.create_topic(row.name, row.partitions or partitions)

    # ---- clients ---------------------------------------------------------------------------------

    def writer(self, *, deadline_s: float = 15.0) -> interfaces.RecordWriter:
        """A writer. It appends whether or not its `run` runs."""
        made = _Writer(self, deadline_s)
        self._writers.append(made)
        return made

    def reader(self, topic: str, *, wait_ms: int = 50) -> interfaces.TailReader:
        """A tail reader of `topic`."""
        return _Reader(self, topic, wait_ms / 1000)

    def replays(self, size: int = 2) -> interfaces.RangeReader:
        """Replays over `size` connections."""
        return _Replays(self, size)

    def offsets(self) -> interfaces.TimedOffsetQueries:
        """Offset queries."""
        return _Offsets(self)

    def group_consumer(
        self,
        group: str,
        names: Sequence[str],
        *,
        assigned: interfaces.RebalanceCallback,
        revoked: interfaces.RebalanceCallback,
    ) -> interfaces.GroupMember:
        """A member of `group` on the topics `names`."""
        return _Member(self, group, names, assigned, revoked)

    async def read_layout(self) -> log.Layout:
        """Which log this is (`interfaces.LayoutQuery`)."""
        self.layout_reads += 1
        self.require_answer()
        return self.layout

    # ---- content ---------------------------------------------------------------------------------

    def create_topic(self, name: str, partitions: int | None = None) -> str:
        """Create a topic; returns its name."""
        count = self.layout.partitions if partitions is None else partitions
        self._topics[name] = [_Partition() for _ in range(count)]
        return name

    def put(
        self,
        topic: str,
        partition: int,
        key: bytes | None,
        value: bytes | None,
        headers: log_words.Headers = (),
    ) -> log_words.Appended:
        """Append one record at once, of any kind, past all faults."""
        at = self.partition(topic, partition)
        now = int(self.clock() * 1000)
        record = log_words.Record(topic, partition, at.end, now, key, value, tuple(headers))
        at.held.append(record)
        at.end += 1
        self.appended.append(record)
        self.notify()
        return log_words.Appended(record.offset, now)

    def put_record(self, topic: str, partition: int, record: records.Record, key: str) -> int:
        """Append one record of the protocol; returns its offset."""
        return self.put(topic, partition, key.encode(), records.encode(record)).offset

    def records(self, topic: str, partition: int) -> list[log_words.Record]:
        """Everything that the partition holds."""
        return list(self.partition(topic, partition).held)

    def skip_to(self, topic: str, partition: int, offset: int) -> None:
        """Leave a hole up to `offset`, as compaction and control records do."""
        self.partition(topic, partition).end = offset
        self.notify()

    # ---- faults ----------------------------------------------------------------------------------

    def go_away(self) -> None:
        """The broker is away: questions and reads fail, appends wait for their deadline."""
        self.away = True

    def come_back(self) -> None:
        """The broker is there again."""
        self.away = False
        for writer in self._writers:
            writer.flush()
        self.notify()

    def fail_next_append(self, error: Exception | None = None, *, landed: bool = False) -> None:
        """The next append that is not failed already fails. `landed`: it is in the log anyway."""
        self._failures.append(
            _Failure(error or log_words.AppendFailed("the broker said no"), landed)
        )

    def unanswered(self) -> Callable[[], None]:
        """Questions about offsets fail; returns what ends that. Everything else goes on."""
        self.questions_fail = True

        def answered() -> None:
            self.questions_fail = False

        return answered

    def deafen(self, topic: str) -> Callable[[], None]:
        """Readers of a topic get nothing and know it; returns what ends that. Other clients are
        answered."""
        self.unheard.add(topic)

        def heard() -> None:
            self.unheard.discard(topic)
            self.notify()

        return heard

    def hold_acknowledgements(self) -> None:
        """Records land, and their appends stay unanswered."""
        self._acknowledging.clear()

    def release_acknowledgements(self) -> None:
        """Answer the appends that were held."""
        self._acknowledging.set()
        for writer in self._writers:
            writer.acknowledge()

    def hold_replays(self) -> None:
        """Replays hold their connection and wait (a slow disk), and `start` does not return."""
        self._replays_open.clear()

    def release_replays(self) -> None:
        """Replays go on."""
        self._replays_open.set()

    def lag(self, topic: str, partition: int, offset: int) -> None:
        """Tail readers return nothing from `offset` on."""
        self.partition(topic, partition).visible = offset

    def catch_up(self, topic: str, partition: int) -> None:
        """Tail readers see everything again."""
        self.partition(topic, partition).visible = None
        self.notify()

    def delete_below(self, topic: str, partition: int, offset: int) -> None:
        """Retention: nothing below `offset` is held any more."""
        at = self.partition(topic, partition)
        at.begin = max(at.begin, offset)
        at.held = [r for r in at.held if r.offset >= at.begin]
        self.notify()

    def roll_back(self, topic: str, partition: int, end: int) -> None:
        """An older disk: nothing from `end` on is held, and its offsets are given again."""
        at = self.partition(topic, partition)
        at.end = min(at.end, end)
        at.held = [r for r in at.held if r.offset < at.end]
        self.notify()

    def replace(self, incarnation: str) -> None:
        """Another log, empty, under the same address."""
        self.layout = log.Layout(
            incarnation, ids.incarnation_tag(incarnation), self.layout.partitions
        )
        for name, parts in self._topics.items():
            self._topics[name] = [_Partition() for _ in parts]
        self.committed_offsets.clear()
        self.notify()

    # ---- for the clients -------------------------------------------------------------------------

    def partition(self, topic: str, partition: int) -> _Partition:
        """Raises LogUnavailable for one that does not exist, as a broker without it does."""
        parts = self._topics.get(topic, ())
        if not 0 <= partition < len(parts):
            raise log_words.LogUnavailable(f"{topic}[{partition}] does not exist")
        return parts[partition]

    def count(self, topic: str) -> int:
        """Number of partitions of a topic; 0 for an unknown one."""
        return len(self._topics.get(topic, ()))

    def require_answer(self) -> None:
        """Raises LogUnavailable while the broker is away."""
        if self.away:
            raise log_words.LogUnavailable("the broker is away")

    def next_failure(self) -> _Failure | None:
        """What the next append is to fail with."""
        return self._failures.pop(0) if self._failures else None

    @property
    def acknowledging(self) -> bool:
        """Whether appends are answered."""
        return self._acknowledging.is_set()

    async def replay_gate(self) -> None:
        """Returns when replays may go on."""
        await self._replays_open.wait()

    def notify(self) -> None:
        """Wake everything that waits for a change."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def change(self, within_s: float) -> None:
        """Returns at the next change, or when the time ran out."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._changed.wait()

    async def join(self, member: _Member) -> None:
        """Add a member and share the partitions again."""
        self._groups.setdefault(member.group, []).append(member)
        await self._rebalance(member.group)

    async def leave(self, member: _Member) -> None:
        """Take a member out and share the partitions again."""
        members = self._groups.get(member.group, [])
        if member in members:
            members.remove(member)
            member.drop()
            await self._rebalance(member.group)

    async def _rebalance(self, group: str) -> None:
        """Eager, with range assignment: all is revoked, then equal numbers of all topics go to one
        member."""
        members = list(self._groups[group])
        for member in members:
            await member.tell_revoked()
        for index, member in enumerate(members):
            share = {
                (name, p)
                for name in member.names
                for p in range(self.count(name))
                if p * len(members) // self.count(name) == index
            }
            await member.tell_assigned(share)
        self.notify()


class _Writer:
    """See `interfaces.RecordWriter`."""

    def __init__(self, broker: MemoryLog, deadline_s: float) -> None:
        self._broker = broker
        self._deadline_s = deadline_s
        self._queue: list[
            tuple[
                str,
                int,
                bytes,
                bytes | None,
                log_words.Headers,
                asyncio.Future[log_words.Appended],
            ]
        ] = []
        self._unacknowledged: list[
            tuple[asyncio.Future[log_words.Appended], log_words.Appended]
        ] = []
        self._stopping = False
        self.incarnation = 1

    @property
    def connected(self) -> bool:
        return not self._broker.away and not self._stopping

    @property
    def stalled(self) -> bool:
        return bool(self._unacknowledged) and not self._broker.acknowledging

    @property
    def backlog(self) -> int:
        waiting = [entry[-1] for entry in self._queue] + [done for done, _ in self._unacknowledged]
        return sum(not done.done() for done in waiting)

    def append(
        self,
        topic: str,
        partition: int,
        key: str,
        value: bytes | None,
        headers: log_words.Headers = (),
    ) -> asyncio.Future[log_words.Appended]:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[log_words.Appended] = loop.create_future()
        done.add_done_callback(lambda f: f.cancelled() or f.exception())
        size = len(key) * 4 + len(value or b"") + log_words.size_of(headers)
        if self._stopping:
            done.set_exception(log_words.NotAppended("the writer is stopping"))
        elif size > records.MAX_RECORD_BYTES - log.RECORD_OVERHEAD_BYTES:
            done.set_exception(log_words.TooLarge(f"a record of {size} bytes"))
        else:
            self._queue.append((topic, partition, key.encode(), value, headers, done))
            loop.call_soon(self.flush)
            expiry = loop.call_later(self._deadline_s, self._expire, done)
            done.add_done_callback(lambda _: expiry.cancel())
        return done

    def flush(self) -> None:
        """Hand everything that waits to the broker, in order."""
        while self._queue and not self._broker.away:
            topic, partition, key, value, headers, done = self._queue.pop(0)
            if done.done():
                continue
            failure = self._broker.next_failure()
            if failure is None and partition >= self._broker.count(topic):
                failure = _Failure(log_words.AppendFailed("no such partition"), landed=False)
            if failure is None or failure.landed:
                where = self._broker.put(topic, partition, key, value, headers)
                if failure is None:
                    self._unacknowledged.append((done, where))
                    continue
            assert failure is not None
            done.set_exception(failure.error)
            if not isinstance(failure.error, log_words.TooLarge):
                self._replace(str(failure.error))
        self.acknowledge()

    def acknowledge(self) -> None:
        """Answer what landed, unless acknowledgements are held."""
        while self._unacknowledged and self._broker.acknowledging:
            done, where = self._unacknowledged.pop(0)
            if not done.done():
                done.set_result(where)

    async def run(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self._stopping = True
            self._fail_all("the writer stopped")

    async def stop(self, deadline_s: float = 5.0) -> None:
        self._stopping = True
        give_up = asyncio.get_running_loop().time() + deadline_s
        while self.backlog and asyncio.get_running_loop().time() < give_up:  # noqa: ASYNC110
            await asyncio.sleep(0)
        self._fail_all("the writer stopped")

    def _replace(self, reason: str) -> None:
        """A failed append makes its producer worthless, with everything in flight."""
        self.incarnation += 1
        self._fail_all(reason)

    def _fail_all(self, reason: str) -> None:
        never_sent = [entry[-1] for entry in self._queue]
        sent = [done for done, _ in self._unacknowledged]
        self._queue.clear()
        self._unacknowledged.clear()
        for waiting, error in ((never_sent, log_words.NotAppended), (sent, log_words.AppendFailed)):
            for done in waiting:
                if not done.done():
                    done.set_exception(error(reason))

    def _expire(self, done: asyncio.Future[log_words.Appended]) -> None:
        if done.done():
            return
        if any(entry[-1] is done for entry in self._queue):
            done.set_exception(log_words.NotAppended("not sent within the deadline"))
        else:
            self._replace("deadline")


class _Reader:
    """See `interfaces.TailReader`."""

    def __init__(self, broker: MemoryLog, topic: str, wait_s: float) -> None:
        self._broker = broker
        self._topic = topic
        self._wait_s = wait_s
        self.positions: dict[int, int] = {}

    @property
    def answers(self) -> bool:
        return self._topic not in self._broker.unheard

    def follow(self, partition: int, offset: int) -> None:
        self.positions[partition] = offset
        self._broker.notify()

    def leave(self, partition: int) -> None:
        self.positions.pop(partition, None)

    def follows(self, partition: int) -> bool:
        return partition in self.positions

    def next_offset(self, partition: int) -> int:
        return self.positions[partition]

    async def poll(self) -> list[log_words.Record]:
        await asyncio.sleep(0)  # a fetch gives other tasks their turn
        self._broker.require_answer()
        if not (found := self._fetch()):
            await self._broker.change(self._wait_s)
            self._broker.require_answer()
            found = self._fetch()
        return found

    async def stop(self) -> None: ...

    def _fetch(self) -> list[log_words.Record]:
        found: list[log_words.Record] = []
        if not self.answers:
            return found
        parts = {p: self._broker.partition(self._topic, p) for p in self.positions}
        for number, at in parts.items():
            if not at.begin <= self.positions[number] <= at.end:
                raise log_words.HistoryLost(f"{self._topic}[{number}]")
        for number, at in parts.items():
            end = at.end if at.visible is None else min(at.end, at.visible)
            batch = at.from_offset(self.positions[number], end, BATCH_RECORDS)
            found += batch
            if len(batch) == BATCH_RECORDS:
                self.positions[number] = batch[-1].offset + 1
            else:
                self.positions[number] = max(self.positions[number], end)
        return found


class _Replays:
    """See `interfaces.RangeReader`."""

    def __init__(self, broker: MemoryLog, size: int) -> None:
        self._broker = broker
        # A queue and no semaphore: like Kafka's replays it is not fair by itself. A task that puts
        # a connection back may get it again at once.
        self._connections = asyncio.Queue[None]()
        for _ in range(size):
            self._connections.put_nowait(None)
        self._stopped = False

    async def start(self) -> None:
        await self._broker.replay_gate()
        while self._broker.away:
            await self._broker.change(0.05)

    async def stop(self) -> None:
        self._stopped = True

    async def read(
        self, topic: str, partition: int, start: int, end: int
    ) -> AsyncGenerator[list[log_words.Record], None]:
        if start >= end:
            return
        broker = self._broker
        broker.replays_wanted += 1
        broker.most_replays_wanted = max(broker.most_replays_wanted, broker.replays_wanted)
        try:
            await self._connections.get()
            try:
                self._require_running()
                broker.reads.append((topic, partition, start, end))
                async for batch in self._range(topic, partition, start, end):
                    yield batch
            finally:
                self._connections.put_nowait(None)
        finally:
            broker.replays_wanted -= 1

    async def _range(
        self, topic: str, partition: int, start: int, end: int
    ) -> AsyncGenerator[list[log_words.Record], None]:
        broker, position = self._broker, start
        await broker.replay_gate()
        broker.require_answer()
        at = broker.partition(topic, partition)
        if not at.begin <= start <= at.end:
            raise log_words.HistoryLost(f"{topic}[{partition}] does not hold offset {start}")
        while position < end:
            batch = at.from_offset(position, min(end, at.end), BATCH_RECORDS)
            if batch:
                position = batch[-1].offset + 1
                yield batch
                await asyncio.sleep(0)
                await broker.replay_gate()
                broker.require_answer()
            elif at.end >= end:
                return
            else:
                position = at.end
                before = at.end
                await broker.change(broker.answer_deadline_s)
                if at.end == before:
                    raise log_words.LogUnavailable(f"no answer from {topic}[{partition}]")

    def _require_running(self) -> None:
        if self._stopped:
            raise log_words.LogUnavailable("the replays were stopped")


class _Offsets:
    """See `interfaces.OffsetQueries`."""

    def __init__(self, broker: MemoryLog) -> None:
        self._broker = broker

    async def ends(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        return {p: at.end for p, at in (await self._ask(topic, partitions)).items()}

    async def beginnings(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        return {p: at.begin for p, at in (await self._ask(topic, partitions)).items()}

    async def since(self, topic: str, partitions: Iterable[int], timestamp: int) -> dict[int, int]:
        found = (await self._ask(topic, partitions)).items()
        first = {
            p: next((r.offset for r in at.held if r.timestamp >= timestamp), None)
            for p, at in found
        }
        return {p: offset for p, offset in first.items() if offset is not None}

    async def committed(self, group: str) -> dict[TopicPartition, tuple[int, str]]:
        await asyncio.sleep(0)
        self._broker.require_answer()
        return dict(self._broker.committed_offsets.get(group, {}))

    async def partitions(self, topic: str) -> int:
        await asyncio.sleep(0)
        self._broker.require_answer()
        if self._broker.questions_fail:
            raise log_words.LogUnavailable(f"partitions of {topic}: no answer")
        if not self._broker.count(topic):
            raise log_words.LogUnavailable(f"partitions of {topic}: error 3")
        return self._broker.count(topic)

    async def stop(self) -> None: ...

    async def _ask(self, topic: str, partitions: Iterable[int]) -> dict[int, _Partition]:
        await asyncio.sleep(0)
        self._broker.require_answer()
        if self._broker.questions_fail:
            raise log_words.LogUnavailable("no answer")
        return {p: self._broker.partition(topic, p) for p in partitions}


class _Member:
    """See `interfaces.GroupMember`.

    Attributes:
        broken: the next poll gives the membership up.
        positions: next offset of each owned partition.
        paused: owned partitions of which nothing is returned.
        _joined: whether the group counts this member.
    """

    def __init__(
        self,
        broker: MemoryLog,
        group: str,
        names: Sequence[str],
        assigned: interfaces.RebalanceCallback,
        revoked: interfaces.RebalanceCallback,
    ) -> None:
        self.group, self.names = group, list(names)
        self.broken = False
        self.positions: dict[TopicPartition, int] = {}
        self.paused: set[TopicPartition] = set()
        self._broker = broker
        self._assigned, self._revoked = assigned, revoked
        self._joined = self._stopped = False

    @property
    def answers(self) -> bool:
        return self._broker.unheard.isdisjoint(self.names)

    async def start(self) -> None:
        while self._broker.away and not self._stopped:
            await self._broker.change(0.05)
        if self._stopped:
            raise log_words.LogUnavailable("the group consumer was stopped")
        self._joined = True
        try:
            await self._broker.join(self)
        except BaseException:  # cancelled: a member that is not polled would keep its partitions
            self._joined = False
            await self._broker.leave(self)
            raise

    async def poll(self, max_records: int, timeout_ms: int = 50) -> list[log_words.Record]:
        if not self._joined:
            await self.start()
        if self.broken:
            self.broken = self._joined = False
            owned = set(self.positions)
            await self._broker.leave(self)
            await self._revoked(owned)
            raise log_words.LogUnavailable("the membership was given up")
        if not (found := self._fetch(max_records)):
            await self._broker.change(timeout_ms / 1000)
            found = self._fetch(max_records)
        await asyncio.sleep(0)
        return found

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        self.paused |= set(partitions) & self._require_joined()

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        self._require_joined()
        self.paused -= set(partitions)
        self._broker.notify()

    def seek(self, offsets: Mapping[TopicPartition, int]) -> None:
        owned = self._require_joined()
        self.positions.update({tp: at for tp, at in offsets.items() if tp in owned})
        self._broker.notify()

    async def commit(self, offsets: Mapping[TopicPartition, tuple[int, str]]) -> bool:
        owned = self._require_joined() & set(offsets)
        await asyncio.sleep(0)
        self._broker.require_answer()
        self._broker.committed_offsets.setdefault(self.group, {}).update(
            {tp: offsets[tp] for tp in owned}
        )
        return len(owned) == len(offsets)

    async def stop(self) -> None:
        self._stopped = True
        if self._joined:
            self._joined = False
            await self._broker.leave(self)

    def rejoin(self) -> None:
        self.broken = True
        self._broker.notify()

    async def tell_revoked(self) -> None:
        """Everything is revoked; commits within the callback still count."""
        await self._revoked(set(self.positions))
        self.drop()

    async def tell_assigned(self, partitions: set[TopicPartition]) -> None:
        """Own these, from the committed offsets on."""
        committed = self._broker.committed_offsets.get(self.group, {})
        for tp in partitions:
            begin = self._broker.partition(*tp).begin
            self.positions[tp] = max(begin, committed.get(tp, (begin, ""))[0])
        await self._assigned(set(partitions))

    def drop(self) -> None:
        """Own nothing."""
        self.positions.clear()
        self.paused.clear()

    def _fetch(self, limit: int) -> list[log_words.Record]:
        found: list[log_words.Record] = []
        if self._broker.away or not self.answers:
            return found
        for tp in self.positions:
            left = max(1, limit) - len(found)
            if tp in self.paused or left <= 0:
                continue
            at = self._broker.partition(*tp)
            batch = at.from_offset(max(self.positions[tp], at.begin), at.end, left)
            if batch:
                self.positions[tp] = batch[-1].offset + 1
                found += batch
        return found

    def _require_joined(self) -> set[TopicPartition]:
        if not self._joined:
            raise log_words.LogUnavailable("not a member of the group")
        return set(self.positions)
