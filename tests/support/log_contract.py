"""What every implementation of `tailrace.log.interfaces` promises, as classes of tests.

A subclass gives a fixture `backend` (`LogBackend`). Kafka: `tests/contract/test_log.py`. In memory:
`tests/unit/tailrace/log/test_memory_log.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any, Protocol

import pytest

from tailrace import log
from tailrace.log import interfaces, marks
from tailrace.protocol import records, topics
from tests.support.waiting import eventually

PARTITIONS = 8


class LogBackend(Protocol):
    """A log under test, and the hands of an operator on it."""

    def writer(self, **settings: Any) -> interfaces.RecordWriter: ...
    def reader(self, topic: str, **settings: Any) -> interfaces.TailReader: ...
    def replays(self, size: int = 2) -> interfaces.RangeReader: ...
    def offsets(self) -> interfaces.OffsetQueries: ...
    def group_consumer(
        self,
        group: str,
        names: Sequence[str],
        *,
        assigned: interfaces.RebalanceCallback,
        revoked: interfaces.RebalanceCallback,
    ) -> interfaces.GroupMember: ...

    async def create_topic(self) -> str:
        """A new topic with `PARTITIONS` partitions."""

    async def put(self, topic: str, partition: int, key: bytes | None, value: bytes | None) -> None:
        """Append a record of any kind, with another client than the one under test."""

    async def held(self, topic: str, partition: int) -> list[log.Record]:
        """Everything in a partition, read with another client than the one under test."""

    async def delete_below(self, topic: str, partition: int, offset: int) -> None:
        """Retention."""

    def impatient(self) -> LogBackend:
        """The same log; its clients wait a second for an answer."""

    def unreachable(self) -> LogBackend:
        """A log whose broker is away; its clients wait a second for an answer."""


def unique(prefix: str = "test") -> str:
    """A name that no other test uses."""
    return f"{prefix}.{secrets.token_hex(4)}"


async def until(condition: Callable[[], object], deadline_s: float = 40) -> None:
    """Wait for a condition that has no signal of its own."""
    await eventually(condition, "the condition waited for", within_s=deadline_s, every_s=0.01)


@contextlib.asynccontextmanager
async def writing(backend: LogBackend, **settings: Any) -> AsyncIterator[interfaces.RecordWriter]:
    """A writer that runs."""
    async with running(backend.writer(**settings)) as writer:
        yield writer


@contextlib.asynccontextmanager
async def running(writer: interfaces.RecordWriter) -> AsyncIterator[interfaces.RecordWriter]:
    """The writer while it runs; stopped at the end."""
    task = asyncio.create_task(writer.run())
    try:
        yield writer
    finally:
        await writer.stop(2)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def fill(
    backend: LogBackend, topic: str, values: Iterable[bytes], partition: int = 0
) -> list[int]:
    """Append values; returns their offsets."""
    async with writing(backend) as writer:
        sent = [writer.append(topic, partition, "k", value) for value in values]
        return [appended.offset for appended in await asyncio.gather(*sent)]


async def polled(
    reader: interfaces.TailReader, count: int, deadline_s: float = 15
) -> list[log.Record]:
    """`count` records, and what comes with them."""
    got: list[log.Record] = []
    async with asyncio.timeout(deadline_s):
        while len(got) < count:
            got += await reader.poll()
    return got


async def drained(batches: AsyncIterator[list[log.Record]]) -> list[log.Record]:
    """All records of a replay."""
    return [r async for batch in batches for r in batch]


def offsets_by_partition(got: Iterable[log.Record]) -> dict[int, list[int]]:
    """Offsets in the order they were read."""
    found: dict[int, list[int]] = {}
    for r in got:
        found.setdefault(r.partition, []).append(r.offset)
    return found


class _OnTopic:
    @pytest.fixture
    async def topic(self, backend: LogBackend) -> str:
        """A topic of this test's own."""
        return await backend.create_topic()


