"""The Kafka client: one writer that heals by replacement, readers by `assign()`, group intake, and administration.

What aiokafka 0.14 forces (`docs/design.md`, the log client):
- any failed or ambiguous send makes its producer worthless (an expired batch has used up sequence numbers): replace it, and let writers claim anew;
- `stop()` may wait for ever while the broker is away, and a producer goes on sending meanwhile: every shutdown has its own deadline;
- `assign()` forgets the positions of partitions it already had: they are read before and sought after;
- requests on one connection are answered in order, so an offset query behind a long poll waits for it: queries have a client of their own.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import aiokafka
import aiokafka.admin
import aiokafka.errors
from aiokafka.abc import ConsumerRebalanceListener
from aiokafka.coordinator.assignors.range import RangePartitionAssignor

from wire import broker, ids, records, telemetry, topics

Headers = Sequence[tuple[str, bytes]]
APPEND_DEADLINE_S = 15.0
STOP_DEADLINE_S = 5.0
ANSWER_DEADLINE_S = 10.0
RETRY_S = 0.5
MAX_POLL_RECORDS = 2_000
RECORD_OVERHEAD_BYTES = 1024  # what a batch and a record's framing may add; the broker's bound is on the whole batch
_TOPIC_EXISTS = 36


class LogUnavailable(Exception):
    """The log cannot be reached or does not answer in time."""


class AppendFailed(LogUnavailable):
    """An append failed or is ambiguous: the record may or may not be in the log. Its owner nonce must never be used again (log rule W4)."""


class TooLarge(AppendFailed):
    """The record is larger than the log takes. It is not in the log, and nothing else was disturbed."""


class HistoryLost(Exception):
    """The log no longer holds what was asked for, or is another log (retention, incarnation)."""


class LogChanged(Exception):
    """The log under this process is another one (its incarnation changed): every position held is meaningless. The process must start anew."""


class Appended(NamedTuple):
    """Where a record went: offset, and the broker's timestamp in ms (LogAppendTime)."""

    offset: int
    timestamp: int


