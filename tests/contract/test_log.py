"""The Kafka client keeps the log's contract on a real broker, and survives the broker's death."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import secrets
import socket
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import aiokafka
import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic, RecordsToDelete
from aiokafka.client import AIOKafkaClient
from aiokafka.consumer import fetcher

from tailrace import log, telemetry
from tailrace.log import aiokafka_internals, client_api, clients, compacted, interfaces, readers
from tailrace.protocol import ids, records, topics
from tests.contract.conftest import Mortal
from tests.support import collected, log_contract, waiting

AWAY_S = 0.5  # how long the broker is down
# Far above the writer's deadline of 2 s, and below the 40 s that the client library waits itself.
BOUNDED_S = 30.0
CLEANER_PAUSE_S = 2.0  # two reads this far apart that agree: the log cleaner has finished

PARTITIONS = log_contract.PARTITIONS
T = TypeVar("T")


async def create(bootstrap: str, name: str, partitions: int = PARTITIONS, **config: str) -> str:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        answer = await admin.create_topics([NewTopic(name, partitions, 1, topic_configs=config)])
        assert [error[1] for error in answer.topic_errors] == [0]

        async def led() -> bool:
            [found] = await admin.describe_topics([name])
            return [p["leader"] >= 0 for p in found["partitions"]] == [True] * partitions

        # A busy broker has created a topic before it can say so; an append would wait for it.
        await waiting.eventually(led, f"{name} has leaders")
    finally:
        await admin.close()
    return name


@pytest.fixture
async def topic(kafka: str) -> str:
    return await create(kafka, log_contract.unique())


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


class KafkaBackend:
    """`log_contract.LogBackend` over a broker."""

    def __init__(
        self,
        bootstrap: str,
        answer_deadline_s: float = 10.0,
        api: client_api.ClientApi | None = None,
    ) -> None:
        self._bootstrap = bootstrap
        self._api = api
        self._answer: dict[str, Any] = {"answer_deadline_s": answer_deadline_s, "api": api}

    def writer(self, **settings: Any) -> interfaces.RecordWriter:
        return log.Writer(self._bootstrap, api=self._api, **settings)

    def reader(self, topic: str, **settings: Any) -> interfaces.TailReader:
        return log.Reader(self._bootstrap, topic, **self._answer, **settings)

    def replays(self, size: int = 2) -> interfaces.RangeReader:
        return log.Replays(self._bootstrap, size=size, **self._answer)

    def offsets(self) -> interfaces.OffsetQueries:
        return log.Offsets(self._bootstrap, **self._answer)

    def group_consumer(
        self,
        group: str,
        names: Sequence[str],
        *,
        assigned: interfaces.RebalanceCallback,
        revoked: interfaces.RebalanceCallback,
    ) -> interfaces.GroupMember:
        return log.GroupConsumer(
            self._bootstrap,
            group,
            names,
            session_timeout_ms=6000,
            assigned=assigned,
            revoked=revoked,
            client_id=log_contract.unique("member"),
            api=self._api,
        )

    async def create_topic(self) -> str:
        return await create(self._bootstrap, log_contract.unique())

    async def put(self, topic: str, partition: int, key: bytes | None, value: bytes | None) -> None:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=self._bootstrap)
        await producer.start()
        try:
            await producer.send_and_wait(topic, value=value, key=key, partition=partition)
        finally:
            await producer.stop()

    async def held(self, topic: str, partition: int) -> list[log.Record]:
        return (await read_all(self._bootstrap, topic, [partition]))[partition]

    async def delete_below(self, topic: str, partition: int, offset: int) -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=self._bootstrap)
        await admin.start()
        try:
            await admin.delete_records(
                {aiokafka.TopicPartition(topic, partition): RecordsToDelete(offset)}
            )
        finally:
            await admin.close()

    def impatient(self) -> KafkaBackend:
        return KafkaBackend(self._bootstrap, 1.5, self._api)

    def unreachable(self) -> KafkaBackend:
        return KafkaBackend("127.0.0.1:1", 1.0, self._api)


class TestContract(log_contract.LogContract):
    """With aiokafka's private parts; nightly also on its public API only."""

    @pytest.fixture(
        params=[
            pytest.param(aiokafka_internals.InternalApi, id="internal"),
            pytest.param(client_api.PublicApi, id="public", marks=pytest.mark.nightly),
        ]
    )
    def backend(self, kafka: str, request: pytest.FixtureRequest) -> KafkaBackend:
        return KafkaBackend(kafka, api=request.param())