class WriterContract(_OnTopic):
    async def test_records_lie_in_the_order_they_were_given_and_where_the_acknowledgement_says(
        self, backend: LogBackend, topic: str
    ) -> None:
        values = [(random.randrange(PARTITIONS), str(i).encode()) for i in range(600)]
        async with writing(backend) as writer:
            sent = [
                writer.append(topic, partition, f"key-{value.decode()}", value, [("h", value)])
                for partition, value in values
            ]
            appended = await asyncio.gather(*sent)
            assert writer.backlog == 0
            assert writer.incarnation == 1
        found = {p: await backend.held(topic, p) for p in range(PARTITIONS)}
        for partition in range(PARTITIONS):
            assert [r.value for r in found[partition]] == [
                value for p, value in values if p == partition
            ]
        for (partition, value), where in zip(values, appended, strict=True):
            r = next(r for r in found[partition] if r.offset == where.offset)
            assert (r.value, r.key, list(r.headers)) == (value, b"key-" + value, [("h", value)])
            assert abs(where.timestamp / 1000 - time.time()) < 600

    async def test_a_record_too_large_for_the_log_is_refused_alone(
        self, backend: LogBackend, topic: str
    ) -> None:
        async with writing(backend) as writer:
            before = writer.append(topic, 0, "k", b"before")
            huge = writer.append(topic, 0, "k", bytes(records.MAX_RECORD_BYTES))
            headers = writer.append(topic, 0, "k", b"", [("h", bytes(records.MAX_RECORD_BYTES))])
            after = writer.append(topic, 0, "k", b"after")
            for refused in (huge, headers):
                with pytest.raises(log.TooLarge):
                    await refused
            assert (await before).offset + 1 == (await after).offset
            # A new producer would have failed every other record in flight.
            assert writer.incarnation == 1

    async def test_headers_come_back_as_they_were_written(
        self, backend: LogBackend, topic: str
    ) -> None:
        """One without a value, as Kafka allows it, ended whoever read or handed on the record."""
        headers = [("a", None), ("", b""), ("", None), ("\u00fc\0", b"\xff")]
        async with writing(backend) as writer:
            await writer.append(topic, 0, "k", b"v", headers)
        [found] = await backend.held(topic, 0)
        assert list(found.headers) == headers

    async def test_the_largest_record_that_is_accepted_fits(
        self, backend: LogBackend, topic: str
    ) -> None:
        value = secrets.token_bytes(records.MAX_RECORD_BYTES - log.RECORD_OVERHEAD_BYTES - 4)
        assert await fill(backend, topic, [value, b"next"]) == [0, 1]
        assert (await backend.held(topic, 0))[0].value == value

    async def test_an_append_to_an_unknown_partition_fails_and_the_writer_goes_on(
        self, backend: LogBackend, topic: str
    ) -> None:
        async with writing(backend) as writer:
            await writer.append(topic, 0, "k", b"one")
            with pytest.raises(log.AppendFailed):
                await writer.append(topic, PARTITIONS, "k", b"nowhere")
            assert (await writer.append(topic, 0, "k", b"two")).offset == 1
            assert writer.incarnation == 2

    async def test_a_caller_that_stops_waiting_disturbs_no_other(
        self, backend: LogBackend, topic: str
    ) -> None:
        async with writing(backend) as writer:
            sent = [writer.append(topic, 0, "k", str(i).encode()) for i in range(100)]
            for future in sent[::2]:
                future.cancel()
            assert len(await asyncio.gather(*sent[1::2])) == 50
            await until(lambda: not writer.backlog, 5)

    async def test_an_append_while_there_is_no_broker_fails_within_its_own_deadline(
        self, backend: LogBackend
    ) -> None:
        async with asyncio.timeout(30), writing(backend.unreachable(), deadline_s=1.0) as writer:
            first = writer.append("t", 0, "k", b"v")
            await asyncio.sleep(0.5)
            second = writer.append("t", 0, "k", b"v")
            assert not first.done()  # a broker that returns within the deadline costs only time
            with pytest.raises(log.AppendFailed):
                await first
            assert not second.done()
            with pytest.raises(log.AppendFailed):
                await second
            assert not writer.connected

    async def test_nothing_is_accepted_after_the_end(self, backend: LogBackend, topic: str) -> None:
        writer = backend.writer()
        task = asyncio.create_task(writer.run())
        await writer.append(topic, 0, "k", b"v")
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        with pytest.raises(log.AppendFailed):
            await asyncio.wait_for(writer.append(topic, 0, "k", b"v"), 1)

    async def test_a_cancelled_writer_leaves_no_task_and_no_open_append_behind(
        self, backend: LogBackend, topic: str
    ) -> None:
        before = asyncio.all_tasks()
        for wait in (0.0, 0.005, 0.02, 0.1):
            writer = backend.writer()
            task = asyncio.create_task(writer.run())
            pending = writer.append(topic, 0, "k", b"v")
            await asyncio.sleep(wait)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            assert pending.done()
        await until(lambda: asyncio.all_tasks() == before, 5)


