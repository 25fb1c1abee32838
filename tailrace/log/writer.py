"""The writer: appends in order through one sender, and replaces a producer that failed."""

from __future__ import annotations

import asyncio
import collections
import functools
import time
from collections.abc import Callable, Set
from dataclasses import dataclass
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
    topic: str
    partition: int
    key: bytes
    value: bytes | None
    headers: log_words.Headers
    done: asyncio.Future[log_words.Appended]
    deadline: float


@dataclass(slots=True)
class _Flight:
    """A record that a producer has.

    Attributes:
        sent: it may be on its way to a broker, or there. Before that it can be dropped for certain.
    """

    topic: str
    partition: int
    done: asyncio.Future[log_words.Appended]
    began: float
    sent: bool = False


class Writer:
    """Appends records in the order they were given, through one sender.

    An append that fails says whether the record was ever sent: `NotAppended` if not, and then it
    never will be.

    Attributes:
        incarnation: number of producers made; a change means that everything in flight has failed.
        _queue: records not yet handed to the producer, oldest first. Only `append` adds, only the
            sender removes.
        _flight: records not yet acknowledged, oldest first.
        _wake: set while `_queue` may hold something.
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
        self._queue: collections.deque[_Pending] = collections.deque()
        self._flight: collections.deque[_Flight] = collections.deque()
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
        self._drop_acknowledged()
        return bool(self._flight) and time.monotonic() - self._flight[0].began > STALLED_S

    @property
    def backlog(self) -> int:
        """Records accepted but not acknowledged."""
        return len(self._queue) + len(self._flight)

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
            done.set_exception(log_words.NotAppended("the writer is stopping"))
        elif size > records.MAX_RECORD_BYTES - RECORD_OVERHEAD_BYTES:
            # The producer would refuse it too, as a failed send that fails all records in flight.
            done.set_exception(log_words.TooLarge(f"a record of {size} bytes"))
        else:
            self._queue.append(
                _Pending(
                    topic,
                    partition,
                    key.encode(),
                    value,
                    headers,
                    done,
                    time.monotonic() + self._deadline_s,
                )
            )
            self._wake.set()
        # Callers may drop the future. A failure is then still counted and logged.
        done.add_done_callback(lambda f: f.cancelled() or f.exception())
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
            while self._queue and self._failure is None:
                pending = self._queue.popleft()
                if not pending.done.done():  # given up by its caller, or expired
                    await self._send(producer, pending)

    async def _send(self, producer: aiokafka.AIOKafkaProducer, p: _Pending) -> None:
        self._flight.append(
            _Flight(p.topic, p.partition, p.done, time.monotonic(), sent=not self._is_guarded)
        )
        try:
            delivery = await producer.send(
                p.topic,
                value=p.value,
                key=p.key,
                partition=p.partition,
                headers=record_keys.sign_headers(
                    p.topic, p.partition, p.key, p.value or b"", p.headers
                ),
            )
        except (aiokafka.errors.KafkaError, OSError, AssertionError, AttributeError) as error:
            # aiokafka 0.14 raises AssertionError and AttributeError without a leader and with a
            # dead sender.
            self._break(f"send: {type(error).__name__}")
            return
        delivery.add_done_callback(
            lambda f, done=p.done: self._on_acknowledgement(producer, f, done)
        )

    def _may_send(
        self, producer: aiokafka.AIOKafkaProducer, partitions: Set[tuple[str, int]]
    ) -> bool:
        """Whether a produce request may go. Its records are then sent: those of its partitions that
        the producer has by now, perhaps a few more."""
        if producer is not self._producer or producer is self._fenced:
            return False
        for flight in self._flight:
            flight.sent = flight.sent or (flight.topic, flight.partition) in partitions
        return True

    def _on_acknowledgement(
        self,
        producer: aiokafka.AIOKafkaProducer,
        delivery: asyncio.Future[Any],
        done: asyncio.Future[log_words.Appended],
    ) -> None:
        if delivery.cancelled() or delivery.exception() is not None:
            error = "cancelled" if delivery.cancelled() else type(delivery.exception()).__name__
            if (
                # Also when no caller waits for this record now. Failures of a former producer
                # are known already.
                producer is self._producer
            ):
                self._break(f"acknowledgement: {error}")
            return
        if not done.done():
            meta = delivery.result()
            done.set_result(log_words.Appended(meta.offset, meta.timestamp or 0))
        self._drop_acknowledged()

    def _drop_acknowledged(self) -> None:
        while self._flight and self._flight[0].done.done():
            self._flight.popleft()

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
        for flight in self._flight:
            if not flight.done.done():
                failure = log_words.AppendFailed if flight.sent else log_words.NotAppended
                flight.done.set_exception(failure(reason))
        self._flight.clear()
        while self._queue:
            done = self._queue.popleft().done
            if not done.done():
                done.set_exception(log_words.NotAppended(reason))

    def _fail_expired(self) -> None:
        """Fail records that waited for a producer until their deadline."""
        while self._queue and (
            self._queue[0].done.done() or self._queue[0].deadline < time.monotonic()
        ):
            done = self._queue.popleft().done
            if not done.done():
                done.set_exception(log_words.NotAppended("not sent within the deadline"))

    async def _watch(self) -> None:
        """Check once a second for failures that aiokafka does not report: idempotent, it has no
        delivery timeout, and its sender task can end by itself."""
        while True:
            await asyncio.sleep(min(1.0, self._deadline_s / 4))
            self._fail_expired()
            self._drop_acknowledged()
            if self._flight and self._flight[0].began + self._deadline_s < time.monotonic():
                self._break("deadline")
            if self._producer is not None and self._api.sender_ended(self._producer):
                self._break("sender task ended")