@pytest.fixture(autouse=True)
def nothing_is_left_open() -> Iterator[None]:
    """No client may outlive the part that made it: aiokafka warns of unclosed ones when they are
    collected, and a warning is an error here."""
    yield
    gc.collect()


# ---- Writer --------------------------------------------------------------------------------------


async def test_the_acknowledged_time_is_the_brokers(kafka: str) -> None:
    async with log_contract.writing(KafkaBackend(kafka)) as writer:
        appended = await writer.append(topics.TOKENS, 0, "k", b"{}")
    [r] = [r for r in (await read_all(kafka, topics.TOKENS, [0]))[0] if r.offset == appended.offset]
    assert appended.timestamp == r.timestamp


async def test_a_failed_send_replaces_the_producer_also_when_nobody_waits_for_it(
    kafka: str, topic: str
) -> None:
    """Its sequence numbers are used up: every later record of that partition would fail, one
    producer too late."""
    async with log_contract.writing(KafkaBackend(kafka)) as writer:
        await writer.append(topic, 0, "k", b"one")
        assert isinstance(writer, log.Writer)
        assert writer._producer is not None

        async def lose(*_: object, **__: object) -> asyncio.Future[None]:
            sent: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_soon(
                sent.set_exception, aiokafka.errors.RequestTimedOutError()
            )
            return sent

        writer._producer.send_batch = lose
        dropped = writer.append(topic, 0, "k", b"two")
        await asyncio.sleep(0)
        dropped.cancel()
        await log_contract.until(lambda: writer.incarnation == 2, 10)
        assert (await asyncio.wait_for(writer.append(topic, 0, "k", b"three"), 10)).offset == 1