class ReaderContract(_OnTopic):
    async def test_a_reader_returns_records_in_order_from_where_it_was_told(
        self, backend: LogBackend, topic: str
    ) -> None:
        await fill(backend, topic, [str(i).encode() for i in range(50)])
        reader = backend.reader(topic)
        try:
            reader.follow(0, 20)
            assert reader.follows(0)
            assert reader.next_offset(0) == 20
            got = await polled(reader, 30)
            assert [r.value for r in got] == [str(i).encode() for i in range(20, 50)]
            assert reader.positions == {0: 50}
            assert await reader.poll() == []
        finally:
            await reader.stop()

    async def test_partitions_come_and_go_while_reading_without_loss_or_double(
        self, backend: LogBackend, topic: str
    ) -> None:
        reader = backend.reader(topic, wait_ms=20)
        seen: dict[int, list[int]] = {p: [] for p in range(PARTITIONS)}
        rng = random.Random(5)
        try:
            async with writing(backend) as writer, asyncio.timeout(50):
                sent: list[asyncio.Future[log.Appended]] = []
                followed: set[int] = set()
                for _ in range(120):
                    sent += [writer.append(topic, p, "k", b"x") for p in range(PARTITIONS)]
                    change = rng.randrange(PARTITIONS)
                    if change in followed:
                        reader.leave(change)
                        followed.discard(change)
                    else:  # goes on exactly where it left
                        reader.follow(change, len(seen[change]))
                        followed.add(change)
                    for r in await reader.poll():
                        seen[r.partition].append(r.offset)
                await asyncio.gather(*sent)
                for p in range(PARTITIONS):
                    reader.follow(p, len(seen[p]))
                while any(len(offsets) < 120 for offsets in seen.values()):
                    for r in await reader.poll():
                        seen[r.partition].append(r.offset)
        finally:
            await reader.stop()
        assert seen == {p: list(range(120)) for p in range(PARTITIONS)}

    async def test_a_partition_added_at_run_time_disturbs_no_other(
        self, backend: LogBackend, topic: str
    ) -> None:
        await fill(backend, topic, [b"x"] * 30, partition=1)
        reader = backend.reader(topic)
        try:
            async with writing(backend) as writer:
                reader.follow(0, 0)
                got: list[log.Record] = []
                for i in range(40):
                    await writer.append(topic, 0, "k", b"y")
                    if i == 10:
                        reader.follow(1, 0)
                    if i == 20:
                        reader.leave(1)
                    got += await reader.poll()
                got += await polled(reader, 40 - len(offsets_by_partition(got)[0]))
        finally:
            await reader.stop()
        assert offsets_by_partition(got) == {0: list(range(40)), 1: list(range(30))}

    async def test_a_partition_left_and_followed_again_before_a_poll_counts_once(
        self, backend: LogBackend, topic: str
    ) -> None:
        await fill(backend, topic, [b"0", b"1", b"2"])
        reader = backend.reader(topic)
        try:
            reader.follow(0, 0)
            await polled(reader, 3)
            reader.leave(0)
            assert not reader.follows(0)
            reader.follow(0, 1)
            assert [r.value for r in await polled(reader, 2)] == [b"1", b"2"]
            reader.leave(0)
            assert await reader.poll() == []
            assert reader.positions == {}
        finally:
            await reader.stop()

    async def test_a_reader_of_no_partition_waits_and_starts_when_it_is_given_one(
        self, backend: LogBackend, topic: str
    ) -> None:
        await fill(backend, topic, [b"x"])
        reader = backend.reader(topic)
        try:
            assert await reader.poll() == []
            reader.follow(0, 0)
            assert len(await polled(reader, 1)) == 1
        finally:
            await reader.stop()

    async def test_a_position_below_the_logs_beginning_is_history_lost_and_others_go_on(
        self, backend: LogBackend, topic: str
    ) -> None:
        await fill(backend, topic, [b"x"] * 10)
        await fill(backend, topic, [b"y"] * 3, partition=1)
        await backend.delete_below(topic, 0, 5)
        reader = backend.reader(topic)
        try:
            reader.follow(0, 4)
            with pytest.raises(log.HistoryLost):
                await polled(reader, 10)
            reader.leave(0)
            reader.follow(1, 0)
            assert offsets_by_partition(await polled(reader, 3)) == {1: [0, 1, 2]}
            reader.follow(0, 5)
            assert offsets_by_partition(await polled(reader, 5)) == {0: [5, 6, 7, 8, 9]}
        finally:
            await reader.stop()

    async def test_a_position_beyond_the_logs_end_is_history_lost(
        self, backend: LogBackend, topic: str
    ) -> None:
        """This is how a reader learns that its log was replaced by a shorter one."""
        await fill(backend, topic, [b"x"] * 3)
        reader = backend.reader(topic)
        try:
            reader.follow(0, 7)
            with pytest.raises(log.HistoryLost):
                await polled(reader, 1)
        finally:
            await reader.stop()

    async def test_a_lost_partition_costs_the_others_no_record(
        self, backend: LogBackend, topic: str
    ) -> None:
        await fill(backend, topic, [b"x"] * 10)
        await backend.delete_below(topic, 0, 5)
        await fill(backend, topic, [b"y"] * 500, partition=1)
        reader = backend.reader(topic)
        try:
            reader.follow(0, 0)
            reader.follow(1, 0)
            got: list[log.Record] = []
            async with asyncio.timeout(15):
                while len(got) < 505:
                    try:
                        got += await reader.poll()
                    except log.HistoryLost:
                        reader.follow(0, 5)
        finally:
            await reader.stop()
        assert offsets_by_partition(got) == {0: list(range(5, 10)), 1: list(range(500))}

    async def test_a_reader_without_a_broker_says_so(self, backend: LogBackend) -> None:
        reader = backend.unreachable().reader("t")
        reader.follow(0, 0)
        with pytest.raises(log.LogUnavailable):
            await asyncio.wait_for(reader.poll(), 20)

    async def test_keys_and_values_of_any_kind_pass_through(
        self, backend: LogBackend, topic: str
    ) -> None:
        """Garbage is for the fold to judge. A reader hands it on, also without key or value."""
        kinds: list[tuple[bytes | None, bytes | None]] = [
            (b"\xff\x00", b"v"),
            (None, b"v"),
            (b"k", None),
            (b"", b""),
            (b"k" * 5000, b"\x80"),
        ]
        for key, value in kinds:
            await backend.put(topic, 0, key, value)
        reader, replays = backend.reader(topic), backend.replays()
        try:
            reader.follow(0, 0)
            assert [(r.key, r.value) for r in await polled(reader, 5)] == kinds
            assert [(r.key, r.value) for r in await drained(replays.read(topic, 0, 0, 5))] == kinds
        finally:
            await reader.stop()
            await replays.stop()
        assert all(records.decode_token(value) is None for _, value in kinds)