class Record(NamedTuple):
    """One record as read. `timestamp` is the broker's, ms."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class _Pending(NamedTuple):
    topic: str
    partition: int
    key: bytes
    value: bytes
    headers: Headers
    done: asyncio.Future[Appended]
    deadline: float


def _record(r: Any) -> Record:
    return Record(r.topic, r.partition, r.offset, r.timestamp, r.key, r.value, r.headers)


class Writer:
    """Appends records in the order they were given, through one sender.

    Attributes:
        incarnation: counts producers; a change means that everything in flight was failed.
        _queue: records not yet handed to the producer, oldest first; only `append` adds, only the sender takes.
        _flight: (deadline, future) of sends not yet acknowledged, oldest first.
        _wake: set while `_queue` may hold something.
        _producer: the current producer; None while there is none.
        _sender: the task that hands records to the current producer.
        _broken: set by a failed send; the sender then replaces the producer.
        _stopping: set by `stop`, and when `run` is over: nothing is accepted any more.
        _retired: tasks that get rid of former producers.
    """

    def __init__(
        self, bootstrap: str, *, client_id: str = "tailrace", deadline_s: float = APPEND_DEADLINE_S, on_replaced: Callable[[str], None] | None = None
    ) -> None:
        self._bootstrap = bootstrap
        self._client_id = client_id
        self._deadline_s = deadline_s
        self._on_replaced = on_replaced
        self._queue: collections.deque[_Pending] = collections.deque()
        self._flight: collections.deque[tuple[float, asyncio.Future[Appended]]] = collections.deque()
        self._wake = asyncio.Event()
        self._producer: aiokafka.AIOKafkaProducer | None = None
        self._sender: asyncio.Task[None] | None = None
        self._broken: str | None = None
        self._stopping = False
        self._retired: set[asyncio.Task[None]] = set()
        self.incarnation = 0

    @property
    def connected(self) -> bool:
        """Whether a producer is up (its broker may still have died since)."""
        return self._producer is not None

    @property
    def backlog(self) -> int:
        """Records accepted but not acknowledged."""
        return len(self._queue) + len(self._flight)

    def append(self, topic: str, partition: int, key: str, value: bytes, headers: Headers = ()) -> asyncio.Future[Appended]:
        """Append one record; the future fails with AppendFailed when the outcome is unknown, with TooLarge when it was not tried. Never waits."""
        done: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        size = len(key) * 4 + len(value) + sum(len(name) * 4 + len(v) for name, v in headers)
        if self._stopping:
            done.set_exception(AppendFailed("the writer is stopping"))
        elif size > records.MAX_RECORD_BYTES - RECORD_OVERHEAD_BYTES:
            # Here, and not in the producer: there it would count as a failed send and cost everybody else's records in flight.
            done.set_exception(TooLarge(f"a record of {size} bytes"))
        else:
            self._queue.append(_Pending(topic, partition, key.encode(), value, headers, done, time.monotonic() + self._deadline_s))
            self._wake.set()
        # Callers may drop the future (fire and forget); a failure is then still counted through on_replaced.
        done.add_done_callback(lambda f: f.cancelled() or f.exception())
        return done

    async def run(self) -> None:
        """Send until cancelled; replaces the producer whenever a send failed, and waits for a broker that is away."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._watch())
                while True:
                    self._producer = await self._connect()
                    self._broken = None
                    self._sender = tasks.create_task(self._send_until_broken(self._producer))
                    await asyncio.wait({self._sender})
                    self._retire(self._broken or "unknown")
        finally:
            self._stopping = True
            self._fail_all("the writer stopped")
            producer, self._producer = self._producer, None
            if producer is not None:
                self._abandon(producer)
            if self._retired:
                await asyncio.wait(self._retired, timeout=STOP_DEADLINE_S)

    async def stop(self, deadline_s: float = STOP_DEADLINE_S) -> None:
        """Flush what was accepted, bounded; call before cancelling `run`. What could not be flushed has failed afterwards."""
        self._stopping = True
        end = time.monotonic() + deadline_s
        while self.backlog and time.monotonic() < end:  # noqa: ASYNC110 (the backlog is counted, not signalled; this runs once)
            await asyncio.sleep(0.01)
        self._fail_all("the writer stopped")

    async def _connect(self) -> aiokafka.AIOKafkaProducer:
        while True:
            producer = aiokafka.AIOKafkaProducer(
                **broker.options(self._bootstrap),
                client_id=self._client_id,
                acks="all",
                enable_idempotence=True,
                linger_ms=0,
                max_batch_size=65536,
                max_request_size=records.MAX_RECORD_BYTES,
                request_timeout_ms=int(self._deadline_s * 1000),
                metadata_max_age_ms=30_000,
                retry_backoff_ms=50,
            )
            try:
                await _start(producer, self._deadline_s)
            except (aiokafka.errors.KafkaError, OSError, TimeoutError):
                await _abandon(producer)
                await asyncio.sleep(RETRY_S)
            except BaseException:  # cancelled: a producer half started would go on by itself
                await _abandon(producer)
                raise
            else:
                self.incarnation += 1
                return producer

    async def _send_until_broken(self, producer: aiokafka.AIOKafkaProducer) -> None:
        while self._broken is None:
            await self._wake.wait()
            self._wake.clear()
            while self._queue and self._broken is None:
                pending = self._queue.popleft()
                if not pending.done.done():  # given up by its caller, or expired
                    await self._send(producer, pending)

    async def _send(self, producer: aiokafka.AIOKafkaProducer, p: _Pending) -> None:
        self._flight.append((time.monotonic() + self._deadline_s, p.done))
        try:
            sent = await producer.send(p.topic, value=p.value, key=p.key, partition=p.partition, headers=list(p.headers) or None)
        except (aiokafka.errors.KafkaError, OSError, AssertionError, AttributeError) as e:
            # AssertionError, AttributeError: what a producer without leader or with a dead sender raises (aiokafka 0.14).
            self._break(f"send: {type(e).__name__}")
            return
        sent.add_done_callback(lambda f, done=p.done: self._acknowledged(producer, f, done))

    def _acknowledged(self, producer: aiokafka.AIOKafkaProducer, sent: asyncio.Future[Any], done: asyncio.Future[Appended]) -> None:
        if sent.cancelled() or sent.exception() is not None:
            error = "cancelled" if sent.cancelled() else type(sent.exception()).__name__
            if producer is self._producer:  # whether or not anybody still waits for this record; what a former producer says is known already
                self._break(f"acknowledgement: {error}")
            return
        if not done.done():
            meta = sent.result()
            done.set_result(Appended(meta.offset, meta.timestamp or 0))
        while self._flight and self._flight[0][1].done():
            self._flight.popleft()

    def _break(self, reason: str) -> None:
        if self._broken is None:
            self._broken = reason
        self._fail_all(reason)
        self._wake.set()
        if self._sender is not None and self._sender is not asyncio.current_task():
            self._sender.cancel()  # it may hang in the producer that is worthless now

    def _retire(self, reason: str) -> None:
        producer, self._producer = self._producer, None
        if self._on_replaced is not None:
            self._on_replaced(reason)
        if producer is not None:
            self._abandon(producer)

    def _abandon(self, producer: aiokafka.AIOKafkaProducer) -> None:
        task = asyncio.create_task(_abandon(producer))
        self._retired.add(task)
        task.add_done_callback(self._retired.discard)

    def _fail_all(self, reason: str) -> None:
        failed = AppendFailed(reason)
        for _, done in self._flight:
            if not done.done():
                done.set_exception(failed)
        self._flight.clear()
        while self._queue:
            done = self._queue.popleft().done
            if not done.done():
                done.set_exception(failed)

    def _fail_expired(self) -> None:
        """What waits for a producer must not wait for ever."""
        while self._queue and (self._queue[0].done.done() or self._queue[0].deadline < time.monotonic()):
            done = self._queue.popleft().done
            if not done.done():
                done.set_exception(AppendFailed("not sent within the deadline"))

    async def _watch(self) -> None:
        """aiokafka has no delivery timeout of its own with idempotence on, and its sender task can die quietly: look once a second."""
        while True:
            await asyncio.sleep(min(1.0, self._deadline_s / 4))
            self._fail_expired()
            while self._flight and self._flight[0][1].done():
                self._flight.popleft()
            if self._flight and self._flight[0][0] < time.monotonic():
                self._break("deadline")
            sender = getattr(getattr(self._producer, "_sender", None), "sender_task", None)
            if sender is not None and sender.done():
                self._break("sender task ended")


