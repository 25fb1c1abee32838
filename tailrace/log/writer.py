"""The writer: appends in order, a batch at a time to each partition, and replaces a producer that
failed.

What is appended while a batch of its partition is on its way makes the next batch. So records are
sent at once where the broker is fast, and share a request where it is not. A batch has one future
in the producer, which costs less than one for each record.
"""

from __future__ import annotations

import asyncio
import collections
import functools
import time
from collections.abc import Callable, Set
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import aiokafka
import aiokafka.errors

from tailrace import telemetry
from tailrace.log import address, client_api, clients, deadlines, record_keys
from tailrace.protocol import log_words, records
from tailrace.retry import retry_until

# Bytes that the framing of a batch and a record may add. The broker's bound is on the whole batch.
RECORD_OVERHEAD_BYTES = 1024
# An acknowledgement takes milliseconds. A broker in a GC pause is not away.
STALLED_S: Final = 3.0


class _Pending(NamedTuple):
    key: bytes
    value: bytes | None
    headers: log_words.Headers
    done: asyncio.Future[log_words.Appended]
    deadline: float


@dataclass(slots=True, eq=False)
class _Lane:
    """The records of one partition.

    Attributes:
        waiting: not yet handed to the producer, oldest first.
        flight: the batch that the producer has, until it is acknowledged.
        began: when the producer got it.
        sent: it may be on its way to a broker, or there. Before that it can be dropped for certain.
        task: sends what waits; None while nothing does.
    """

    topic: str
    partition: int
    waiting: collections.deque[_Pending] = field(default_factory=collections.deque)
    flight: list[_Pending] = field(default_factory=list)
    began: float = 0.0
    sent: bool = False
    task: asyncio.Task[None] | None = None