class ReplayContract(_OnTopic):
    async def test_a_replay_returns_exactly_its_range(
        self, backend: LogBackend, topic: str
    ) -> None:
        await fill(backend, topic, [str(i).encode() for i in range(5000)])
        replays = backend.replays(1)
        rng = random.Random(3)
        try:
            for start, end in [
                (0, 5000),
                (0, 1),
                (4999, 5000),
                (7, 7),
                (9, 3),
                *(sorted(rng.sample(range(5001), 2)) for _ in range(20)),
            ]:
                got = await drained(replays.read(topic, 0, start, end))
                assert [r.offset for r in got] == list(range(start, end))
        finally:
            await replays.stop()

    async def test_more_replays_than_connections_all_come_to_an_end(
        self, backend: LogBackend, topic: str
    ) -> None:
        await fill(backend, topic, [str(i).encode() for i in range(300)])
        replays = backend.replays(2)
        await replays.start()
        try:
            async with asyncio.timeout(30):
                all_of_them = await asyncio.gather(
                    *(drained(replays.read(topic, 0, i, 300)) for i in range(20))
                )
            assert [len(got) for got in all_of_them] == [300 - i for i in range(20)]
        finally:
            await replays.stop()

    async def test_a_replay_that_is_left_or_cancelled_gives_its_connection_back(
        self, backend: LogBackend, topic: str
    ) -> None:
        await fill(backend, topic, [bytes(1000)] * 5000)
        before = asyncio.all_tasks()
        replays = backend.replays(1)
        try:
            async with contextlib.aclosing(replays.read(topic, 0, 0, 5000)) as batches:
                async for _ in batches:
                    break
            for wait in (0.0, 0.001, 0.004, 0.01, 0.03, 0.1):  # while it connects, while it reads
                task = asyncio.create_task(drained(replays.read(topic, 0, 0, 5000)))
                await asyncio.sleep(wait)
                task.cancel()
                await asyncio.wait({task})
            async with asyncio.timeout(15):
                assert len(await drained(replays.read(topic, 0, 10, 20))) == 10
        finally:
            await replays.stop()
        await until(lambda: asyncio.all_tasks() == before, 5)

    async def test_a_replay_that_waits_for_a_connection_ends_when_the_replays_are_stopped(
        self, backend: LogBackend, topic: str
    ) -> None:
        await fill(backend, topic, [b"x"] * 10)
        replays = backend.replays(1)
        holder = replays.read(topic, 0, 0, 10)
        await anext(holder)
        waiting = [asyncio.create_task(drained(replays.read(topic, 0, 0, 10))) for _ in range(3)]
        await asyncio.sleep(0)
        await replays.stop()
        await holder.aclose()
        done, _ = await asyncio.wait(waiting, timeout=5)
        assert [type(task.exception()) for task in done] == [log.LogUnavailable] * 3
        with pytest.raises(log.LogUnavailable):
            await asyncio.wait_for(drained(replays.read(topic, 0, 0, 10)), 2)

    async def test_a_replay_below_the_logs_beginning_is_history_lost(
        self, backend: LogBackend, topic: str
    ) -> None:
        await fill(backend, topic, [b"x"] * 10)
        await backend.delete_below(topic, 0, 5)
        replays = backend.replays(1)
        try:
            with pytest.raises(log.HistoryLost):
                await drained(replays.read(topic, 0, 4, 10))
            # The connection serves on.
            assert len(await drained(replays.read(topic, 0, 5, 10))) == 5
        finally:
            await replays.stop()

    async def test_a_replay_beyond_the_end_gives_what_there_is_and_then_no_answer(
        self, backend: LogBackend, topic: str
    ) -> None:
        await fill(backend, topic, [b"x"] * 3)
        replays = backend.impatient().replays(1)
        got: list[log.Record] = []
        try:
            with pytest.raises(log.LogUnavailable):  # noqa: PT012 (what came before it counts)
                async for batch in replays.read(topic, 0, 0, 5):
                    got += batch
        finally:
            await replays.stop()
        assert [r.offset for r in got] == [0, 1, 2]

    async def test_a_replay_without_a_broker_says_so_and_keeps_its_places(
        self, backend: LogBackend
    ) -> None:
        replays = backend.unreachable().replays(1)
        for _ in range(3):  # the second would not end if the first had lost the place
            with pytest.raises(log.LogUnavailable):
                await asyncio.wait_for(drained(replays.read("t", 0, 0, 1)), 10)
        await replays.stop()