async def _start(client: Any, deadline_s: float = float("inf")) -> None:
    """Start a client.

    aiokafka leaves a connection open behind it when it is cancelled while it makes one: it may finish first, for a moment.

    Raises:
        TimeoutError: not within the deadline.
    """
    starting = asyncio.create_task(client.start())
    try:
        await asyncio.wait({starting}, timeout=deadline_s if deadline_s < float("inf") else None)
        if not starting.done():
            raise TimeoutError
    except BaseException:
        await asyncio.wait({starting}, timeout=1.0)
        starting.cancel()
        await asyncio.wait({starting}, timeout=1.0)
        raise
    starting.result()


# What was cancelled and has not ended yet; held, because the loop itself holds tasks only weakly.
_leftovers: set[asyncio.Task[Any]] = set()


async def _ends(work: Coroutine[Any, Any, Any], deadline_s: float) -> bool:
    """Whether the work ends well within the deadline. Otherwise it is cancelled and left alone: aiokafka swallows cancellations while it
    closes, and `wait_for` would wait for it without limit."""
    task = asyncio.create_task(work)
    _leftovers.add(task)
    task.add_done_callback(_leftovers.discard)
    task.add_done_callback(lambda t: t.cancelled() or t.exception())
    try:
        await asyncio.wait({task}, timeout=deadline_s)
    finally:
        task.cancel()
    return task.done() and not task.cancelled() and task.exception() is None


async def _stop(consumer: aiokafka.AIOKafkaConsumer, deadline_s: float) -> None:
    """Stop a consumer within a deadline; afterwards at least its connections are closed."""
    if not await _ends(consumer.stop(), deadline_s):
        await _ends(consumer._client.close(), 1.0)


async def _abandon(producer: aiokafka.AIOKafkaProducer) -> None:
    """Get rid of a producer without flushing: its own `stop()` would go on sending records that were told to have failed, and leave its task
    behind when it is not let finish."""
    producer._closed = True
    sender = producer._sender.sender_task
    if sender is not None:
        sender.cancel()
    await _ends(producer.client.close(), 1.0)  # fails what the sender still waits for
    producer._message_accumulator.fail_all(aiokafka.errors.ProducerClosed())
    if sender is not None:
        await asyncio.wait({sender}, timeout=STOP_DEADLINE_S - 1.0)


def _consumer(bootstrap: str, **settings: Any) -> aiokafka.AIOKafkaConsumer:
    return aiokafka.AIOKafkaConsumer(
        **broker.options(bootstrap),
        enable_auto_commit=False,
        auto_offset_reset="none",
        check_crcs=False,
        retry_backoff_ms=50,
        metadata_max_age_ms=30_000,
        fetch_max_bytes=16 * 2**20,
        max_partition_fetch_bytes=4 * 2**20,
        **settings,
    )


async def _started(make: Callable[[], aiokafka.AIOKafkaConsumer], deadline_s: float = float("inf")) -> aiokafka.AIOKafkaConsumer:
    """A started consumer; waits for a broker that is away.

    Raises:
        LogUnavailable: not within the deadline.
    """
    give_up = time.monotonic() + deadline_s
    while True:
        consumer = make()
        try:
            await _start(consumer, give_up - time.monotonic())
        except (aiokafka.errors.KafkaError, OSError, TimeoutError) as e:
            await _stop(consumer, 1.0)
            if time.monotonic() + RETRY_S > give_up:
                raise LogUnavailable(f"no connection in {deadline_s:.0f} s: {type(e).__name__}") from e
            await asyncio.sleep(RETRY_S)
        except BaseException:  # cancelled: a consumer half started would go on by itself
            await _stop(consumer, 1.0)
            raise
        else:
            return consumer


