"""The Kafka client against a real broker: what each part promises while all is well, and when the
broker dies under it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import gc
import itertools
import random
import secrets
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from typing import Any, TypeVar

import aiokafka
import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic, RecordsToDelete
from aiokafka.client import AIOKafkaClient

from tailrace import log, telemetry
from tailrace.log import clients, readers
from tailrace.protocol import ids, records, topics
from tests.support import local

PARTITIONS = 8
T = TypeVar("T")


def fresh(prefix: str = "test") -> str:
    return f"{prefix}.{secrets.token_hex(4)}"


async def create(bootstrap: str, name: str, partitions: int = PARTITIONS, **config: str) -> str:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        answer = await admin.create_topics([NewTopic(name, partitions, 1, topic_configs=config)])
        assert [error[1] for error in answer.topic_errors] == [0]
    finally:
        await admin.close()
    return name


async def delete_below(bootstrap: str, topic: str, partition: int, offset: int) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.delete_records(
            {aiokafka.TopicPartition(topic, partition): RecordsToDelete(offset)}
        )
    finally:
        await admin.close()


@pytest.fixture
async def topic(kafka: str) -> str:
    return await create(kafka, fresh())


@contextlib.asynccontextmanager
async def writing(bootstrap: str, **settings: Any) -> AsyncIterator[log.Writer]:
    writer = log.Writer(bootstrap, **settings)
    task = asyncio.create_task(writer.run())
    try:
        yield writer
    finally:
        await writer.stop(2)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def fill(
    bootstrap: str, topic: str, values: Iterable[bytes], partition: int = 0
) -> list[int]:
    async with writing(bootstrap) as writer:
        sent = [writer.append(topic, partition, "k", value) for value in values]
        return [appended.offset for appended in await asyncio.gather(*sent)]


async def read_all(
    bootstrap: str, topic: str, partitions: Iterable[int] = range(PARTITIONS)
) -> dict[int, list[log.Record]]:
    """All that the log holds, read by another client than the one under test where that matters: a
    plain consumer."""
    found: dict[int, list[log.Record]] = {}
    consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False)
    await consumer.start()
    try:
        for p in partitions:
            tp = aiokafka.TopicPartition(topic, p)
            end = (await consumer.end_offsets([tp]))[tp]
            consumer.assign([tp])
            await consumer.seek_to_beginning(tp)
            found[p] = []
            while await consumer.position(tp) < end:
                for r in (await consumer.getmany(tp, timeout_ms=500)).get(tp, []):
                    found[p].append(
                        log.Record(
                            r.topic, r.partition, r.offset, r.timestamp, r.key, r.value, r.headers
                        )
                    )
    finally:
        await consumer.stop()
    return found


async def polled(reader: log.Reader, count: int, deadline_s: float = 15) -> list[log.Record]:
    """`count` records, and what else comes with them."""
    got: list[log.Record] = []
    async with asyncio.timeout(deadline_s):
        while len(got) < count:
            got += await reader.poll()
    return got


async def until(condition: Callable[[], object], deadline_s: float = 40) -> None:
    async with asyncio.timeout(deadline_s):
        while not condition():  # noqa: ASYNC110 (what is waited for has no signal to give)
            await asyncio.sleep(0.02)


def offsets_by_partition(got: Iterable[log.Record]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for r in got:
        found.setdefault(r.partition, []).append(r.offset)
    return found


@pytest.fixture(autouse=True)
def nothing_is_left_open() -> Iterator[None]:
    """No client may outlive the part that made it: aiokafka warns of unclosed ones when they are
    collected, and a warning is an error here."""
    yield
    gc.collect()


# ---- Writer --------------------------------------------------------------------------------------


async def test_records_lie_in_the_order_they_were_given_and_where_the_acknowledgement_says(
    kafka: str, topic: str
) -> None:
    values = [(random.randrange(PARTITIONS), str(i).encode()) for i in range(600)]
    async with writing(kafka) as writer:
        sent = [
            writer.append(topic, partition, f"key-{value.decode()}", value, [("h", value)])
            for partition, value in values
        ]
        appended = await asyncio.gather(*sent)
        assert writer.backlog == 0
        assert writer.incarnation == 1
    found = await read_all(kafka, topic)
    for partition in range(PARTITIONS):
        assert [r.value for r in found[partition]] == [
            value for p, value in values if p == partition
        ]
    for (partition, value), where in zip(values, appended, strict=True):
        r = next(r for r in found[partition] if r.offset == where.offset)
        assert (r.value, r.key, list(r.headers)) == (value, b"key-" + value, [("h", value)])
        assert abs(where.timestamp / 1000 - time.time()) < 600


async def test_the_acknowledged_time_is_the_brokers(kafka: str) -> None:
    async with writing(kafka) as writer:
        appended = await writer.append(topics.TOKENS, 0, "k", b"{}")
    [r] = [r for r in (await read_all(kafka, topics.TOKENS, [0]))[0] if r.offset == appended.offset]
    assert appended.timestamp == r.timestamp


async def test_a_record_too_large_for_the_log_is_refused_alone(kafka: str, topic: str) -> None:
    async with writing(kafka) as writer:
        before = writer.append(topic, 0, "k", b"before")
        huge = writer.append(topic, 0, "k", bytes(records.MAX_RECORD_BYTES))
        headers = writer.append(topic, 0, "k", b"", [("h", bytes(records.MAX_RECORD_BYTES))])
        after = writer.append(topic, 0, "k", b"after")
        for refused in (huge, headers):
            with pytest.raises(log.TooLarge):
                await refused
        assert (await before).offset + 1 == (await after).offset
        assert (
            writer.incarnation == 1
        )  # a new producer would have failed everybody's records in flight


async def test_the_largest_record_that_is_accepted_fits(kafka: str, topic: str) -> None:
    value = secrets.token_bytes(records.MAX_RECORD_BYTES - log.RECORD_OVERHEAD_BYTES - 4)
    assert await fill(kafka, topic, [value, b"next"]) == [0, 1]
    assert (await read_all(kafka, topic, [0]))[0][0].value == value


async def test_an_append_to_an_unknown_partition_fails_and_the_writer_goes_on(
    kafka: str, topic: str
) -> None:
    async with writing(kafka) as writer:
        await writer.append(topic, 0, "k", b"one")
        with pytest.raises(log.AppendFailed):
            await writer.append(topic, PARTITIONS, "k", b"nowhere")
        assert (await writer.append(topic, 0, "k", b"two")).offset == 1
        assert writer.incarnation == 2


async def test_a_caller_that_stops_waiting_disturbs_nobody(kafka: str, topic: str) -> None:
    async with writing(kafka) as writer:
        sent = [writer.append(topic, 0, "k", str(i).encode()) for i in range(100)]
        for future in sent[::2]:
            future.cancel()
        assert len(await asyncio.gather(*sent[1::2])) == 50
        await until(lambda: not writer.backlog, 5)


async def test_a_failed_send_replaces_the_producer_also_when_nobody_waits_for_it(
    kafka: str, topic: str
) -> None:
    """Its sequence numbers are used up: every later record of that partition would fail, one
    producer too late."""
    async with writing(kafka) as writer:
        await writer.append(topic, 0, "k", b"one")
        assert writer._producer is not None

        async def lose(*_: object, **__: object) -> asyncio.Future[None]:
            sent: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_soon(
                sent.set_exception, aiokafka.errors.RequestTimedOutError()
            )
            return sent

        writer._producer.send = lose
        dropped = writer.append(topic, 0, "k", b"two")
        await asyncio.sleep(0)
        dropped.cancel()
        await until(lambda: writer.incarnation == 2, 10)
        assert (await asyncio.wait_for(writer.append(topic, 0, "k", b"three"), 10)).offset == 1


async def test_a_sender_that_dies_quietly_is_noticed(kafka: str, topic: str) -> None:
    replaced: list[str] = []
    async with writing(kafka, on_replaced=replaced.append) as writer:
        await writer.append(topic, 0, "k", b"one")
        assert writer._producer is not None
        writer._producer._sender._sender_task.cancel()
        doomed = writer.append(topic, 0, "k", b"two")
        with pytest.raises(log.AppendFailed):
            await asyncio.wait_for(doomed, 5)
        await asyncio.wait_for(writer.append(topic, 0, "k", b"three"), 10)
    assert replaced == ["sender task ended"]


async def test_an_append_while_there_is_no_broker_fails_within_its_deadline() -> None:
    async with writing("127.0.0.1:1", deadline_s=1.5) as writer:
        started = time.monotonic()
        future = writer.append("t", 0, "k", b"v")
        await asyncio.sleep(0.7)
        later = writer.append("t", 0, "k", b"v")
        assert (
            not future.done()
        )  # a broker that restarts within the deadline costs nothing but time
        with pytest.raises(log.AppendFailed):
            await future
        assert 1.4 < time.monotonic() - started < 3.5
        assert not later.done()  # each has its own deadline
        with pytest.raises(log.AppendFailed):
            await later
        assert not writer.connected


async def test_nothing_is_accepted_after_the_end_and_nobody_waits_for_ever(
    kafka: str, topic: str
) -> None:
    writer = log.Writer(kafka)
    task = asyncio.create_task(writer.run())
    await writer.append(topic, 0, "k", b"v")
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    with pytest.raises(log.AppendFailed):
        await asyncio.wait_for(writer.append(topic, 0, "k", b"v"), 1)


async def test_a_cancelled_writer_leaves_no_task_behind(kafka: str, topic: str) -> None:
    before = asyncio.all_tasks()
    for wait in (0.0, 0.005, 0.02, 0.1):
        writer = log.Writer(kafka)
        task = asyncio.create_task(writer.run())
        pending = writer.append(topic, 0, "k", b"v")
        await asyncio.sleep(wait)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        assert pending.done()
    await asyncio.sleep(0.1)
    assert asyncio.all_tasks() == before


# ---- A broker that dies --------------------------------------------------------------------------


class Mortal:
    """A broker of this module's own, to be killed, from within a running loop. Its one thread lives
    as long as it does: a child whose starting thread is gone gets its parent-death signal."""

    def __init__(self, broker: local.LocalKafka) -> None:
        self.bootstrap = broker.bootstrap
        self._broker = broker
        self._thread = concurrent.futures.ThreadPoolExecutor(1)

    async def kill(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, self._broker.kill)

    async def start(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, self._broker.start)


@pytest.fixture(scope="module")
def mortal() -> Iterator[Mortal]:
    with local.LocalKafka(local.QUICK_RETURN) as broker:
        yield Mortal(broker)


@pytest.mark.timeout(120)
async def test_no_acknowledged_record_is_lost_doubled_or_reordered_when_the_broker_is_killed(
    mortal: Mortal,
) -> None:
    topic = await create(mortal.bootstrap, fresh())
    acknowledged: dict[int, list[tuple[int, bytes]]] = {p: [] for p in range(PARTITIONS)}
    failed = 0
    async with writing(mortal.bootstrap) as writer:
        stop = asyncio.Event()

        async def produce(partition: int) -> None:
            nonlocal failed
            for i in itertools.count():
                if stop.is_set():
                    return
                value = f"{partition}-{i}".encode()
                try:
                    appended = await writer.append(topic, partition, "k", value)
                except log.AppendFailed:
                    failed += 1  # ambiguous: it may lie in the log or not, and is not repeated
                    await asyncio.sleep(0.05)
                else:
                    acknowledged[partition].append((appended.offset, value))

        producers = [asyncio.create_task(produce(p)) for p in range(PARTITIONS)]
        await until(lambda: sum(map(len, acknowledged.values())) > 100, 60)
        await mortal.kill()
        at_kill = sum(map(len, acknowledged.values()))
        await asyncio.sleep(0.5)
        await mortal.start()
        await until(lambda: sum(map(len, acknowledged.values())) > at_kill + 200, 60)
        stop.set()
        await asyncio.gather(*producers)
        assert failed == 0 or writer.incarnation > 1
    found = await read_all(mortal.bootstrap, topic)
    for partition, told in acknowledged.items():
        values = {r.offset: r.value for r in found[partition]}
        for offset, value in told:
            if offset >= 0:  # aiokafka reports -1 for a retry that the broker had already taken
                assert values[offset] == value
        written = [int((r.value or b"").split(b"-")[1]) for r in found[partition]]
        assert written == sorted(set(written)), "doubled or reordered"
        assert {value for _, value in told} <= set(values.values()), "lost"


@pytest.mark.timeout(120)
async def test_while_the_broker_is_away_appends_fail_in_time_and_stopping_is_bounded(
    mortal: Mortal,
) -> None:
    topic = await create(mortal.bootstrap, fresh())
    before = asyncio.all_tasks()
    writer = log.Writer(mortal.bootstrap, deadline_s=2)
    task = asyncio.create_task(writer.run())
    await writer.append(topic, 0, "k", b"v")
    try:
        await mortal.kill()
        started = time.monotonic()
        doomed = [
            writer.append(topic, p, "k", bytes(50_000)) for p in range(PARTITIONS) for _ in range(5)
        ]
        results = await asyncio.gather(*doomed, return_exceptions=True)
        assert {type(result) for result in results} == {log.AppendFailed}
        assert time.monotonic() - started < 5
        late = writer.append(topic, 0, "k", b"late")
        started = time.monotonic()
        await writer.stop(1)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        assert time.monotonic() - started < 8
        assert isinstance(late.exception(), log.AppendFailed)
        await asyncio.sleep(0.2)
        assert asyncio.all_tasks() == before
    finally:
        await mortal.start()
    await asyncio.sleep(1)
    assert [r.value for r in (await read_all(mortal.bootstrap, topic, [0]))[0]] == [
        b"v"
    ]  # nothing that had failed came after all


async def test_a_reader_says_how_far_it_is_behind_and_forgets_what_it_left(
    kafka: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "MAX_POLL_RECORDS", 1)
    topic = await create(kafka, fresh())
    await fill(kafka, topic, [b"a", b"b", b"c"])
    reader = log.Reader(kafka, topic)

    def lag() -> list[float]:
        return [
            s.value
            for m in telemetry.KAFKA_LAG.collect()
            for s in m.samples
            if s.labels == {"topic": topic, "partition": "0"}
        ]

    try:
        reader.follow(0, 0)
        await polled(reader, 1)
        assert lag() == [2]
        await polled(reader, 2)
        assert lag() == [0]
        reader.leave(0)
        await reader.poll()
        assert lag() == []
    finally:
        await reader.stop()


@pytest.mark.timeout(120)
async def test_readers_replays_and_questions_go_on_after_the_broker_came_back(
    mortal: Mortal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "ANSWER_DEADLINE_S", 2.0)
    topic = await create(mortal.bootstrap, fresh())
    await fill(mortal.bootstrap, topic, [b"a", b"b"])
    reader, replays, offsets = (
        log.Reader(mortal.bootstrap, topic),
        log.Replays(mortal.bootstrap, size=1),
        log.Offsets(mortal.bootstrap),
    )
    try:
        reader.follow(0, 0)
        assert len(await polled(reader, 2)) == 2
        assert [len(batch) async for batch in replays.read(topic, 0, 0, 2)] == [2]
        assert await offsets.ends(topic, [0]) == {0: 2}
        await mortal.kill()
        for ask in (
            offsets.ends(topic, [0]),
            offsets.committed("no-such-group"),
            _drained(replays.read(topic, 0, 0, 2)),
        ):
            with pytest.raises(log.LogUnavailable):
                await asyncio.wait_for(ask, 6)
        await mortal.start()
        await fill(mortal.bootstrap, topic, [b"c"])
        got: list[log.Record] = []
        async with asyncio.timeout(30):
            while not got:
                with contextlib.suppress(log.LogUnavailable):
                    got = await reader.poll()
            assert [r.value for r in got] == [b"c"]
            assert await _persist(lambda: offsets.ends(topic, [0])) == {0: 3}
            assert [
                r.value for r in await _persist(lambda: _drained(replays.read(topic, 0, 1, 3)))
            ] == [b"b", b"c"]
    finally:
        for part in (reader, replays, offsets):
            await part.stop()


async def _drained(batches: AsyncIterator[list[log.Record]]) -> list[log.Record]:
    return [r async for batch in batches for r in batch]


async def _persist(ask: Callable[[], Awaitable[T]]) -> T:
    while True:
        try:
            return await ask()
        except log.LogUnavailable:
            await asyncio.sleep(0.1)


# ---- Reader --------------------------------------------------------------------------------------


async def test_a_reader_returns_records_in_order_from_where_it_was_told(
    kafka: str, topic: str
) -> None:
    await fill(kafka, topic, [str(i).encode() for i in range(50)])
    reader = log.Reader(kafka, topic)
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
    kafka: str, topic: str
) -> None:
    reader = log.Reader(kafka, topic, wait_ms=20)
    seen: dict[int, list[int]] = {p: [] for p in range(PARTITIONS)}
    rng = random.Random(5)
    try:
        async with writing(kafka) as writer, asyncio.timeout(50):
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


async def test_a_partition_taken_at_run_time_disturbs_no_other(kafka: str, topic: str) -> None:
    await fill(kafka, topic, [b"x"] * 30, partition=1)
    reader = log.Reader(kafka, topic)
    try:
        async with writing(kafka) as writer:
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


async def test_what_is_left_and_taken_again_before_a_poll_counts_once(
    kafka: str, topic: str
) -> None:
    await fill(kafka, topic, [b"0", b"1", b"2"])
    reader = log.Reader(kafka, topic)
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


async def test_a_reader_of_nothing_waits_quietly_and_starts_when_it_is_given_something(
    kafka: str, topic: str
) -> None:
    await fill(kafka, topic, [b"x"])
    reader = log.Reader(kafka, topic)
    try:
        assert await reader.poll() == []
        reader.follow(0, 0)
        assert len(await polled(reader, 1)) == 1
    finally:
        await reader.stop()


async def test_a_position_below_the_logs_beginning_is_history_lost_and_others_go_on(
    kafka: str, topic: str
) -> None:
    await fill(kafka, topic, [b"x"] * 10)
    await fill(kafka, topic, [b"y"] * 3, partition=1)
    await delete_below(kafka, topic, 0, 5)
    reader = log.Reader(kafka, topic)
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


async def test_a_lost_partition_costs_the_others_no_record(kafka: str, topic: str) -> None:
    await fill(kafka, topic, [b"x"] * 10)
    await delete_below(kafka, topic, 0, 5)
    await fill(kafka, topic, [b"y"] * 500, partition=1)
    reader = log.Reader(kafka, topic)
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


async def test_a_reader_without_a_broker_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "ANSWER_DEADLINE_S", 1.0)
    reader = log.Reader("127.0.0.1:1", "t")
    reader.follow(0, 0)
    started = time.monotonic()
    with pytest.raises(log.LogUnavailable):
        await reader.poll()
    assert time.monotonic() - started < 5


async def test_keys_and_values_of_any_kind_pass_through(kafka: str, topic: str) -> None:
    """Garbage is for the fold to judge; the reader must hand it on, a record without key or value
    included."""
    producer = aiokafka.AIOKafkaProducer(bootstrap_servers=kafka)
    await producer.start()
    kinds: list[tuple[bytes | None, bytes | None]] = [
        (b"\xff\x00", b"v"),
        (None, b"v"),
        (b"k", None),
        (b"", b""),
        (b"k" * 5000, b"\x80"),
    ]
    try:
        for key, value in kinds:
            await producer.send_and_wait(topic, value=value, key=key, partition=0)
    finally:
        await producer.stop()
    reader, replays = log.Reader(kafka, topic), log.Replays(kafka)
    try:
        reader.follow(0, 0)
        assert [(r.key, r.value) for r in await polled(reader, 5)] == kinds
        assert [(r.key, r.value) for r in await _drained(replays.read(topic, 0, 0, 5))] == kinds
    finally:
        await reader.stop()
        await replays.stop()
    assert all(records.decode_token(value) is None for _, value in kinds)


# ---- Replays -------------------------------------------------------------------------------------


async def test_a_replay_returns_exactly_its_range(kafka: str, topic: str) -> None:
    await fill(kafka, topic, [str(i).encode() for i in range(5000)])
    replays = log.Replays(kafka, size=1)
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
            got = await _drained(replays.read(topic, 0, start, end))
            assert [r.offset for r in got] == list(range(start, end))
    finally:
        await replays.stop()


async def test_more_replays_than_connections_all_come_to_an_end(kafka: str, topic: str) -> None:
    await fill(kafka, topic, [str(i).encode() for i in range(300)])
    replays = log.Replays(kafka, size=2)
    await replays.start()
    try:
        async with asyncio.timeout(30):
            all_of_them = await asyncio.gather(
                *(_drained(replays.read(topic, 0, i, 300)) for i in range(20))
            )
        assert [len(got) for got in all_of_them] == [300 - i for i in range(20)]
    finally:
        await replays.stop()


async def test_a_replay_that_is_left_or_cancelled_gives_its_connection_back(
    kafka: str, topic: str
) -> None:
    await fill(kafka, topic, [bytes(1000)] * 5000)
    before = asyncio.all_tasks()
    replays = log.Replays(kafka, size=1)
    try:
        async with contextlib.aclosing(replays.read(topic, 0, 0, 5000)) as batches:
            async for _ in batches:
                break
        for wait in (0.0, 0.001, 0.004, 0.01, 0.03, 0.1):  # while it connects, and while it reads
            task = asyncio.create_task(_drained(replays.read(topic, 0, 0, 5000)))
            await asyncio.sleep(wait)
            task.cancel()
            await asyncio.wait({task})
        async with asyncio.timeout(15):
            assert len(await _drained(replays.read(topic, 0, 10, 20))) == 10
    finally:
        await replays.stop()
    await asyncio.sleep(0.1)
    assert asyncio.all_tasks() == before


async def test_a_replay_that_waits_for_a_connection_ends_when_the_replays_are_stopped(
    kafka: str, topic: str
) -> None:
    await fill(kafka, topic, [b"x"] * 10)
    replays = log.Replays(kafka, size=1)
    holder = replays.read(topic, 0, 0, 10)
    await anext(holder)
    waiting = [asyncio.create_task(_drained(replays.read(topic, 0, 0, 10))) for _ in range(3)]
    await asyncio.sleep(0.1)
    await replays.stop()
    await holder.aclose()
    done, _ = await asyncio.wait(waiting, timeout=5)
    assert [type(task.exception()) for task in done] == [log.LogUnavailable] * 3
    with pytest.raises(log.LogUnavailable):
        await asyncio.wait_for(_drained(replays.read(topic, 0, 0, 10)), 2)


async def test_a_replay_below_the_logs_beginning_is_history_lost(kafka: str, topic: str) -> None:
    await fill(kafka, topic, [b"x"] * 10)
    await delete_below(kafka, topic, 0, 5)
    replays = log.Replays(kafka, size=1)
    try:
        with pytest.raises(log.HistoryLost):
            await _drained(replays.read(topic, 0, 4, 10))
        assert (
            len(await _drained(replays.read(topic, 0, 5, 10))) == 5
        )  # and the connection serves on
    finally:
        await replays.stop()


async def test_a_replay_beyond_the_end_says_that_there_is_no_answer(
    kafka: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(kafka, topic, [b"x"] * 3)
    monkeypatch.setattr(clients, "ANSWER_DEADLINE_S", 1.0)
    replays = log.Replays(kafka, size=1)
    try:
        got: list[log.Record] = []
        with pytest.raises(log.LogUnavailable):  # noqa: PT012 (what came before the error counts)
            async for batch in replays.read(topic, 0, 0, 5):
                got += batch
        assert [r.offset for r in got] == [0, 1, 2]
    finally:
        await replays.stop()


async def test_a_replay_without_a_broker_says_so_and_keeps_its_places(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(clients, "ANSWER_DEADLINE_S", 1.0)
    replays = log.Replays("127.0.0.1:1", size=1)
    for _ in range(3):  # the second would wait for ever if the first had lost the place
        with pytest.raises(log.LogUnavailable):
            await asyncio.wait_for(_drained(replays.read("t", 0, 0, 1)), 5)
    await replays.stop()


@pytest.mark.timeout(120)
async def test_holes_that_compaction_left_are_read_over(kafka: str) -> None:
    """The cleaner needs closed segments, so values are large; the last records of a range may be
    the ones that are gone."""
    topic = await create(
        kafka,
        fresh(),
        1,
        **{
            "cleanup.policy": "compact",
            "segment.bytes": "1048576",
            "min.cleanable.dirty.ratio": "0.01",
            "max.compaction.lag.ms": "1000",
            "min.compaction.lag.ms": "0",
        },
    )
    async with writing(kafka) as writer:
        await writer.append(topic, 0, "alone", b"stays")
        for _ in range(15):
            await asyncio.gather(
                *(
                    writer.append(topic, 0, f"k{i % 5}", secrets.token_bytes(10_000))
                    for i in range(20)
                )
            )
    end = 301
    reader, replays = log.Reader(kafka, topic), log.Replays(kafka)
    try:
        held = await _until_compacted(replays, topic, end)
        assert held[-1] == end - 1
        hole = next(a for a, b in itertools.pairwise(held) if b > a + 1)
        assert [r.offset for r in await _drained(replays.read(topic, 0, hole + 1, hole + 2))] == []
        assert [r.offset for r in await _drained(replays.read(topic, 0, 0, end))] == held
        reader.follow(0, 0)
        assert [r.offset for r in await polled(reader, len(held))] == held
        assert reader.positions == {0: end}
    finally:
        await reader.stop()
        await replays.stop()


async def _until_compacted(replays: log.Replays, topic: str, end: int) -> list[int]:
    before: list[int] = []
    held: list[int] = []
    async with asyncio.timeout(90):
        while len(held) in (0, end) or held != before:  # the cleaner may be at work still
            before, held = held, [r.offset for r in await _drained(replays.read(topic, 0, 0, end))]
            await asyncio.sleep(2)
    return held


# ---- Offsets -------------------------------------------------------------------------------------


async def test_ends_beginnings_and_partition_counts(kafka: str, topic: str) -> None:
    await fill(kafka, topic, [b"x"] * 7, partition=3)
    await delete_below(kafka, topic, 3, 2)
    offsets = log.Offsets(kafka)
    try:
        assert await offsets.ends(topic, [0, 3]) == {0: 0, 3: 7}
        assert await offsets.beginnings(topic, [0, 3]) == {0: 0, 3: 2}
        assert await offsets.partitions(topic) == PARTITIONS
        assert await offsets.ends(topic, []) == {}
        assert await asyncio.gather(*(offsets.ends(topic, [3]) for _ in range(50))) == [{3: 7}] * 50
    finally:
        await offsets.stop()


async def test_a_group_that_never_committed_has_no_offsets(kafka: str) -> None:
    offsets = log.Offsets(kafka)
    try:
        assert await offsets.committed(fresh("group")) == {}
    finally:
        await offsets.stop()


async def test_questions_without_a_broker_are_answered_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(clients, "ANSWER_DEADLINE_S", 1.0)
    offsets = log.Offsets("127.0.0.1:1")
    started = time.monotonic()
    for ask in (offsets.ends("t", [0]), offsets.partitions("t"), offsets.committed("g")):
        with pytest.raises(log.LogUnavailable):
            await ask
    assert time.monotonic() - started < 8
    await offsets.stop()


async def test_one_question_that_fails_does_not_take_the_connection_from_another(
    kafka: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "ANSWER_DEADLINE_S", 1.5)
    offsets = log.Offsets(kafka)
    try:
        assert await offsets.ends(topic, [0]) == {0: 0}
        with pytest.raises(log.LogUnavailable):
            await offsets.ends(fresh("missing"), [0])
        assert await offsets.ends(topic, [0]) == {0: 0}
    finally:
        await offsets.stop()


# ---- GroupConsumer ---------------------------------------------------------------------------------


class Member:
    """One worker's membership, polled in the background as a worker does.

    Attributes:
        owned: partitions as the callbacks told.
        on_revoke: awaited within the revoke callback.
        revocations: how often partitions were taken away; what is owned may be back before anyone
            looks.
    """

    def __init__(self, bootstrap: str, group: str, names: list[str]) -> None:
        self.owned: set[tuple[str, int]] = set()
        self.taken: list[log.Record] = []
        self.revocations = 0
        self.revoked_commit: dict[tuple[str, int], tuple[int, str]] | None = None
        self.revoked_answer: bool | None = None
        self.consumer = log.GroupConsumer(
            bootstrap,
            group,
            names,
            session_timeout_ms=6000,
            assigned=self._assigned,
            revoked=self._revoked,
            client_id=fresh("member"),
        )
        self._task: asyncio.Task[None] | None = None

    async def _assigned(self, partitions: set[tuple[str, int]]) -> None:
        self.owned = set(partitions)

    async def _revoked(self, partitions: set[tuple[str, int]]) -> None:
        if self.revoked_commit is not None and partitions:
            self.revoked_answer = await self.consumer.commit(self.revoked_commit)
            self.revoked_commit = None
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
                self.taken += await self.consumer.poll(100)


@pytest.fixture
async def classes(kafka: str) -> list[str]:
    pool = fresh("pool")
    return [await create(kafka, f"{pool}.{priority}") for priority in topics.CLASSES]


def whole(names: list[str]) -> set[tuple[str, int]]:
    return {(name, p) for name in names for p in range(PARTITIONS)}


async def test_two_members_share_evenly_with_equal_numbers_of_all_classes_on_one(
    kafka: str, classes: list[str]
) -> None:
    group = fresh("group")
    async with Member(kafka, group, classes) as one:
        await until(lambda: one.owned == whole(classes))
        async with Member(kafka, group, classes) as two:
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
                assert member.consumer.assignment() == member.owned
        await until(lambda: one.owned == whole(classes))


async def test_requests_are_taken_where_no_one_paused_and_again_after_resume(
    kafka: str, classes: list[str]
) -> None:
    tp = (classes[0], 0)
    async with Member(kafka, fresh("group"), classes) as member:
        await until(lambda: member.owned)
        member.consumer.pause([tp, ("no-such-topic", 99)])
        await fill(kafka, classes[0], [b"held"], partition=0)
        await fill(kafka, classes[0], [b"taken"], partition=1)
        await until(lambda: member.taken)
        await asyncio.sleep(0.3)
        assert [r.value for r in member.taken] == [b"taken"]
        member.consumer.resume([tp, ("no-such-topic", 99)])
        await until(lambda: len(member.taken) == 2)
        member.consumer.seek(*tp, 0)
        member.consumer.seek("no-such-topic", 99, 0)  # just revoked: ignored, like pausing it
        await until(lambda: len(member.taken) == 3)
        assert [r.value for r in member.taken] == [b"taken", b"held", b"held"]


async def test_a_commit_keeps_its_metadata_and_a_successor_starts_there(
    kafka: str, classes: list[str]
) -> None:
    group, tp = fresh("group"), (classes[0], 2)
    await fill(kafka, classes[0], [b"0", b"1", b"2"], partition=2)
    offsets = log.Offsets(kafka)
    try:
        async with Member(kafka, group, classes) as one:
            await until(lambda: len(one.taken) == 3)
            assert await one.consumer.commit({tp: (2, "t=17 é")})
            assert await one.consumer.commit({})
        assert await offsets.committed(group) == {tp: (2, "t=17 é")}
        async with Member(kafka, group, classes) as two:
            await until(lambda: two.taken)
            await asyncio.sleep(0.2)
            assert [r.value for r in two.taken] == [b"2"]
    finally:
        await offsets.stop()


async def test_a_commit_within_the_revocation_lands_and_one_after_it_is_refused(
    kafka: str, classes: list[str]
) -> None:
    """The broker takes a commit of any member for any partition: one that outlived its assignment
    would move the next owner's offset back."""
    group = fresh("group")
    for p in range(PARTITIONS):
        await fill(kafka, classes[0], [b"x"] * 10, partition=p)
    offsets = log.Offsets(kafka)
    try:
        async with Member(kafka, group, classes) as one:
            await until(lambda: one.owned == whole(classes))
            one.revoked_commit = {(classes[0], p): (3, "at revocation") for p in range(PARTITIONS)}
            async with Member(kafka, group, classes) as two:
                await until(lambda: len(one.owned) == len(two.owned) == PARTITIONS)
                assert one.revoked_answer is True
                moved = next(tp for tp in two.owned if tp[0] == classes[0])
                kept = next(tp for tp in one.owned if tp[0] == classes[0])
                assert (await offsets.committed(group))[moved] == (3, "at revocation")
                assert await two.consumer.commit({moved: (8, "new owner")})
                assert await one.consumer.commit({moved: (5, "stale")}) is False
                assert await one.consumer.commit({moved: (5, "stale"), kept: (4, "mine")}) is False
                committed = await offsets.committed(group)
                assert committed[moved] == (8, "new owner")
                assert committed[kept] == (
                    4,
                    "mine",
                )  # what it still owns is not held back by what it lost
    finally:
        await offsets.stop()