class OffsetContract(_OnTopic):
    async def test_ends_beginnings_and_partition_counts(
        self, backend: LogBackend, topic: str
    ) -> None:
        await fill(backend, topic, [b"x"] * 7, partition=3)
        await backend.delete_below(topic, 3, 2)
        offsets = backend.offsets()
        try:
            assert await offsets.ends(topic, [0, 3]) == {0: 0, 3: 7}
            assert await offsets.beginnings(topic, [0, 3]) == {0: 0, 3: 2}
            assert await offsets.partitions(topic) == PARTITIONS
            assert await offsets.ends(topic, []) == {}
            many = await asyncio.gather(*(offsets.ends(topic, [3]) for _ in range(50)))
            assert many == [{3: 7}] * 50
        finally:
            await offsets.stop()

    async def test_a_group_that_never_committed_has_no_offsets(self, backend: LogBackend) -> None:
        offsets = backend.offsets()
        try:
            assert await offsets.committed(unique("group")) == {}
        finally:
            await offsets.stop()

    async def test_questions_without_a_broker_fail_in_time(self, backend: LogBackend) -> None:
        offsets = backend.unreachable().offsets()
        for ask in (
            offsets.ends("t", [0]),
            offsets.beginnings("t", [0]),
            offsets.partitions("t"),
            offsets.committed("g"),
        ):
            with pytest.raises(log.LogUnavailable):
                await asyncio.wait_for(ask, 10)
        await offsets.stop()

    async def test_a_question_about_an_unknown_topic_fails_and_others_are_answered(
        self, backend: LogBackend, topic: str
    ) -> None:
        offsets = backend.impatient().offsets()
        try:
            assert await offsets.ends(topic, [0]) == {0: 0}
            with pytest.raises(log.LogUnavailable):
                await offsets.ends(unique("missing"), [0])
            assert await offsets.ends(topic, [0]) == {0: 0}
        finally:
            await offsets.stop()