async def test_a_sender_that_dies_quietly_is_noticed(
    kafka: str, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with log_contract.writing(KafkaBackend(kafka)) as writer:
        await writer.append(topic, 0, "k", b"one")
        assert isinstance(writer, log.Writer)
        assert writer._producer is not None
        writer._producer._sender._sender_task.cancel()
        doomed = writer.append(topic, 0, "k", b"two")
        with pytest.raises(log.AppendFailed):
            await asyncio.wait_for(doomed, 5)
        await asyncio.wait_for(writer.append(topic, 0, "k", b"three"), 10)
    said = [each for each in caplog.records if each.message == "producer_replaced"]
    assert [each.__dict__["fields"]["reason"] for each in said] == ["sender task ended"]


# ---- A broker that dies --------------------------------------------------------------------------


@pytest.mark.timeout(120)
async def test_no_acknowledged_record_is_lost_doubled_or_reordered_when_the_broker_is_killed(
    mortal: Mortal,
) -> None:
    topic = await create(mortal.bootstrap, log_contract.unique())
    acknowledged: dict[int, list[tuple[int, bytes]]] = {p: [] for p in range(PARTITIONS)}
    failed = 0
    async with log_contract.writing(KafkaBackend(mortal.bootstrap)) as writer:
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
        await log_contract.until(lambda: sum(map(len, acknowledged.values())) > 100, 60)
        await mortal.kill()
        at_kill = sum(map(len, acknowledged.values()))
        await asyncio.sleep(AWAY_S)
        await mortal.start()
        await log_contract.until(lambda: sum(map(len, acknowledged.values())) > at_kill + 200, 60)
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
    topic = await create(mortal.bootstrap, log_contract.unique())
    before = asyncio.all_tasks()
    writer = log.Writer(mortal.bootstrap, deadline_s=2)
    task = asyncio.create_task(writer.run())
    await writer.append(topic, 0, "k", b"v")
    try:
        await mortal.kill()
        doomed = [
            writer.append(topic, p, "k", bytes(50_000)) for p in range(PARTITIONS) for _ in range(5)
        ]
        async with asyncio.timeout(BOUNDED_S):
            results = await asyncio.gather(*doomed, return_exceptions=True)
        assert {type(result) for result in results} <= {log.AppendFailed, log.NotAppended}
        assert log.NotAppended in {type(result) for result in results}, "most were never sent"
        late = writer.append(topic, 0, "k", b"late")
        async with asyncio.timeout(BOUNDED_S):
            await writer.stop(1)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        assert isinstance(late.exception(), log.NotAppended)
        await log_contract.until(lambda: asyncio.all_tasks() == before, 5)
    finally:
        await mortal.start()
    after = log.Writer(mortal.bootstrap)
    task = asyncio.create_task(after.run())
    await after.append(topic, 0, "k", b"after")
    await after.stop(1)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    # Nothing that had failed was written before the later record.
    found = (await read_all(mortal.bootstrap, topic, [0]))[0]
    assert [r.value for r in found] == [b"v", b"after"]


@pytest.mark.timeout(120)
async def test_what_was_not_sent_to_a_broker_that_was_stopped_is_never_written(
    mortal: Mortal,
) -> None:
    """A stopped broker takes what lies in its sockets when it goes on. Only what was sent may
    be there."""
    topic = await create(mortal.bootstrap, log_contract.unique())
    async with log_contract.writing(KafkaBackend(mortal.bootstrap), deadline_s=2.0) as writer:
        await writer.append(topic, 0, "k", b"before")
        mortal.pause()
        try:
            sent = writer.append(topic, 0, "k", b"sent")
            await asyncio.sleep(0.3)  # it is on its way; one request at a time goes to a broker
            waiting = [writer.append(topic, p, "k", b"waiting") for p in range(PARTITIONS)]
            with pytest.raises(log.AppendFailed) as unknown:
                await sent
            assert type(unknown.value) is log.AppendFailed
            results = await asyncio.gather(*waiting, return_exceptions=True)
            assert {type(result) for result in results} == {log.NotAppended}
        finally:
            mortal.resume()
        assert (await asyncio.wait_for(writer.append(topic, 0, "k", b"after"), 30)).offset >= 1
    found = await read_all(mortal.bootstrap, topic)
    assert [r.value for r in found.pop(0)] in (
        [b"before", b"after"],
        [b"before", b"sent", b"after"],
    )
    assert all(held == [] for held in found.values())


async def test_a_reader_says_how_far_it_is_behind_and_forgets_what_it_left(
    kafka: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "MAX_POLL_RECORDS", 1)
    topic = await create(kafka, log_contract.unique())
    await log_contract.fill(KafkaBackend(kafka), topic, [b"a", b"b", b"c"])
    reader = log.Reader(kafka, topic)

    def lag() -> list[float]:
        return [
            s.value
            for m in telemetry.CONSUMER_LAG.collect()
            for s in m.samples
            if s.labels == {"topic": topic, "partition": "0"}
        ]

    try:
        reader.follow(0, 0)
        await log_contract.polled(reader, 1)
        assert lag() == [2]
        await log_contract.polled(reader, 2)
        assert lag() == [0]
        reader.leave(0)
        await reader.poll()
        assert lag() == []
    finally:
        await reader.stop()


async def test_a_reader_that_rests_gets_what_was_written_meanwhile_together(
    kafka: str, topic: str
) -> None:
    reader = log.Reader(kafka, topic, rest_s=2.0)
    async with log_contract.writing(KafkaBackend(kafka)) as writer:
        try:
            for partition in range(PARTITIONS):
                reader.follow(partition, 0)
            await writer.append(topic, 0, "k", b"first")
            assert [r.value for r in await log_contract.polled(reader, 1)] == [b"first"]
            for n in range(3):
                await writer.append(topic, n % 2, "k", b"%d" % n)
            assert {r.value for r in await reader.poll()} == {b"0", b"1", b"2"}
            # The next fetch is after a rest too, and with other partitions.
            reader.leave(1)
            await writer.append(topic, 0, "k", b"last")
            assert [r.value for r in await log_contract.polled(reader, 1)] == [b"last"]
        finally:
            await reader.stop()


@pytest.mark.timeout(120)
async def test_readers_replays_and_questions_go_on_after_the_broker_came_back(
    mortal: Mortal,
) -> None:
    topic = await create(mortal.bootstrap, log_contract.unique())
    await log_contract.fill(KafkaBackend(mortal.bootstrap), topic, [b"a", b"b"])
    reader, replays, offsets = (
        log.Reader(mortal.bootstrap, topic, answer_deadline_s=2.0),
        log.Replays(mortal.bootstrap, size=1, answer_deadline_s=2.0),
        log.Offsets(mortal.bootstrap, answer_deadline_s=2.0),
    )
    try:
        reader.follow(0, 0)
        assert len(await log_contract.polled(reader, 2)) == 2
        assert [len(batch) async for batch in replays.read(topic, 0, 0, 2)] == [2]
        assert await offsets.ends(topic, [0]) == {0: 2}
        await mortal.kill()
        for ask in (
            offsets.ends(topic, [0]),
            offsets.committed("no-such-group"),
            log_contract.drained(replays.read(topic, 0, 0, 2)),
        ):
            with pytest.raises(log.LogUnavailable):
                await asyncio.wait_for(ask, 6)
        await mortal.start()
        await log_contract.fill(KafkaBackend(mortal.bootstrap), topic, [b"c"])
        got: list[log.Record] = []
        async with asyncio.timeout(30):
            while not got:
                with contextlib.suppress(log.LogUnavailable):
                    got = await reader.poll()
            assert [r.value for r in got] == [b"c"]
            assert await _persist(lambda: offsets.ends(topic, [0])) == {0: 3}
            assert [
                r.value
                for r in await _persist(lambda: log_contract.drained(replays.read(topic, 0, 1, 3)))
            ] == [b"b", b"c"]
    finally:
        for part in (reader, replays, offsets):
            await part.stop()


async def _persist(ask: Callable[[], Awaitable[T]]) -> T:
    while True:
        try:
            return await ask()
        except log.LogUnavailable:
            await asyncio.sleep(0.1)


# ---- Replays -------------------------------------------------------------------------------------


class _CountsStops(aiokafka_internals.InternalApi):
    stopped = 0

    async def stop_consumer(self, consumer: aiokafka.AIOKafkaConsumer, deadline_s: float) -> None:
        self.stopped += 1
        await super().stop_consumer(consumer, deadline_s)


async def test_a_replay_that_is_left_between_batches_keeps_its_connection_and_no_bytes(
    kafka: str,
) -> None:
    """Nearly every replay is left when the response has ended. A new client for each took longer
    than the reading, and what had been fetched beyond waited for the garbage collector."""
    api = _CountsStops()
    backend = KafkaBackend(kafka, api=api)
    topic = await backend.create_topic()
    await log_contract.fill(backend, topic, [bytes(1000)] * 5000)
    replays = backend.replays(1)
    try:
        with collected.by_hand():
            for start in range(20):
                async with contextlib.aclosing(replays.read(topic, 0, start, 5000)) as batches:
                    async for batch in batches:
                        assert batch[0].offset == start
                        break
            assert api.stopped == 0
            await waiting.eventually(lambda: not _unread_fetches(), "what was fetched is freed")
    finally:
        await replays.stop()


def _unread_fetches() -> int:
    return sum(isinstance(each, fetcher.PartitionRecords) for each in gc.get_objects())


@pytest.mark.timeout(120)
async def test_holes_that_compaction_left_are_read_over(kafka: str) -> None:
    """The cleaner needs closed segments, so values are large; the last records of a range may be
    the ones that are gone."""
    topic = await create(
        kafka,
        log_contract.unique(),
        1,
        **{
            "cleanup.policy": "compact",
            "segment.bytes": "1048576",
            "min.cleanable.dirty.ratio": "0.01",
            "max.compaction.lag.ms": "1000",
            "min.compaction.lag.ms": "0",
        },
    )
    async with log_contract.writing(KafkaBackend(kafka)) as writer:
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
        assert [
            r.offset for r in await log_contract.drained(replays.read(topic, 0, hole + 1, hole + 2))
        ] == []
        assert [
            r.offset for r in await log_contract.drained(replays.read(topic, 0, 0, end))
        ] == held
        reader.follow(0, 0)
        assert [r.offset for r in await log_contract.polled(reader, len(held))] == held
        assert reader.positions == {0: end}
    finally:
        await reader.stop()
        await replays.stop()


async def _until_compacted(replays: log.Replays, topic: str, end: int) -> list[int]:
    before: list[int] = []
    held: list[int] = []
    async with asyncio.timeout(90):
        while len(held) in (0, end) or held != before:  # the cleaner may be at work still
            before, held = (
                held,
                [r.offset for r in await log_contract.drained(replays.read(topic, 0, 0, end))],
            )
            await asyncio.sleep(CLEANER_PAUSE_S)
    return held


# ---- GroupConsumer -------------------------------------------------------------------------------


@pytest.mark.timeout(150)
async def test_a_membership_that_broke_is_given_up_told_and_joined_again(
    kafka: str,
) -> None:
    """aiokafka's coordinator fails once and for all: the worker stayed, took nothing and looked
    alive."""
    backend = KafkaBackend(kafka)
    classes = [await backend.create_topic() for _ in topics.CLASSES]
    await log_contract.fill(backend, classes[0], [b"x"])
    async with log_contract.Member(backend, log_contract.unique("group"), classes) as member:
        await log_contract.until(lambda: len(member.received) == 1)
        assert isinstance(member.consumer, log.GroupConsumer)
        consumer, before = member.consumer._consumer, member.revocations
        assert consumer is not None
        consumer._coordinator._coordination_task.cancel()
        await asyncio.sleep(0)
        consumer._coordinator._set_error = None

        def broken() -> None:
            raise aiokafka.errors.GroupAuthorizationFailedError("group")

        consumer._coordinator.check_errors = broken
        await log_contract.until(lambda: member.revocations > before)
        await log_contract.until(lambda: member.owned == log_contract.whole(classes), 60)
        await log_contract.until(
            lambda: len(member.received) == 2
        )  # nothing was committed: it comes again


# ---- Topics and layout ---------------------------------------------------------------------------


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
    bare: str,
) -> None:
    with pytest.raises(log.LogUnavailable, match="topics apply"):
        await log.layout(bare)
    created = await asyncio.gather(
        *(log.apply_topics(bare, ["default"], partitions=5) for _ in range(2))
    )
    assert sorted(created[0] + created[1]) == sorted(
        row.name for row in topics.table(["default"])
    )  # each by one of the two
    first = await log.layout(bare)
    assert first.partitions == 5
    assert first.tag == ids.incarnation_tag(first.incarnation)
    named = [records.decode_meta(r.value) for r in (await read_all(bare, topics.META, [0]))[0]]
    assert named == [records.Incarnation(first.incarnation)]

    assert await log.apply_topics(bare, ["default"], partitions=5) == []
    assert await log.apply_topics(bare, ["default"], partitions=9) == []
    added = await log.apply_topics(bare, ["default", "large"], partitions=9)
    assert sorted(added) == [
        topics.requests("large", "batch"),
        topics.requests("large", "interactive"),
    ]
    counts = await partition_counts(bare, *added)
    assert {
        counts[name] for name in (*added, topics.TOKENS, topics.requests("default", "batch"))
    } == {5}
    assert (counts[topics.META], counts[topics.DELETIONS]) == (1, 6)
    assert await log.layout(bare) == first


