"""Readers by `assign()`: a tail of partitions, and replays of bounded ranges."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable

import aiokafka
import aiokafka.errors

from tailrace import telemetry
from tailrace.log import client_api, clients, liveness, record_keys
from tailrace.protocol import log_words

MAX_POLL_RECORDS = 2_000
# A poll that has no partition to fetch ends after this time, or with the first `follow`.
IDLE_POLL_S = 1.0
# After a fetch of so many records there are more, so the reader does not rest.
RESTLESS_RECORDS = 200
# Of one fetch of a replay. Most replays end within their first fetch and need no more of it.
REPLAY_FETCH_BYTES = 512 << 10


class Reader:
    """Tails partitions of one topic by `assign()`, without a group.

    One task calls `poll`. Any task may call `follow` and `leave`, which take effect before the next
    fetch.

    Attributes:
        positions: next offset of each followed partition. `poll` returned everything below it.
        _change: set when there is a change to apply.
        _changes: partitions to add (with offset) or drop (None), applied in `poll`.
        _consumer: None until the first poll and after an error.
        _lags: sets the gauge of a followed partition. To find a gauge by its labels takes longer
            than to set it.
        _liveness: whether the consumer gets answers for its partitions.
        _rest_until: when the next fetch begins (monotonic); 0 for at once.
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        *,
        wait_ms: int = 50,
        min_bytes: int = 1,
        rest_s: float = 0.0,
        client_id: str = "tailrace",
        answer_deadline_s: float = clients.ANSWER_DEADLINE_S,
        api: client_api.ClientApi | None = None,
    ) -> None:
        """`rest_s`: after a fetch that brought records the next one begins so much later, and
        brings those of that time together."""
        self._make = lambda: clients.new_consumer(
            bootstrap, client_id=client_id, fetch_max_wait_ms=wait_ms, fetch_min_bytes=min_bytes
        )
        self._topic = topic
        self._wait_ms = wait_ms
        self._rest_s = rest_s
        self._rest_until = 0.0
        self._answer_deadline_s = answer_deadline_s
        self._api = api or client_api.default()
        self._changes: dict[int, int | None] = {}
        self._consumer: aiokafka.AIOKafkaConsumer | None = None
        self._change = asyncio.Event()
        self._lags: dict[int, Callable[[float], None]] = {}
        self._liveness = liveness.Liveness(
            client_id,
            lambda: clients.new_consumer(bootstrap, client_id=f"{client_id}-look"),
            self._api,
            wait_ms / 1000,
        )
        self.positions: dict[int, int] = {}

    def follow(self, partition: int, offset: int) -> None:
        """Read `partition` from `offset` on."""
        self._changes[partition] = offset
        self._change.set()

    def leave(self, partition: int) -> None:
        """Stop reading `partition`."""
        self._changes[partition] = None
        self._change.set()

    def follows(self, partition: int) -> bool:
        """Whether `partition` is, or is about to be, followed."""
        return (
            self._changes[partition] is not None
            if partition in self._changes
            else partition in self.positions
        )

    def next_offset(self, partition: int) -> int:
        """Next offset of a partition that is, or is about to be, followed. Everything below it was
        returned, or lies before the start."""
        pending = self._changes.get(partition)
        return self.positions[partition] if pending is None else pending

    @property
    def answers(self) -> bool:
        """Whether the brokers answer its fetches, by what is known (`liveness`)."""
        return self._liveness.answers

    async def poll(self) -> list[log_words.Record]:
        """The next records, in order within each partition; empty when the long poll ran out.

        Raises:
            HistoryLost: a followed offset is no longer in the log.
            LogUnavailable: no connection, or the fetch failed. The next poll continues from
                `positions`.
        """
        if self._liveness.blind:
            await self._drop()
        if self._consumer is None:
            self._consumer = await self._connect()
            self._assign(self._consumer)
        if self._changes:
            self._apply_changes()
            self._assign(self._consumer)
        if not self.positions:
            self._liveness.on_nothing_followed()
            self._change.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(IDLE_POLL_S):
                    await self._change.wait()
            return []
        return await self._fetch(self._consumer)

    async def stop(self) -> None:
        """Close the connection; positions stay."""
        await self._liveness.stop()
        await self._drop()

    async def _connect(self) -> aiokafka.AIOKafkaConsumer:
        consumer = await clients.start_consumer(
            self._make, self._api, self._answer_deadline_s, self._liveness.on_refused
        )
        self._liveness.on_connected()
        return consumer

    async def _drop(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await self._api.stop_consumer(consumer, clients.STOP_DEADLINE_S)

    def _apply_changes(self) -> None:
        for partition, offset in self._changes.items():
            if offset is None:
                self.positions.pop(partition, None)
                if self._lags.pop(partition, None) is not None:
                    with contextlib.suppress(KeyError):  # another reader removed it
                        telemetry.CONSUMER_LAG.remove(self._topic, str(partition))
            else:
                self.positions[partition] = offset
        self._changes.clear()

    def _assign(self, consumer: aiokafka.AIOKafkaConsumer) -> None:
        self._api.drop_prefetched(consumer)
        partitions = [aiokafka.TopicPartition(self._topic, p) for p in sorted(self.positions)]
        if not partitions:
            consumer.unsubscribe()
            return
        consumer.assign(partitions)
        for tp in partitions:
            consumer.seek(tp, self.positions[tp.partition])

    async def _fetch(self, consumer: aiokafka.AIOKafkaConsumer) -> list[log_words.Record]:
        if self._rest_until:
            await asyncio.sleep(max(0.0, self._rest_until - time.monotonic()))
            self._rest_until = 0.0
            consumer.resume(*consumer.paused())
        try:
            batches = await consumer.getmany(timeout_ms=self._wait_ms, max_records=MAX_POLL_RECORDS)
        except aiokafka.errors.OffsetOutOfRangeError as error:
            await self._drop()
            raise log_words.HistoryLost(str(error)) from error
        except (aiokafka.errors.KafkaError, OSError) as error:
            await self._drop()
            raise log_words.LogUnavailable(type(error).__name__) from error
        if self._rest_s and 0 < sum(map(len, batches.values())) < RESTLESS_RECORDS:
            # At once: nothing has awaited since, so the client has not sent its next fetch.
            consumer.pause(*consumer.assignment())
            self._rest_until = time.monotonic() + self._rest_s
        # Transaction markers and compacted records move the position without giving a record.
        empty = [
            tp
            for tp in consumer.assignment()
            if tp not in batches
            and (consumer.highwater(tp) or 0) > self.positions.get(tp.partition, 0)
        ]
        new_positions = {tp.partition: await consumer.position(tp) for tp in empty}
        out: list[log_words.Record] = []
        for partition in new_positions.keys() & self.positions.keys():
            self.positions[partition] = max(self.positions[partition], new_positions[partition])
        for tp, batch in batches.items():
            if tp.partition in self.positions and batch:
                out.extend(map(record_keys.record, batch))
                self.positions[tp.partition] = batch[-1].offset + 1
        for tp in consumer.assignment():
            if tp.partition in self.positions and (end := consumer.highwater(tp)) is not None:
                self._lag(tp.partition)(max(0, end - self.positions[tp.partition]))
        self._liveness.after_poll(
            consumer,
            consumer.assignment(),  # those of a reader that rests too
            {aiokafka.TopicPartition(self._topic, p): at for p, at in self.positions.items()},
            full=len(out) >= MAX_POLL_RECORDS,
        )
        return out

    def _lag(self, partition: int) -> Callable[[float], None]:
        set_lag = self._lags.get(partition)
        if set_lag is None:
            set_lag = telemetry.CONSUMER_LAG.labels(self._topic, str(partition)).set
            self._lags[partition] = set_lag
        return set_lag


class Replays:
    """Reads bounded ranges on a few connections of its own: no replay waits for a long poll.

    Attributes:
        _idle: connections that are free; None stands for one that is not made yet.
        _stopped: set by `stop`; a replay that waits for a connection then fails.
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        size: int = 2,
        client_id: str = "tailrace-replay",
        answer_deadline_s: float = clients.ANSWER_DEADLINE_S,
        read_committed: bool = False,
        api: client_api.ClientApi | None = None,
    ) -> None:
        """`read_committed`: skip records of aborted transactions. Records after an open transaction
        cannot be read, which counts as no answer."""
        self._make = lambda: clients.new_consumer(
            bootstrap,
            client_id=client_id,
            fetch_max_wait_ms=10,
            max_partition_fetch_bytes=REPLAY_FETCH_BYTES,
            isolation_level="read_committed" if read_committed else "read_uncommitted",
        )
        self._size = size
        self._answer_deadline_s = answer_deadline_s
        self._api = api or client_api.default()
        self._stopped = False
        self._idle: asyncio.Queue[aiokafka.AIOKafkaConsumer | None] = asyncio.Queue()
        for _ in range(size):
            self._idle.put_nowait(None)

    async def start(self) -> None:
        """Connect before the first use; waits for a broker that is away."""
        for _ in range(self._size):
            self._idle.put_nowait(await self._acquire(float("inf")))

    async def stop(self) -> None:
        """Close the connections; those in use close when they are given back."""
        self._stopped = True
        for _ in range(self._idle.qsize()):
            consumer = self._idle.get_nowait()
            self._idle.put_nowait(None)  # wakes a replay that waits for a connection
            if consumer is not None:
                await self._api.stop_consumer(consumer, 1.0)

    async def read(
        self, topic: str, partition: int, start: int, end: int
    ) -> AsyncGenerator[list[log_words.Record], None]:
        """Records of [start, end) in order, in batches. Close the generator (`contextlib.aclosing`)
        when leaving it early: it holds a connection.

        Raises:
            HistoryLost: `start` is below the log's beginning, or above its end.
            LogUnavailable: no answer within the deadline.
        """
        if start >= end:
            return
        consumer = await self._acquire(self._answer_deadline_s)
        # A consumer that was left in mid-read may hold a half-read assignment. The next use makes a
        # new one. Between two batches nothing is half read.
        healthy = False
        try:
            async with contextlib.aclosing(
                _read_range(
                    consumer,
                    aiokafka.TopicPartition(topic, partition),
                    start,
                    end,
                    self._answer_deadline_s,
                )
            ) as batches:
                async for batch in batches:
                    healthy = True
                    yield batch
                    healthy = False
            healthy = True
        except aiokafka.errors.OffsetOutOfRangeError as error:
            raise log_words.HistoryLost(
                f"{topic}[{partition}] no longer holds offset {start}"
            ) from error
        except (aiokafka.errors.KafkaError, OSError) as error:
            raise log_words.LogUnavailable(type(error).__name__) from error
        finally:
            self._api.drop_prefetched(consumer)
            if healthy := healthy and not self._stopped:
                consumer.unsubscribe()
            self._idle.put_nowait(consumer if healthy else None)
            if not healthy:
                await self._api.stop_consumer(consumer, 1.0)

    async def _acquire(self, deadline_s: float) -> aiokafka.AIOKafkaConsumer:
        connection = await self._idle.get()
        try:
            if self._stopped:
                raise log_words.LogUnavailable("the replays were stopped")
            return connection or await clients.start_consumer(self._make, self._api, deadline_s)
        except BaseException:  # also cancelled: the connection's place must not be lost
            self._idle.put_nowait(connection)
            raise


async def _read_range(
    consumer: aiokafka.AIOKafkaConsumer,
    tp: aiokafka.TopicPartition,
    start: int,
    end: int,
    answer_deadline_s: float,
) -> AsyncGenerator[list[log_words.Record], None]:
    consumer.assign([tp])
    consumer.seek(tp, start)
    position, give_up = start, time.monotonic() + answer_deadline_s
    while position < end:
        batches = await consumer.getmany(tp, timeout_ms=200, max_records=MAX_POLL_RECORDS)
        batch = batches.get(tp, [])
        if batch:
            position = batch[-1].offset + 1
            if in_range := [record_keys.record(r) for r in batch if r.offset < end]:
                yield in_range
            # The time a caller spends on a batch does not count against the broker.
            give_up = time.monotonic() + answer_deadline_s
        elif await consumer.position(tp) > position:  # compaction and control records leave holes
            position = await consumer.position(tp)
        elif time.monotonic() > give_up:
            raise log_words.LogUnavailable(f"no answer from {tp.topic}[{tp.partition}]")