class MarkContract(_OnTopic):
    """A log that was rolled back is one with other records at the same offsets, so the other
    records may as well be those of another topic."""

    @staticmethod
    async def rolled_back(backend: LogBackend, topic: str, *at: marks.Position) -> set[int]:
        """Numbers of those positions, each in the partition of its number, that are not good."""
        offsets, replays = backend.offsets(), backend.replays(1)
        try:
            return {*await marks.rolled_back(offsets, replays, topic, dict(enumerate(at)))}
        finally:
            await offsets.stop()
            await replays.stop()

    async def test_a_position_above_the_end_or_after_another_record_was_rolled_back(
        self, backend: LogBackend, topic: str
    ) -> None:
        for partition in range(4):
            await fill(backend, topic, [b"0", b"1", b"2"], partition)
        other = await backend.create_topic()
        await fill(backend, other, [b"0", b"one", b"2"], 0)
        [mine] = [r for r in await backend.held(topic, 0) if r.offset == 1]
        [theirs] = [r for r in await backend.held(other, 0) if r.offset == 1]
        found = await self.rolled_back(
            backend,
            topic,
            marks.Position(2, marks.Mark.from_record(mine)),
            marks.Position(2, marks.Mark.from_record(theirs)),
            marks.Position(3),
            marks.Position(4),
            marks.Position(0),
        )
        assert found == {1, 3}

    async def test_what_retention_removed_cannot_be_compared(
        self, backend: LogBackend, topic: str
    ) -> None:
        await fill(backend, topic, [b"0", b"1", b"2"])
        gone = marks.Position(2, marks.Mark(1, 5, "0"))
        assert await self.rolled_back(backend, topic, gone) == {0}
        await backend.delete_below(topic, 0, 2)
        assert await self.rolled_back(backend, topic, gone) == set()
        # Also where the position itself is below what the log still has, and where it is empty.
        assert await self.rolled_back(backend, topic, marks.Position(1)) == set()
        await backend.delete_below(topic, 0, 3)
        assert await self.rolled_back(backend, topic, marks.Position(3)) == set()

    async def test_without_an_answer_nothing_is_said(self, backend: LogBackend) -> None:
        with pytest.raises(log.LogUnavailable):
            await self.rolled_back(backend.unreachable(), "any", marks.Position(1))