async def test_a_group_consumer_that_is_stopped_while_it_joins_leaves_no_member_behind(
    kafka: str, classes: list[str]
) -> None:
    """A member that nobody polls would hold partitions until its session ends."""
    group = fresh("group")
    before = asyncio.all_tasks()
    for wait in (0.0, 0.02, 0.1):
        member = Member(kafka, group, classes)
        joining = asyncio.create_task(member.consumer.start())
        await asyncio.sleep(wait)
        joining.cancel()
        await asyncio.wait({joining})
        await member.consumer.stop()
    stopped = Member(kafka, group, classes)
    joining = asyncio.create_task(stopped.consumer.start())
    await asyncio.sleep(0)
    await stopped.consumer.stop()
    await asyncio.wait({joining})
    await asyncio.sleep(0.1)
    assert asyncio.all_tasks() == before
    async with Member(kafka, group, classes) as member:
        await until(lambda: member.owned == whole(classes), 15)


@pytest.mark.timeout(150)
async def test_a_membership_that_broke_is_given_up_told_and_joined_again(
    kafka: str, classes: list[str]
) -> None:
    """aiokafka's coordinator fails once and for all: the worker stayed, took nothing and looked
    alive."""
    await fill(kafka, classes[0], [b"x"])
    async with Member(kafka, fresh("group"), classes) as member:
        await until(lambda: len(member.taken) == 1)
        consumer, before = member.consumer._consumer, member.revocations
        assert consumer is not None
        consumer._coordinator._coordination_task.cancel()
        await asyncio.sleep(0)
        consumer._coordinator._set_error = None

        def broken() -> None:
            raise aiokafka.errors.GroupAuthorizationFailedError("group")

        consumer._coordinator.check_errors = broken
        await until(lambda: member.revocations > before)
        await until(lambda: member.owned == whole(classes), 60)
        await until(lambda: len(member.taken) == 2)  # nothing was committed: it comes again