class Reader:
    """Tails partitions of one topic by `assign()`, without a group; partitions come and go while it runs.

    One task calls `poll`; `follow` and `leave` may be called by anyone and take effect before the next fetch.

    Attributes:
        positions: next offset of each followed partition: everything below it was returned by `poll`.
        _changes: partitions to add (with offset) or drop (None), applied in `poll`.
        _consumer: None until the first poll and after an error.
    """

    def __init__(self, bootstrap: str, topic: str, *, wait_ms: int = 50, min_bytes: int = 1, client_id: str = "tailrace") -> None:
        self._make = lambda: _consumer(bootstrap, client_id=client_id, fetch_max_wait_ms=wait_ms, fetch_min_bytes=min_bytes)
        self._topic = topic
        self._wait_ms = wait_ms
        self._changes: dict[int, int | None] = {}
        self._consumer: aiokafka.AIOKafkaConsumer | None = None
        self._changed = asyncio.Event()
        self.positions: dict[int, int] = {}

    def follow(self, partition: int, offset: int) -> None:
        """Read `partition` from `offset` on."""
        self._changes[partition] = offset
        self._changed.set()

    def leave(self, partition: int) -> None:
        """Stop reading `partition`."""
        self._changes[partition] = None
        self._changed.set()

    def follows(self, partition: int) -> bool:
        """Whether `partition` is, or is about to be, followed."""
        return self._changes[partition] is not None if partition in self._changes else partition in self.positions

    def next_offset(self, partition: int) -> int:
        """Next offset of a followed partition (also of one about to be followed): everything below it was returned, or lies before the start."""
        pending = self._changes.get(partition)
        return self.positions[partition] if pending is None else pending

    async def poll(self) -> list[Record]:
        """The next records, in order within each partition; an empty list after the long poll ran out.

        Raises:
            HistoryLost: a followed offset is no longer in the log.
            LogUnavailable: no connection, or the fetch failed; the next poll starts afresh from `positions`.
        """
        if self._consumer is None:
            self._consumer = await _started(self._make, ANSWER_DEADLINE_S)
            self._assign(self._consumer)
        if self._changes:
            self._apply_changes()
            self._assign(self._consumer)
        if not self.positions:
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), self._wait_ms / 1000)
            return []
        return await self._fetch(self._consumer)

    async def stop(self) -> None:
        """Close the connection; positions stay."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await _stop(consumer, STOP_DEADLINE_S)

    def _apply_changes(self) -> None:
        for partition, offset in self._changes.items():
            if offset is None:
                if self.positions.pop(partition, None) is not None:
                    with contextlib.suppress(KeyError):  # it was never fetched
                        telemetry.KAFKA_LAG.remove(self._topic, str(partition))
            else:
                self.positions[partition] = offset
        self._changes.clear()

    def _assign(self, consumer: aiokafka.AIOKafkaConsumer) -> None:
        partitions = [aiokafka.TopicPartition(self._topic, p) for p in sorted(self.positions)]
        if not partitions:
            consumer.unsubscribe()
            return
        consumer.assign(partitions)
        for tp in partitions:
            consumer.seek(tp, self.positions[tp.partition])

    async def _fetch(self, consumer: aiokafka.AIOKafkaConsumer) -> list[Record]:
        try:
            batches = await consumer.getmany(timeout_ms=self._wait_ms, max_records=MAX_POLL_RECORDS)
        except aiokafka.errors.OffsetOutOfRangeError as e:
            await self.stop()
            raise HistoryLost(str(e)) from e
        except (aiokafka.errors.KafkaError, OSError) as e:
            await self.stop()
            raise LogUnavailable(type(e).__name__) from e
        out: list[Record] = []
        for tp, batch in batches.items():
            if tp.partition in self.positions and batch:
                out.extend(map(_record, batch))
                self.positions[tp.partition] = batch[-1].offset + 1
        for tp in consumer.assignment():
            if tp.partition in self.positions and (end := consumer.highwater(tp)) is not None:
                telemetry.KAFKA_LAG.labels(self._topic, str(tp.partition)).set(max(0, end - self.positions[tp.partition]))
        return out


class Replays:
    """A few connected consumers that read bounded ranges at once, beside the tail, so that no replay waits for a long poll."""

    def __init__(self, bootstrap: str, *, size: int = 2, client_id: str = "tailrace-replay") -> None:
        self._make = lambda: _consumer(bootstrap, client_id=client_id, fetch_max_wait_ms=10)
        self._size = size
        self._stopped = False
        self._idle: asyncio.Queue[aiokafka.AIOKafkaConsumer | None] = asyncio.Queue()
        for _ in range(size):
            self._idle.put_nowait(None)

    async def start(self) -> None:
        """Connect ahead of the first use; waits for a broker that is away."""
        for _ in range(self._size):
            self._idle.put_nowait(await self._take(float("inf")))

    async def stop(self) -> None:
        """Close the connections; those in use as soon as they are given back."""
        self._stopped = True
        for _ in range(self._idle.qsize()):
            consumer = self._idle.get_nowait()
            self._idle.put_nowait(None)  # wakes whoever waits for a connection
            if consumer is not None:
                await _stop(consumer, 1.0)

    async def read(self, topic: str, partition: int, start: int, end: int) -> AsyncGenerator[list[Record], None]:
        """Records of [start, end) in order, in batches. Close the generator (`contextlib.aclosing`) when leaving it early: it holds a connection.

        Raises:
            HistoryLost: `start` is below the log's beginning, or above its end.
            LogUnavailable: no answer within 10 s.
        """
        if start >= end:
            return
        consumer = await self._take(ANSWER_DEADLINE_S)
        healthy = False
        try:
            async for batch in _read_range(consumer, aiokafka.TopicPartition(topic, partition), start, end):
                yield batch
            consumer.unsubscribe()
            healthy = not self._stopped
        except aiokafka.errors.OffsetOutOfRangeError as e:
            raise HistoryLost(f"{topic}[{partition}] no longer holds offset {start}") from e
        except (aiokafka.errors.KafkaError, OSError) as e:
            raise LogUnavailable(type(e).__name__) from e
        finally:
            # One that was left in mid-read may hold a half-read assignment: a new one is made at the next use.
            self._idle.put_nowait(consumer if healthy else None)
            if not healthy:
                await _stop(consumer, 1.0)

    async def _take(self, deadline_s: float) -> aiokafka.AIOKafkaConsumer:
        held = await self._idle.get()
        try:
            if self._stopped:
                raise LogUnavailable("the replays were stopped")
            return held or await _started(self._make, deadline_s)
        except BaseException:  # also when cancelled: the place must not be lost
            self._idle.put_nowait(held)
            raise


async def _read_range(consumer: aiokafka.AIOKafkaConsumer, tp: aiokafka.TopicPartition, start: int, end: int) -> AsyncIterator[list[Record]]:
    consumer.assign([tp])
    consumer.seek(tp, start)
    position, give_up = start, time.monotonic() + ANSWER_DEADLINE_S
    while position < end:
        batches = await consumer.getmany(tp, timeout_ms=200, max_records=MAX_POLL_RECORDS)
        got = batches.get(tp, [])
        if got:
            position = got[-1].offset + 1
            if wanted := [_record(r) for r in got if r.offset < end]:
                yield wanted
            give_up = time.monotonic() + ANSWER_DEADLINE_S  # from here: the time a caller takes over a batch is not the broker's
        elif await consumer.position(tp) > position:  # compaction and control records leave holes
            position = await consumer.position(tp)
        elif time.monotonic() > give_up:
            raise LogUnavailable(f"no answer from {tp.topic}[{tp.partition}]")


class Offsets:
    """Asks for offsets on connections of its own."""

    def __init__(self, bootstrap: str, *, client_id: str = "tailrace-offsets") -> None:
        self._bootstrap = bootstrap
        self._client_id = client_id
        self._consumer: aiokafka.AIOKafkaConsumer | None = None
        self._admin: aiokafka.admin.AIOKafkaAdminClient | None = None
        self._lock = asyncio.Lock()

    async def ends(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        """Current end offset (next to be written, up to the high watermark) of each partition."""
        return await self._ask("end_offsets", topic, partitions)

    async def beginnings(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        """Oldest offset still held, of each partition."""
        return await self._ask("beginning_offsets", topic, partitions)

    async def committed(self, group: str) -> dict[tuple[str, int], tuple[int, str]]:
        """Committed (offset, metadata) of a group by (topic, partition)."""
        admin = None
        try:
            async with asyncio.timeout(ANSWER_DEADLINE_S):
                admin = await self._administrator()
                found = await self._committed(admin, group)
        except (aiokafka.errors.KafkaError, OSError, TimeoutError, AttributeError) as e:
            await self._drop_admin(admin)
            raise LogUnavailable(f"committed offsets of {group}: {type(e).__name__}") from e
        return {(tp.topic, tp.partition): (o.offset, o.metadata) for tp, o in found.items() if o.offset >= 0}

    async def partitions(self, topic: str) -> int:
        """How many partitions `topic` has."""
        consumer = None
        try:
            async with asyncio.timeout(ANSWER_DEADLINE_S):
                consumer = await self._asker()
                await consumer._client._wait_on_metadata(topic)
        except (aiokafka.errors.KafkaError, OSError, TimeoutError) as e:
            await self._drop(consumer)
            raise LogUnavailable(f"partitions of {topic}: {type(e).__name__}") from e
        return len(consumer.partitions_for_topic(topic) or ())

    async def stop(self) -> None:
        """Close the connections."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await _stop(consumer, 1.0)
        await self._drop_admin(self._admin)

    @staticmethod
    async def _committed(admin: aiokafka.admin.AIOKafkaAdminClient, group: str) -> dict[Any, Any]:
        while True:
            try:
                found: dict[Any, Any] = await admin.list_consumer_group_offsets(group)
            except (aiokafka.errors.GroupCoordinatorNotAvailableError, aiokafka.errors.NotCoordinatorForGroupError):
                await asyncio.sleep(0.1)  # the first question of a new cluster makes the broker create its offsets topic
            else:
                return found

    async def _asker(self) -> aiokafka.AIOKafkaConsumer:
        async with self._lock:
            if self._consumer is None:
                self._consumer = await _started(lambda: _consumer(self._bootstrap, client_id=self._client_id), ANSWER_DEADLINE_S)
            return self._consumer

    async def _drop(self, consumer: aiokafka.AIOKafkaConsumer | None) -> None:
        """After an error. The one that failed only: another question may have made a new one since."""
        if consumer is not None and self._consumer is consumer:
            self._consumer = None
            await _stop(consumer, 1.0)

    async def _administrator(self) -> aiokafka.admin.AIOKafkaAdminClient:
        async with self._lock:
            if self._admin is None:
                admin = aiokafka.admin.AIOKafkaAdminClient(**broker.options(self._bootstrap), client_id=self._client_id)
                try:
                    await admin.start()
                except BaseException:
                    await _close_admin(admin)
                    raise
                self._admin = admin
            return self._admin

    async def _drop_admin(self, admin: aiokafka.admin.AIOKafkaAdminClient | None) -> None:
        if admin is not None and self._admin is admin:
            self._admin = None
            await _close_admin(admin)

    async def _ask(self, method: str, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        tps = [aiokafka.TopicPartition(topic, p) for p in partitions]
        if not tps:
            return {}
        consumer = None
        try:
            async with asyncio.timeout(ANSWER_DEADLINE_S):
                consumer = await self._asker()
                found = await getattr(consumer, method)(tps)
        except (aiokafka.errors.KafkaError, OSError, TimeoutError) as e:
            await self._drop(consumer)
            raise LogUnavailable(f"{method} of {topic}: {type(e).__name__}") from e
        return {tp.partition: offset for tp, offset in found.items()}


async def _close_admin(admin: aiokafka.admin.AIOKafkaAdminClient) -> None:
    await _ends(admin.close(), 1.0)


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    """Forwards rebalances. Both sides must be short: aiokafka drops their exceptions and bounds them by the rebalance timeout."""

    def __init__(
        self, assigned: Callable[[set[tuple[str, int]]], Awaitable[None]], revoked: Callable[[set[tuple[str, int]]], Awaitable[None]]
    ) -> None:
        self._assigned, self._revoked = assigned, revoked

    async def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
        await self._revoked({(tp.topic, tp.partition) for tp in revoked})

    async def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
        await self._assigned({(tp.topic, tp.partition) for tp in assigned})


class Intake:
    """Group membership of one worker on its pool's request topics; range assignment keeps equal numbers of all classes together (log rule P7)."""

    def __init__(
        self,
        bootstrap: str,
        group: str,
        names: Sequence[str],
        *,
        session_timeout_ms: int,
        assigned: Callable[[set[tuple[str, int]]], Awaitable[None]],
        revoked: Callable[[set[tuple[str, int]]], Awaitable[None]],
        client_id: str,
    ) -> None:
        self._listener = _Listener(assigned, revoked)
        self._names = list(names)
        self._make: Callable[[], aiokafka.AIOKafkaConsumer] = lambda: aiokafka.AIOKafkaConsumer(
            **broker.options(bootstrap),
            group_id=group,
            client_id=client_id,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            session_timeout_ms=session_timeout_ms,
            heartbeat_interval_ms=max(100, session_timeout_ms // 3),
            max_poll_interval_ms=300_000,
            rebalance_timeout_ms=max(5_000, session_timeout_ms),
            partition_assignment_strategy=(RangePartitionAssignor,),
            fetch_max_wait_ms=50,
            retry_backoff_ms=50,
            metadata_max_age_ms=30_000,
        )
        self._consumer: aiokafka.AIOKafkaConsumer | None = None
        self._stopped = False

    async def start(self) -> None:
        """Join the group; waits for a broker that is away."""
        while self._consumer is None:
            if self._stopped:
                raise LogUnavailable("the intake was stopped")
            consumer = self._make()
            consumer.subscribe(self._names, listener=self._listener)
            try:
                await _start(consumer)
            except (aiokafka.errors.KafkaError, OSError):
                await _stop(consumer, 1.0)
                await asyncio.sleep(RETRY_S)
            except BaseException:  # cancelled: a member that nobody polls would keep its partitions
                await _stop(consumer, 1.0)
                raise
            else:
                self._consumer = consumer
        if self._stopped:  # while it joined
            await self.stop()
            raise LogUnavailable("the intake was stopped")

    async def poll(self, max_records: int, timeout_ms: int = 50) -> list[Record]:
        """Next request records of partitions that are not paused; must be called often even when all are paused (heartbeat of the poll interval).

        Raises:
            LogUnavailable: the membership broke and was given up, everything is revoked; the next poll joins again.
        """
        if self._consumer is None:
            await self.start()
        consumer = self._member()
        try:
            batches = await consumer.getmany(timeout_ms=timeout_ms, max_records=max(1, max_records))
        except (aiokafka.errors.KafkaError, OSError) as e:
            # aiokafka's position may have passed records that it did not return, and a coordinator that failed stays failed: only a new member
            # starts from the committed offsets.
            await self._leave()
            raise LogUnavailable(type(e).__name__) from e
        return [_record(r) for batch in batches.values() for r in batch]

    def assignment(self) -> set[tuple[str, int]]:
        """Partitions owned now."""
        return {(tp.topic, tp.partition) for tp in self._member().assignment()}

    def pause(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Take nothing more from these; unknown ones (just revoked) are ignored."""
        self._member().pause(*self._mine(partitions))

    def resume(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Take from these again."""
        self._member().resume(*self._mine(partitions))

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """Read this partition from `offset` on (used to put back what could not be taken); one just revoked is ignored."""
        for tp in self._mine([(topic, partition)]):
            self._member().seek(tp, offset)

    async def commit(self, offsets: Mapping[tuple[str, int], tuple[int, str]]) -> bool:
        """Commit (next offset, metadata) by partition; False when the group has moved on (rebalance), which is no error.

        Of partitions that are no longer owned nothing is committed: the broker would take it, and move another owner's offset back.
        """
        mine = {tp: offsets[(tp.topic, tp.partition)] for tp in self._mine(offsets)}
        if not mine:
            return not offsets
        try:
            await asyncio.wait_for(self._member().commit(mine), 5.0)
        except (aiokafka.errors.CommitFailedError, aiokafka.errors.IllegalStateError):
            return False
        except (aiokafka.errors.KafkaError, OSError, TimeoutError) as e:
            raise LogUnavailable(f"commit: {type(e).__name__}") from e
        return len(mine) == len(offsets)

    async def stop(self) -> None:
        """Leave the group, bounded."""
        self._stopped = True
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await _stop(consumer, STOP_DEADLINE_S)

    async def _leave(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            owned = consumer.assignment()
            await _stop(consumer, STOP_DEADLINE_S)
            await self._listener.on_partitions_revoked(owned)

    def _member(self) -> aiokafka.AIOKafkaConsumer:
        if self._consumer is None:
            raise LogUnavailable("not a member of the group")
        return self._consumer

    def _mine(self, partitions: Iterable[tuple[str, int]]) -> list[aiokafka.TopicPartition]:
        own = self._member().assignment()
        return [tp for tp in (aiokafka.TopicPartition(t, p) for t, p in partitions) if tp in own]


class Layout(NamedTuple):
    """What a service must know of the log before it serves: which log it is and how many partitions it has."""

    incarnation: str
    tag: bytes
    partitions: int


async def wait_until_ready(bootstrap: str, deadline_s: float = 30.0) -> None:
    """Wait until a broker answers and the cluster has a controller.

    Raises:
        LogUnavailable: not within the deadline.
    """
    end = time.monotonic() + deadline_s
    reason = "no answer"
    while (left := end - time.monotonic()) > 0:
        admin = aiokafka.admin.AIOKafkaAdminClient(**broker.options(bootstrap))
        try:
            async with asyncio.timeout(left):
                await admin.start()
                cluster = await admin.describe_cluster()
            if cluster.get("brokers") and cluster.get("controller_id", -1) not in (-1, None):
                return
            reason = "no controller yet"
        except (aiokafka.errors.KafkaError, OSError, AttributeError, TimeoutError) as e:
            reason = type(e).__name__
        finally:
            await _close_admin(admin)
        await asyncio.sleep(0.1)
    raise LogUnavailable(f"Kafka at {bootstrap} is not ready: {reason}")


async def apply_topics(bootstrap: str, pools: Sequence[str], *, partitions: int = 8, replication: int = 1, min_insync: int = 1) -> list[str]:
    """Create the topics of `wire.topics` that are missing, and name the log's incarnation when `llm.tokens` is new. Returns what was created.

    The token topic comes first: a request partition without its token partition would have nowhere to put its answer (log rule P9).

    Raises:
        LogUnavailable: the broker refused; the message names topic and error.
    """
    admin = aiokafka.admin.AIOKafkaAdminClient(**broker.options(bootstrap), request_timeout_ms=30_000)
    try:
        await admin.start()
        existing = set(await admin.list_topics())
        rows = sorted(topics.table(list(pools)), key=lambda t: t.name != topics.TOKENS)
        if topics.TOKENS in existing:  # a new pool's request topics must fit the log that is there
            described = await admin.describe_topics([topics.TOKENS])
            partitions = len(described[0]["partitions"])
        created = []
        for row in rows:
            config = {**row.config, **({"min.insync.replicas": str(min_insync)} if min_insync > 1 else {})}
            if row.name not in existing and await _create(admin, row.name, row.partitions or partitions, replication, config):
                created.append(row.name)
    except (aiokafka.errors.KafkaError, OSError, AttributeError) as e:  # AttributeError: there is no controller (aiokafka 0.14)
        raise LogUnavailable(f"topics could not be applied: {e!r}") from e
    finally:
        await _close_admin(admin)
    if topics.TOKENS in created or await _named(bootstrap) is None:
        await _name_incarnation(bootstrap)
    return created


async def _create(admin: aiokafka.admin.AIOKafkaAdminClient, name: str, partitions: int, replication: int, config: dict[str, str]) -> bool:
    """Whether it was this call that created the topic: only one of two that run at once may name the log's incarnation."""
    new = aiokafka.admin.NewTopic(name, partitions, replication, topic_configs=config)
    answer = await admin.create_topics([new])
    for topic_error in answer.topic_errors:  # create_topics returns errors instead of raising them
        code, message = topic_error[1], topic_error[2] if len(topic_error) > 2 else ""
        if code not in (0, _TOPIC_EXISTS):
            raise LogUnavailable(f"topic {name}: error {code} {message or ''}".strip())
    return all(topic_error[1] == 0 for topic_error in answer.topic_errors)


async def _name_incarnation(bootstrap: str) -> None:
    producer = aiokafka.AIOKafkaProducer(**broker.options(bootstrap), acks="all")
    try:
        async with asyncio.timeout(APPEND_DEADLINE_S):
            await producer.start()
            value = records.encode(records.Incarnation(uuid.uuid4().hex))
            await producer.send_and_wait(topics.META, value=value, key=b"incarnation", partition=0)
    except (aiokafka.errors.KafkaError, OSError, TimeoutError) as e:
        raise LogUnavailable(f"the log's incarnation could not be written: {type(e).__name__}") from e
    finally:
        await _abandon(producer)


async def _named(bootstrap: str) -> str | None:
    """The incarnation; waits a moment for one who creates the topics at the same time and is about to name it."""
    for _ in range(6):
        if (found := await _incarnation(bootstrap)) is not None:
            return found
        await asyncio.sleep(RETRY_S)
    return None


async def _incarnation(bootstrap: str) -> str | None:
    offsets, replays = Offsets(bootstrap), Replays(bootstrap, size=1)
    try:
        start = (await offsets.beginnings(topics.META, [0]))[0]
        end = (await offsets.ends(topics.META, [0]))[0]
        found = None
        async for batch in replays.read(topics.META, 0, start, end):
            for r in batch:
                record = records.decode_meta(r.value) if r.key == b"incarnation" else None
                found = record.id if record else found
        return found
    finally:
        await offsets.stop()
        await replays.stop()


async def layout(bootstrap: str) -> Layout:
    """Which log this is.

    Raises:
        LogUnavailable: the topics are missing (then `tailrace topics apply` is due) or the broker does not answer.
    """
    admin = aiokafka.admin.AIOKafkaAdminClient(**broker.options(bootstrap))
    try:
        async with asyncio.timeout(ANSWER_DEADLINE_S):
            await admin.start()
            described = {d["topic"]: d for d in await admin.describe_topics([topics.TOKENS, topics.META])}
    except (aiokafka.errors.KafkaError, OSError, TimeoutError) as e:
        raise LogUnavailable(f"Kafka at {bootstrap}: {type(e).__name__}") from e
    finally:
        await _close_admin(admin)
    counts = {name: len(d["partitions"]) for name, d in described.items() if not d["error_code"]}
    if not counts.get(topics.TOKENS) or not counts.get(topics.META):
        raise LogUnavailable("the topics do not exist: run `tailrace topics apply`")
    incarnation = await _incarnation(bootstrap)
    if incarnation is None:
        raise LogUnavailable("the log has no incarnation record: run `tailrace topics apply`")
    return Layout(incarnation, ids.incarnation_tag(incarnation), counts[topics.TOKENS])