class Member:
    """One worker's membership, polled in the background as a worker does.

    Attributes:
        owned: partitions as the callbacks told.
        received: all records polled so far.
        revocations: how often partitions were revoked. What is owned may be back before a test
            looks.
        commit_on_revoke: committed within the next revocation; None afterwards.
        revoke_answer: what that commit returned.
    """

    def __init__(self, backend: LogBackend, group: str, names: list[str]) -> None:
        self.owned: set[tuple[str, int]] = set()
        self.received: list[log.Record] = []
        self.revocations = 0
        self.commit_on_revoke: dict[tuple[str, int], tuple[int, str]] | None = None
        self.revoke_answer: bool | None = None
        self.consumer = backend.group_consumer(
            group, names, assigned=self._assigned, revoked=self._revoked
        )
        self._task: asyncio.Task[None] | None = None

    async def _assigned(self, partitions: set[tuple[str, int]]) -> None:
        self.owned = set(partitions)

    async def _revoked(self, partitions: set[tuple[str, int]]) -> None:
        if self.commit_on_revoke is not None and partitions:
            self.revoke_answer = await self.consumer.commit(self.commit_on_revoke)
            self.commit_on_revoke = None
        self.owned -= partitions
        self.revocations += bool(partitions)

    async def __aenter__(self) -> Member:
        await self.consumer.start()
        self._task = asyncio.create_task(self._poll())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        await self.consumer.stop()

    async def _poll(self) -> None:
        while True:
            with contextlib.suppress(log.LogUnavailable):
                self.received += await self.consumer.poll(100)


def whole(names: list[str]) -> set[tuple[str, int]]:
    """All partitions of these topics."""
    return {(name, p) for name in names for p in range(PARTITIONS)}


