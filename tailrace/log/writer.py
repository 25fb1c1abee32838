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
        ready: the sender will look at this lane.
    """

    topic: str
    partition: int
    waiting: collections.deque[_Pending] = field(default_factory=collections.deque)
    flight: list[_Pending] = field(default_factory=list)
    began: float = 0.0
    sent: bool = False
    ready: bool = False


class Writer:
    """Appends records of a partition in the order they were given.

    An append that fails says whether the record was ever sent: `NotAppended` if not, and then it
    never will be.

    Attributes:
        incarnation: number of producers made; a change means that everything in flight has failed.
        _lanes: by topic and partition.
        _ready: lanes with something to send and nothing in flight.
        _wake: set while `_ready` may hold something.
        _producer: the current producer; None while there is none.
        _sender: the task that hands records to the current producer.
        _failure: set by a failed send; the sender then replaces the producer.
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
        self._ready: collections.deque[_Lane] = collections.deque()
        self._wake = asyncio.Event()
        self._producer: aiokafka.AIOKafkaProducer | None = None
        self._sender: asyncio.Task[None] | None = None
        self._failure: str | None = None
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
            self._get_ready(lane)
        return done

    async def run(self) -> None:
        """Send until cancelled. Replaces the producer when a send failed; waits for a broker that
        is away."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._watch())
                while True:
                    self._producer = producer = await self._connect()
                    self._failure = None
                    self._is_guarded = self._api.guard_sending(
                        producer, functools.partial(self._may_send, producer)
                    )
                    self._sender = tasks.create_task(self._send_until_broken(self._producer))
                    await asyncio.wait({self._sender})
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

    async def _send_until_broken(self, producer: aiokafka.AIOKafkaProducer) -> None:
        while self._failure is None:
            await self._wake.wait()
            self._wake.clear()
            while self._ready and self._failure is None:
                lane = self._ready.popleft()
                lane.ready = False
                await self._send(producer, lane)

    def _get_ready(self, lane: _Lane) -> None:
        if lane.waiting and not lane.flight and not lane.ready:
            lane.ready = True
            self._ready.append(lane)
            self._wake.set()

    async def _send(self, producer: aiokafka.AIOKafkaProducer, lane: _Lane) -> None:
        batch = producer.create_batch()
        now_ms = int(time.time() * 1000)
        flight = lane.flight
        while lane.waiting:
            p = lane.waiting[0]
            if not p.done.done():  # given up by its caller, or expired
                headers = record_keys.sign_headers(
                    lane.topic, lane.partition, p.key, p.value or b"", p.headers
                )
                taken = batch.append(timestamp=now_ms, key=p.key, value=p.value, headers=headers)
                if taken is None:
                    break  # the batch is full
                flight.append(p)
            lane.waiting.popleft()
        if not flight:
            return
        lane.began, lane.sent = time.monotonic(), not self._is_guarded
        try:
            delivery = await producer.send_batch(batch, lane.topic, partition=lane.partition)
        except (aiokafka.errors.KafkaError, OSError, AssertionError, AttributeError) as error:
            # aiokafka 0.14 raises AssertionError and AttributeError without a leader and with a
            # dead sender.
            self._break(f"send: {type(error).__name__}")
            return
        delivery.add_done_callback(
            lambda delivery: self._on_acknowledgement(lane, flight, delivery, now_ms)
        )

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

    def _on_acknowledgement(
        self, lane: _Lane, flight: list[_Pending], delivery: asyncio.Future[Any], sent_ms: int
    ) -> None:
        """`sent_ms`: the records' time, where the topic does not have the broker's."""
        failure = None if delivery.cancelled() else delivery.exception()
        if lane.flight is not flight:
            return  # failed before
        if delivery.cancelled() or failure is not None:
            # Also when no caller waits for these records now.
            error = "cancelled" if failure is None else type(failure).__name__
            self._break(f"acknowledgement: {error}")
            return
        meta = delivery.result()
        timestamp = sent_ms if meta.timestamp in (None, -1) else meta.timestamp
        for at, pending in enumerate(flight):
            if not pending.done.done():
                pending.done.set_result(log_words.Appended(meta.offset + at, timestamp))
        lane.flight = []
        self._get_ready(lane)

    def _overdue(self, after_s: float) -> bool:
        """Whether a batch is not acknowledged so long after the producer got it."""
        since = time.monotonic() - after_s
        return any(lane.flight and lane.began < since for lane in self._lanes.values())

    def _break(self, reason: str) -> None:
        if self._failure is None:
            self._failure = reason
        self._fail_all(reason)
        self._wake.set()
        if self._sender is not None and self._sender is not asyncio.current_task():
            self._sender.cancel()  # it may hang in the producer that failed

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