@pytest.mark.timeout(120)
async def test_a_name_that_comes_late_stays_the_only_one(
    bare: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Symptom: on a busy machine two processes that applied the topics gave the log two names."""
    append = compacted.append

    async def late(*args: Any) -> None:
        await asyncio.sleep(5)
        await append(*args)

    monkeypatch.setattr(compacted, "append", late)
    await asyncio.gather(*(log.apply_topics(bare, ["default"], partitions=2) for _ in range(2)))
    assert len((await read_all(bare, topics.META, [0]))[0]) == 1


@pytest.mark.timeout(120)
async def test_a_log_that_was_deleted_and_made_anew_is_another_log(bare: str) -> None:
    await log.apply_topics(bare, ["default"], partitions=2)
    first = await log.layout(bare)
    admin = AIOKafkaAdminClient(bootstrap_servers=bare)
    await admin.start()
    await admin.delete_topics([topics.TOKENS])
    await admin.close()

    async def gone() -> bool:
        return topics.TOKENS not in await partition_counts(bare)

    await waiting.eventually(gone, "the topic is deleted")
    with pytest.raises(log.LogUnavailable, match="topics apply"):
        await log.layout(bare)
    assert await log.apply_topics(bare, ["default"], partitions=3) == [topics.TOKENS]
    second = await log.layout(bare)
    assert second.incarnation != first.incarnation
    assert second.tag != first.tag


async def test_a_broker_that_does_not_count_itself_yet_is_asked_again(
    kafka: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Symptom: on a busy machine, for a moment after its start, a broker's metadata names no broker
    at all."""
    missing, asked = [True, True], []
    choose = AIOKafkaClient.get_random_node

    def no_broker_at_first(client: AIOKafkaClient) -> int | None:
        asked.append(client)
        return None if missing and missing.pop() else choose(client)

    monkeypatch.setattr(AIOKafkaClient, "get_random_node", no_broker_at_first)
    assert (await log.layout(kafka)).partitions > 0
    assert len(asked) >= 3

    missing[:] = [True] * 1_000
    # The last attempt may end with the time.
    with pytest.raises(log.LogUnavailable, match=r"no broker of it is ready|TimeoutError"):
        await asyncio.wait_for(log.layout(kafka), 30)


async def test_the_last_question_for_the_layout_has_time_for_an_answer(
    kafka: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Symptom: on a busy machine it had milliseconds, and the connection that it was making when
    they were over stayed open."""
    monkeypatch.setattr(clients, "ANSWER_DEADLINE_S", 0.0)
    monkeypatch.setattr(clients, "RETRY_S", 30.0)
    assert (await log.layout(kafka)).partitions > 0


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


async def test_a_broker_that_accepts_and_never_answers_is_unavailable_within_the_deadline() -> None:
    """What a stopped (SIGSTOP) broker looks like."""
    with socket.create_server(("127.0.0.1", 0)) as listener:  # accepted, never read
        async with asyncio.timeout(30):  # the client library by itself waits 40 s
            with pytest.raises(log.LogUnavailable):
                await log.layout(f"127.0.0.1:{listener.getsockname()[1]}")


async def test_a_tail_gets_to_an_end_that_holds_no_record(kafka: str) -> None:
    """A transaction leaves a mark behind its records. Whoever waited until a tail was at the log's
    end waited for the next record."""
    topic = await create(kafka, log_contract.unique(), 1)
    producer = aiokafka.AIOKafkaProducer(
        bootstrap_servers=kafka, transactional_id=log_contract.unique()
    )
    await producer.start()
    try:
        async with producer.transaction():
            await producer.send_and_wait(topic, b"v", partition=0)
    finally:
        await producer.stop()
    reader, offsets = log.Reader(kafka, topic), log.Offsets(kafka)
    try:
        reader.follow(0, 0)
        await log_contract.polled(reader, 1)

        async def marked() -> bool:  # the mark is written after the commit was acknowledged
            return (await offsets.ends(topic, [0]))[0] == 2

        await waiting.eventually(marked, "the transaction's mark is in the log")

        async def at_the_end() -> bool:
            await reader.poll()
            return reader.next_offset(0) == 2

        await waiting.eventually(at_the_end, "the tail is at the end")
    finally:
        await reader.stop()
        await offsets.stop()