# ---- Topics and layout ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bare() -> Iterator[local.LocalKafka]:
    """A broker without topics."""
    with local.LocalKafka() as broker:
        yield broker


async def partition_counts(bootstrap: str, *expected: str) -> dict[str, int]:
    """Partitions by topic; a topic just made is known to the broker's metadata a moment later."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        for _ in range(50):
            counts = {t["topic"]: len(t["partitions"]) for t in await admin.describe_topics()}
            if counts.keys() >= set(expected):
                break
            await asyncio.sleep(0.1)
        return counts
    finally:
        await admin.close()


@pytest.mark.timeout(120)
async def test_topics_are_applied_once_and_a_new_pool_fits_the_log_that_is_there(
    bare: local.LocalKafka,
) -> None:
    await log.wait_until_ready(bare.bootstrap)
    with pytest.raises(log.LogUnavailable, match="topics apply"):
        await log.layout(bare.bootstrap)
    created = await asyncio.gather(
        *(log.apply_topics(bare.bootstrap, ["default"], partitions=5) for _ in range(2))
    )
    assert sorted(created[0] + created[1]) == sorted(
        row.name for row in topics.table(["default"])
    )  # each by one of the two
    first = await log.layout(bare.bootstrap)
    assert first.partitions == 5
    assert first.tag == ids.incarnation_tag(first.incarnation)
    named = [
        records.decode_meta(r.value) for r in (await read_all(bare.bootstrap, topics.META, [0]))[0]
    ]
    assert named == [records.Incarnation(first.incarnation)]

    assert await log.apply_topics(bare.bootstrap, ["default"], partitions=5) == []
    assert await log.apply_topics(bare.bootstrap, ["default"], partitions=9) == []
    added = await log.apply_topics(bare.bootstrap, ["default", "large"], partitions=9)
    assert sorted(added) == [
        topics.requests("large", "batch"),
        topics.requests("large", "interactive"),
    ]
    counts = await partition_counts(bare.bootstrap, *added)
    assert {
        counts[name] for name in (*added, topics.TOKENS, topics.requests("default", "batch"))
    } == {5}
    assert (counts[topics.META], counts[topics.CONVERSATIONS]) == (1, 6)
    assert await log.layout(bare.bootstrap) == first


@pytest.mark.timeout(120)
async def test_a_log_that_was_deleted_and_made_anew_is_another_log() -> None:
    with local.LocalKafka() as broker:
        await log.apply_topics(broker.bootstrap, ["default"], partitions=2)
        first = await log.layout(broker.bootstrap)
        admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
        await admin.start()
        await admin.delete_topics([topics.TOKENS])
        await admin.close()
        for _ in range(100):
            if topics.TOKENS not in await partition_counts(broker.bootstrap):
                break
            await asyncio.sleep(0.1)
        with pytest.raises(log.LogUnavailable, match="topics apply"):
            await log.layout(broker.bootstrap)
        assert await log.apply_topics(broker.bootstrap, ["default"], partitions=3) == [
            topics.TOKENS
        ]
        second = await log.layout(broker.bootstrap)
        assert second.incarnation != first.incarnation
        assert second.tag != first.tag


async def test_a_broker_that_does_not_count_itself_yet_is_asked_again(
    kafka: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Symptom: on a busy machine, for a moment after its start, a broker's metadata names no broker
    at all."""
    nobody, asked = [True, True], []
    choose = AIOKafkaClient.get_random_node

    def no_broker_at_first(client: AIOKafkaClient) -> int | None:
        asked.append(client)
        return None if nobody and nobody.pop() else choose(client)

    monkeypatch.setattr(AIOKafkaClient, "get_random_node", no_broker_at_first)
    assert (await log.layout(kafka)).partitions > 0
    assert len(asked) >= 3

    nobody[:] = [True] * 1_000
    with pytest.raises(log.LogUnavailable, match="no broker of it is ready"):
        await asyncio.wait_for(log.layout(kafka), 15)