class Writer:
    """Appends records of a partition in the order they were given.

    An append that fails says whether the record was ever sent: `NotAppended` if not, and then it
    never will be.

    Attributes:
        incarnation: number of producers made; a change means that everything in flight has failed.
        _lanes: by topic and partition.
        _producer: the current producer; None while there is none.
        _failure: set by a failed send, after which the producer is replaced.
        _failed: set with it.
        _fenced: a producer that sends nothing more, because its records were dropped.
        _is_guarded: the current producer calls `_may_send` before it sends.
        _stopping: set by `stop` and when `run` is over; nothing more is accepted.
        _discards: tasks that discard former producers.
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        client_id: str = "tailrace",
        deadline_s: float = clients.APPEND_DEADLINE_S,
        api: client_api.ClientApi | None = None,
        producer: Callable[..., aiokafka.AIOKafkaProducer] = aiokafka.AIOKafkaProducer,
    ) -> None:
        """`producer` makes one from aiokafka's settings."""
        self._bootstrap = bootstrap
        self._client_id = client_id
        self._deadline_s = deadline_s
        self._api = api or client_api.default()
        self._make_producer = producer
        self._lanes: dict[tuple[str, int], _Lane] = {}
        self._producer: aiokafka.AIOKafkaProducer | None = None
        self._failure: str | None = None
        self._failed = asyncio.Event()
        self._fenced: aiokafka.AIOKafkaProducer | None = None
        self._is_guarded = False
        self._stopping = False
        self._discards: set[asyncio.Task[None]] = set()
        self.incarnation = 0

    @property
    def connected(self) -> bool:
        """Whether a producer is up (its broker may still have died since)."""
        return self._producer is not None

    @property
    def stalled(self) -> bool:
        """Whether an acknowledgement has been outstanding for longer than `STALLED_S`."""
        return self._overdue(STALLED_S)

    @property
    def backlog(self) -> int:
        """Records accepted but not acknowledged."""
        return sum(len(lane.waiting) + len(lane.flight) for lane in self._lanes.values())

    def append(
        self,
        topic: str,
        partition: int,
        key: str,
        value: bytes | None,
        headers: log_words.Headers = (),
    ) -> asyncio.Future[log_words.Appended]:
        """Append one record; without a value, a tombstone. Never waits.

        The future fails with NotAppended (TooLarge is one) when the record was not sent and never
        will be, and with AppendFailed when its outcome is unknown.
        """
        done: asyncio.Future[log_words.Appended] = asyncio.get_running_loop().create_future()
        size = len(key) * 4 + len(value or b"") + log_words.size_of(headers)
        if self._stopping:
            _fail(done, log_words.NotAppended("the writer is stopping"))
        elif size > records.MAX_RECORD_BYTES - RECORD_OVERHEAD_BYTES:
            # The producer would refuse it too, as a failed send that fails all records in flight.
            _fail(done, log_words.TooLarge(f"a record of {size} bytes"))
        else:
            lane = self._lanes.get((topic, partition))
            if lane is None:
                lane = self._lanes[topic, partition] = _Lane(topic, partition)
            deadline = time.monotonic() + self._deadline_s
            lane.waiting.append(_Pending(key.encode(), value, headers, done, deadline))
            self._send_soon(lane)
        return done

    async def run(self) -> None:
        """Send until cancelled. Replaces the producer when a send failed; waits for a broker that
        is away."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._watch())
                while True:
                    producer = await self._connect()
                    self._is_guarded = self._api.guard_sending(
                        producer, functools.partial(self._may_send, producer)
                    )
                    self._failure = None
                    self._failed.clear()
                    self._producer = producer
                    for lane in self._lanes.values():
                        self._send_soon(lane)
                    await self._failed.wait()
                    self._retire(self._failure or "unknown")
                    if self._discards and self._api.waits_for_former_producer:
                        await asyncio.wait(self._discards)
        finally:
            self._stopping = True
            self._fail_all("the writer stopped")
            producer, self._producer = self._producer, None
            if producer is not None:
                self._discard(producer)
            if self._discards:
                await asyncio.wait(self._discards, timeout=clients.STOP_DEADLINE_S)

    async def stop(self, deadline_s: float = clients.STOP_DEADLINE_S) -> None:
        """Flush what was accepted, within the deadline; the rest has failed afterwards. Call it
        before cancelling `run`."""
        self._stopping = True
        end = time.monotonic() + deadline_s
        # The backlog is counted, not signalled; this runs once.
        while self.backlog and time.monotonic() < end:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        self._fail_all("the writer stopped")

    async def _connect(self) -> aiokafka.AIOKafkaProducer:
        producer = await retry_until(
            self._start_producer, on=clients.CONNECTION_ERRORS, pause_s=clients.RETRY_S
        )
        self.incarnation += 1
        return producer

    async def _start_producer(self) -> aiokafka.AIOKafkaProducer:
        producer = self._make_producer(
            **address.options(self._bootstrap),
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
            await deadlines.start_client(producer, self._deadline_s)
        except BaseException:  # also cancelled: a half started producer would continue by itself
            await self._api.discard_producer(producer)
            raise
        return producer

    def _send_soon(self, lane: _Lane) -> None:
        """In the next turn of the loop, so that what is appended in one turn is one batch."""
        if self._producer is not None and self._failure is None and lane.waiting and not lane.task:
            lane.task = asyncio.create_task(self._send(self._producer, lane))

    async def _send(self, producer: aiokafka.AIOKafkaProducer, lane: _Lane) -> None:
        """Send until nothing waits.

        A batch is handed over in the turn in which the one before it is acknowledged. In the next
        turn the producer makes a request of what it has, so a later batch would wait for that.
        """
        step = "send"
        try:
            while True:
                now_ms = int(time.time() * 1000)
                batch = self._next_batch(producer, lane, now_ms)
                if batch is None:
                    break
                lane.began, lane.sent = time.monotonic(), not self._is_guarded
                step = "send"
                delivery = await producer.send_batch(batch, lane.topic, partition=lane.partition)
                step = "acknowledgement"
                _acknowledge(lane, await delivery, now_ms)
            lane.task = None
        # Nobody awaits this task. aiokafka 0.14 raises AssertionError and AttributeError without a
        # leader and with a dead sender, and may cancel what it delivers.
        except (Exception, asyncio.CancelledError) as error:
            if lane.task is asyncio.current_task():  # else it failed before, with all records
                self._break(f"{step}: {type(error).__name__}")

    def _next_batch(self, producer: aiokafka.AIOKafkaProducer, lane: _Lane, now_ms: int) -> Any:
        """A batch of what waits, which is then in flight; None if there is nothing."""
        batch = None
        while lane.waiting:
            p = lane.waiting[0]
            if not p.done.done():  # given up by its caller, or expired
                batch = batch or producer.create_batch()
                headers = record_keys.sign_headers(
                    lane.topic, lane.partition, p.key, p.value or b"", p.headers
                )
                taken = batch.append(timestamp=now_ms, key=p.key, value=p.value, headers=headers)
                if taken is None:
                    break  # the batch is full
                lane.flight.append(p)
            lane.waiting.popleft()
        return batch

    def _may_send(
        self, producer: aiokafka.AIOKafkaProducer, partitions: Set[tuple[str, int]]
    ) -> bool:
        """Whether a produce request may go. The batches of its partitions are then sent."""
        if producer is not self._producer or producer is self._fenced:
            return False
        for partition in partitions:
            if partition in self._lanes:
                self._lanes[partition].sent = True
        return True

    def _overdue(self, after_s: float) -> bool:
        """Whether a batch is not acknowledged so long after the producer got it."""
        since = time.monotonic() - after_s
        return any(lane.flight and lane.began < since for lane in self._lanes.values())

    def _break(self, reason: str) -> None:
        if self._failure is None:
            self._failure = reason
        self._fail_all(reason)
        self._failed.set()

    def _retire(self, reason: str) -> None:
        producer, self._producer = self._producer, None
        telemetry.PRODUCERS_REPLACED.labels(reason=reason.partition(":")[0]).inc()
        telemetry.log(telemetry.Action.PRODUCER_REPLACED, reason=reason, client=self._client_id)
        if producer is not None:
            self._discard(producer)

    def _discard(self, producer: aiokafka.AIOKafkaProducer) -> None:
        task = asyncio.create_task(self._api.discard_producer(producer))
        self._discards.add(task)
        task.add_done_callback(self._discards.discard)

    def _fail_all(self, reason: str) -> None:
        """Drop every record: those that were not sent so far will not be sent."""
        self._fenced = self._producer
        for lane in self._lanes.values():
            if lane.task is not None and lane.task is not asyncio.current_task():
                lane.task.cancel()  # it may hang in the producer that failed
            lane.task = None
            flight, lane.flight = lane.flight, []
            waiting, lane.waiting = lane.waiting, collections.deque()
            failure = log_words.AppendFailed if lane.sent else log_words.NotAppended
            for record in flight:
                _fail(record.done, failure(reason))
            for record in waiting:
                _fail(record.done, log_words.NotAppended(reason))

    def _fail_expired(self) -> None:
        """Fail records that waited until their deadline."""
        now = time.monotonic()
        for lane in self._lanes.values():
            while lane.waiting and (lane.waiting[0].done.done() or lane.waiting[0].deadline < now):
                expired = lane.waiting.popleft()
                _fail(expired.done, log_words.NotAppended("not sent within the deadline"))

    async def _watch(self) -> None:
        """Check once a second for failures that aiokafka does not report: idempotent, it has no
        delivery timeout, and its sender task can end by itself."""
        while True:
            await asyncio.sleep(min(1.0, self._deadline_s / 4))
            self._fail_expired()
            if self._overdue(self._deadline_s):
                self._break("deadline")
            if self._producer is not None and self._api.sender_ended(self._producer):
                self._break("sender task ended")


def _fail(done: asyncio.Future[log_words.Appended], error: log_words.AppendFailed) -> None:
    if not done.done():
        done.set_exception(error)
        done.exception()  # its caller may have dropped it, which asyncio would report


def _acknowledge(lane: _Lane, meta: Any, made_ms: int) -> None:
    """`made_ms`: the records' time, where the topic does not have the broker's."""
    timestamp = made_ms if meta.timestamp in (None, -1) else meta.timestamp
    for at, pending in enumerate(lane.flight):
        if not pending.done.done():
            # A broker that had the batch already may not know its offset.
            offset = meta.offset + at if meta.offset >= 0 else -1
            pending.done.set_result(log_words.Appended(offset, timestamp))
    lane.flight = []
