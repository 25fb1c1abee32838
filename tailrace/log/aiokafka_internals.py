"""The only module that uses private parts of aiokafka, and the check that they are as expected.

Six features depend on them:

- A producer whose send failed is discarded without a flush. aiokafka's `stop` would send records
  whose appends have failed already.
- Every produce request is announced before it goes onto a connection. So each record is known to be
  sent or not, and dropped records are never sent.
- A sender task that ended by itself is noticed within a second, instead of by the append deadline.
- A consumer that does not stop in time loses its connections at once.
- Records that a consumer has fetched and will not return are freed at once. They are megabytes in
  reference cycles.
- A record with a header name that is not UTF-8, which brokers take, is read as Kafka's own client
  reads it: U+FFFD stands for what cannot be decoded. aiokafka raises UnicodeDecodeError, again at
  each fetch of the batch.

`PARTS` lists what is used. `client_api.choose` compares it with the installed aiokafka.
`AWAY_MESSAGES` are texts that aiokafka logs; `complaints` folds them.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterator, Set
from typing import Any, Final, SupportsIndex

import aiokafka
import aiokafka.errors
from aiokafka.consumer import fetcher
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.record import default_records, memory_records

from tailrace.log.deadlines import finishes_within
from tailrace.private_parts import Part

EXPECTED_VERSION: Final = "0.14"
CLOSE_S: Final = 1.0
SENDER_END_S: Final = 4.0

_PRODUCER: Final = "aiokafka.producer.producer"

PARTS: Final = (
    Part(
        _PRODUCER,
        "AIOKafkaProducer.__init__",
        names=("client", "_sender", "_message_accumulator", "_closed"),
    ),
    # `_closed` says that `stop` has nothing to do; without it a discarded producer warns.
    Part(_PRODUCER, "AIOKafkaProducer.stop", names=("_closed", "_sender", "sender_task")),
    Part("aiokafka.producer.sender", "Sender.__init__", names=("_sender_task",)),
    Part("aiokafka.producer.sender", "Sender.sender_task"),
    Part(
        "aiokafka.producer.message_accumulator",
        "MessageAccumulator.fail_all",
        ("self", "exception"),
    ),
    Part("aiokafka.consumer.consumer", "AIOKafkaConsumer.__init__", names=("_client",)),
    Part("aiokafka.consumer.consumer", "AIOKafkaConsumer.stop", names=("_client",)),
    Part("aiokafka.client", "AIOKafkaClient.close", ("self",)),
    Part("aiokafka.consumer.consumer", "AIOKafkaConsumer.getmany", names=("_fetcher",)),
    Part("aiokafka.consumer.fetcher", "Fetcher.__init__", names=("_records",)),
    Part("aiokafka.consumer.fetcher", "FetchResult.__init__", names=("_partition_records",)),
    Part("aiokafka.consumer.fetcher", "PartitionRecords.__init__", names=("_records_iterator",)),
    # Every produce request goes through `send` of the producer's own client.
    Part("aiokafka.client", "AIOKafkaClient.send", ("self", "node_id", "request"), ("ready",)),
    Part("aiokafka.client", "AIOKafkaClient.ready", ("self", "node_id")),
    Part(
        "aiokafka.producer.sender",
        "SendProduceReqHandler.__init__",
        ("self", "sender", "batches"),
        ("client", "_client"),
    ),
    Part("aiokafka.producer.sender", "SendProduceReqHandler.do", names=("_client", "send")),
    Part(
        "aiokafka.producer.sender",
        "SendProduceReqHandler.create_request",
        names=("ProduceRequest",),
    ),
    Part("aiokafka.protocol.produce", "ProduceRequest.__init__", names=("_topics",)),
    Part(
        "aiokafka.consumer.fetcher",
        "Fetcher._proc_fetch_request",
        names=("MemoryRecords", "PartitionRecords"),
    ),
    Part(
        "aiokafka.consumer.fetcher",
        "PartitionRecords._unpack_records",
        ("self",),
        ("_records", "_consume_aborted_up_to", "next_fetch_offset"),
    ),
    Part(
        "aiokafka.consumer.fetcher",
        "PartitionRecords.__init__",
        names=("_aborted_transactions", "_aborted_producers"),
    ),
    Part("aiokafka.record.memory_records", "_MemoryRecordsPy.next_batch", names=("_next_slice",)),
    Part("aiokafka.record.default_records", "_DefaultRecordBatchPy._read_msg", names=("_buffer",)),
)

# How the lines begin that aiokafka logs while its broker is away.
AWAY_MESSAGES: Final = (
    "Unable connect to node",
    "Unable to update metadata",
    "Unable to request metadata",
    "Failed fetch messages",
    "Got error produce response: ",
    "Error sending %s to node",
    "Heartbeat send request failed",
)


async def close_connections(consumer: aiokafka.AIOKafkaConsumer) -> None:
    """Close the connections of a consumer that did not stop, if they are where they were in the
    version that this was written for."""
    client = getattr(consumer, "_client", None)
    if client is not None:
        await finishes_within(client.close(), CLOSE_S)


class _Text(bytes):
    """Decodes what is no UTF-8, too."""

    def __getitem__(self, at: SupportsIndex | slice) -> Any:
        text = super().__getitem__(at)
        return _Text(text) if isinstance(text, bytes) else text

    def decode(self, *_: Any) -> str:
        return bytes.decode(self, errors="replace")


class _Batch(default_records._DefaultRecordBatchPy):  # type: ignore[misc]
    """Decodes in Python, which takes several times as long, any header name."""

    _buffer: bytes

    def __iter__(self) -> Any:
        super().__iter__()  # decompresses
        self._buffer = _Text(self._buffer)
        return self


class _Batches(memory_records._MemoryRecordsPy):  # type: ignore[misc]
    def next_batch(self) -> Any:
        batch = self._next_slice
        super().next_batch()
        return _Batch(batch)


class _Fetched:
    """`MemoryRecords` that keep what was fetched."""

    def __init__(self, data: bytes) -> None:
        records = memory_records.MemoryRecords(data)
        self.data = data
        self.has_next, self.next_batch = records.has_next, records.next_batch
        self.size_in_bytes = records.size_in_bytes


class _Records(fetcher.PartitionRecords):  # type: ignore[misc]
    _records: Any
    _aborted_transactions: list[Any]
    _aborted_producers: set[int]

    # For `private_parts`, which looks at the code of the library's own.
    @functools.wraps(fetcher.PartitionRecords._unpack_records)
    def _unpack_records(self) -> Iterator[Any]:
        aborted = list(self._aborted_transactions)
        try:
            yield from super()._unpack_records()
        except UnicodeDecodeError:
            # Once more from the beginning, without what was read.
            read = self.next_fetch_offset
            self._records = _Batches(self._records.data)
            self._aborted_transactions, self._aborted_producers = aborted, set()
            for record in super()._unpack_records():
                if record.offset >= read:
                    yield record


class InternalApi:
    """`client_api.ClientApi` over private parts."""

    waits_for_former_producer: Final = False

    def __init__(self) -> None:
        """Every consumer of the process reads header names of any bytes from now on."""
        fetcher.MemoryRecords, fetcher.PartitionRecords = _Fetched, _Records

    def guard_sending(
        self,
        producer: aiokafka.AIOKafkaProducer,
        may_send: Callable[[Set[tuple[str, int]]], bool],
    ) -> bool:
        """Ask `may_send` before each produce request. One that may not go is kept back, as if the
        broker could not be reached."""
        client = producer.client
        send = client.send

        async def guarded_send(node_id: int, request: Any, **how: Any) -> Any:
            if isinstance(request, ProduceRequest):
                # Nothing is sent before there is a connection. From here to the write in `send`
                # nothing awaits.
                ready = await client.ready(node_id, **how)
                partitions = {(topic, p) for topic, parts in request._topics for p, _ in parts}
                if not ready or not may_send(partitions):
                    raise aiokafka.errors.NodeNotReadyError(f"node {node_id}")
            return await send(node_id, request, **how)

        client.send = guarded_send
        return True

    def drop_prefetched(self, consumer: aiokafka.AIOKafkaConsumer) -> None:
        """Free what was fetched and not read."""
        for fetched in consumer._fetcher._records.values():
            unread = getattr(fetched, "_partition_records", None)  # an error has none
            if unread is not None:
                unread._records_iterator = None  # a generator, whose frame holds `unread`

    async def stop_consumer(self, consumer: aiokafka.AIOKafkaConsumer, deadline_s: float) -> None:
        """Stop within the deadline; afterwards at least the connections are closed."""
        if not await finishes_within(consumer.stop(), deadline_s):
            await close_connections(consumer)

    async def discard_producer(self, producer: aiokafka.AIOKafkaProducer) -> None:
        """Get rid of a producer without flushing."""
        producer._closed = True
        sender = producer._sender.sender_task
        if sender is not None:
            sender.cancel()
        # Fails what the sender still waits for.
        await finishes_within(producer.client.close(), CLOSE_S)
        producer._message_accumulator.fail_all(aiokafka.errors.ProducerClosed())
        if sender is not None:
            await asyncio.wait({sender}, timeout=SENDER_END_S)

    def sender_ended(self, producer: aiokafka.AIOKafkaProducer) -> bool:
        """Whether a started producer's sender task has ended, which aiokafka does not report."""
        ended: bool = producer._sender.sender_task.done()
        return ended