class GroupContract:
    @pytest.fixture
    async def classes(self, backend: LogBackend) -> list[str]:
        """The request topics of a pool of this test's own."""
        return [await backend.create_topic() for _ in topics.CLASSES]

    async def test_two_members_share_evenly_with_equal_numbers_of_all_classes_on_one(
        self, backend: LogBackend, classes: list[str]
    ) -> None:
        group = unique("group")
        async with Member(backend, group, classes) as one:
            await until(lambda: one.owned == whole(classes))
            async with Member(backend, group, classes) as two:
                await until(
                    lambda: (
                        len(one.owned) == len(two.owned) == PARTITIONS
                        and one.owned | two.owned == whole(classes)
                    )
                )
                for member in (one, two):
                    numbers = [{p for name, p in member.owned if name == n} for n in classes]
                    assert numbers[0] == numbers[1]
                    assert len(numbers[0]) == PARTITIONS // 2
            await until(lambda: one.owned == whole(classes))

    async def test_a_paused_partition_gives_nothing_until_it_is_resumed(
        self, backend: LogBackend, classes: list[str]
    ) -> None:
        tp = (classes[0], 0)
        async with Member(backend, unique("group"), classes) as member:
            await until(lambda: member.owned)
            member.consumer.pause([tp, ("no-such-topic", 99)])
            await fill(backend, classes[0], [b"held"], partition=0)
            await fill(backend, classes[0], [b"first"], partition=1)
            await until(lambda: member.received)
            await fill(backend, classes[0], [b"second"], partition=1)  # a later fetch than `held`
            await until(lambda: len(member.received) == 2)
            assert [r.value for r in member.received] == [b"first", b"second"]
            member.consumer.resume([tp, ("no-such-topic", 99)])
            await until(lambda: len(member.received) == 3)
            assert member.received[-1].value == b"held"

    async def test_a_commit_keeps_its_metadata_and_a_successor_starts_there(
        self, backend: LogBackend, classes: list[str]
    ) -> None:
        group, tp = unique("group"), (classes[0], 2)
        await fill(backend, classes[0], [b"0", b"1", b"2"], partition=2)
        offsets = backend.offsets()
        try:
            async with Member(backend, group, classes) as one:
                await until(lambda: len(one.received) == 3)
                assert await one.consumer.commit({tp: (2, "t=17 é")})
                assert await one.consumer.commit({})
            assert await offsets.committed(group) == {tp: (2, "t=17 é")}
            async with Member(backend, group, classes) as two:
                await until(lambda: two.received)
                await fill(backend, classes[0], [b"3"], partition=2)
                await until(lambda: len(two.received) == 2)
                assert [r.value for r in two.received] == [b"2", b"3"]
        finally:
            await offsets.stop()

    async def test_a_partition_is_read_from_where_it_is_sought(
        self, backend: LogBackend, classes: list[str]
    ) -> None:
        await fill(backend, classes[0], [b"0", b"1", b"2"], partition=2)
        async with Member(backend, unique("group"), classes) as member:
            await until(lambda: len(member.received) == 3)
            member.consumer.seek({(classes[0], 2): 1, ("no-such-topic", 99): 0})
            await until(lambda: len(member.received) == 5)
            await fill(backend, classes[0], [b"3"], partition=2)
            await until(lambda: len(member.received) == 6)
            assert [r.value for r in member.received] == [b"0", b"1", b"2", b"1", b"2", b"3"]

    async def test_a_commit_within_the_revocation_lands_and_one_after_it_is_refused(
        self, backend: LogBackend, classes: list[str]
    ) -> None:
        """Kafka takes a commit of any member for any partition: one that outlived its assignment
        would move the next owner's offset back."""
        group = unique("group")
        for p in range(PARTITIONS):
            await fill(backend, classes[0], [b"x"] * 10, partition=p)
        offsets = backend.offsets()
        try:
            async with Member(backend, group, classes) as one:
                await until(lambda: one.owned == whole(classes))
                one.commit_on_revoke = {
                    (classes[0], p): (3, "at revocation") for p in range(PARTITIONS)
                }
                async with Member(backend, group, classes) as two:
                    await until(lambda: len(one.owned) == len(two.owned) == PARTITIONS)
                    assert one.revoke_answer is True
                    moved = next(tp for tp in two.owned if tp[0] == classes[0])
                    kept = next(tp for tp in one.owned if tp[0] == classes[0])
                    assert (await offsets.committed(group))[moved] == (3, "at revocation")
                    assert await two.consumer.commit({moved: (8, "new owner")})
                    assert await one.consumer.commit({moved: (5, "stale")}) is False
                    both = {moved: (5, "stale"), kept: (4, "still owned")}
                    assert await one.consumer.commit(both) is False
                    committed = await offsets.committed(group)
                    assert committed[moved] == (8, "new owner")
                    assert committed[kept] == (4, "still owned")
        finally:
            await offsets.stop()

    async def test_a_member_that_is_stopped_while_it_joins_leaves_no_member_behind(
        self, backend: LogBackend, classes: list[str]
    ) -> None:
        """A member that is not polled would hold partitions until its session ends."""
        group = unique("group")
        before = asyncio.all_tasks()
        for wait in (0.0, 0.02, 0.1):
            member = Member(backend, group, classes)
            joining = asyncio.create_task(member.consumer.start())
            await asyncio.sleep(wait)
            joining.cancel()
            await asyncio.wait({joining})
            await member.consumer.stop()
        stopped = Member(backend, group, classes)
        joining = asyncio.create_task(stopped.consumer.start())
        await asyncio.sleep(0)
        await stopped.consumer.stop()
        await asyncio.wait({joining})
        joining.cancelled() or joining.exception()
        await until(lambda: asyncio.all_tasks() == before, 5)
        async with Member(backend, group, classes) as member:
            await until(lambda: member.owned == whole(classes), 15)

    async def test_a_member_that_rejoins_is_told_what_it_lost_and_starts_from_its_commits(
        self, backend: LogBackend, classes: list[str]
    ) -> None:
        """A worker rejoins when its consumer returns nothing although the log has records. It used
        to stop its consumer and start it again; a stopped consumer does not start."""
        await fill(backend, classes[0], [b"0", b"1"])
        async with Member(backend, unique("group"), classes) as member:
            await until(lambda: len(member.received) == 2)
            assert await member.consumer.commit({(classes[0], 0): (1, "")})
            before = member.revocations
            member.consumer.rejoin()
            await until(lambda: member.revocations > before)
            await until(lambda: member.owned == whole(classes))
            await until(lambda: len(member.received) == 3)
            assert [r.value for r in member.received] == [b"0", b"1", b"1"]


class LogContract(
    WriterContract, ReaderContract, ReplayContract, OffsetContract, MarkContract, GroupContract
):
    """All of it."""