async def test_topic_settings_reach_the_broker(kafka: str) -> None:
    from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

    admin = AIOKafkaAdminClient(bootstrap_servers=kafka)
    await admin.start()
    try:
        for row in topics.table(["default"]):
            [answer] = await admin.describe_configs(
                [ConfigResource(ConfigResourceType.TOPIC, row.name)]
            )
            settings = {entry[0]: entry[1] for entry in answer.resources[0][4]}
            assert {name: settings[name] for name in row.config} == row.config, row.name
    finally:
        await admin.close()


async def test_an_absent_broker_is_named() -> None:
    for ask in (log.layout("127.0.0.1:1"), log.apply_topics("127.0.0.1:1", ["default"])):
        with pytest.raises(log.LogUnavailable):
            await asyncio.wait_for(ask, 15)
    with pytest.raises(log.LogUnavailable, match=r"127\.0\.0\.1:1 is not ready"):
        await log.wait_until_ready("127.0.0.1:1", 0.5)


async def test_a_broker_that_accepts_and_never_answers_is_waited_for_no_longer_than_asked() -> None:
    """What a stopped (SIGSTOP) broker looks like."""
    with socket.create_server(("127.0.0.1", 0)) as listener:  # the kernel accepts, and nobody reads
        async with asyncio.timeout(30):  # the client library by itself waits 40 s
            with pytest.raises(log.LogUnavailable):
                await log.wait_until_ready(f"127.0.0.1:{listener.getsockname()[1]}", 1)
