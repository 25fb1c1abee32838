"""The only module that uses private parts of aiokafka, and the check that they are as expected.

Five things rest on them:

- A producer whose send failed is discarded without a flush. aiokafka's `stop` would go on sending
  records that were told to have failed.
- Every produce request is announced before it goes onto a connection. So it is known of each record
  whether it was ever sent, and what was given up is never sent.
- A sender task that ended by itself is noticed within a second, instead of by the append deadline.
- A consumer that does not stop in time loses its connections at once.
- What a consumer has fetched and will not hand out is freed at once. It is up to megabytes, and
  refers to itself.

`PARTS` lists what is used. `client_api.choose` compares it with the installed aiokafka.
`AWAY_MESSAGES` are texts that aiokafka logs; `complaints` folds them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Set
from typing import Any, Final

import aiokafka
import aiokafka.errors
from aiokafka.protocol.produce import ProduceRequest

from tailrace.log.deadlines import finishes_within
from tailrace.private_parts import Part

WRITTEN_FOR: Final = "0.14"
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


class InternalApi:
    """`client_api.ClientApi` over private parts."""

    waits_for_former_producer: Final = False

    def guard_sending(
        self,
        producer: aiokafka.AIOKafkaProducer,
        may_send: Callable[[Set[tuple[str, int]]], bool],
    ) -> bool:
        """Ask `may_send` before each produce request. One that may not go is kept back, as if the
        broker could not be reached."""
        client = producer.client
        send = client.send

        async def guarded(node_id: int, request: Any, **how: Any) -> Any:
            if isinstance(request, ProduceRequest):
                # Nothing is sent before there is a connection. From here to the write in `send`
                # nothing awaits.
                ready = await client.ready(node_id, **how)
                named = {(topic, p) for topic, parts in request._topics for p, _ in parts}
                if not ready or not may_send(named):
                    raise aiokafka.errors.NodeNotReadyError(f"node {node_id}")
            return await send(node_id, request, **how)

        client.send = guarded
        return True

    def forget_fetched(self, consumer: aiokafka.AIOKafkaConsumer) -> None:
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
