"""Records and offsets in one transaction: consume, transform, produce (KIP-98).

aiokafka 0.14 speaks the first version of the transaction requests, which have no group member
(KIP-447). So a former owner of a partition is fenced by the transactional id: each partition of the
input has its own, and starting a producer with it ends the transaction of the former producer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import aiokafka
import aiokafka.errors
from aiokafka.structs import OffsetAndMetadata

from tailrace.log import address, client_api, clients, deadlines
from tailrace.protocol import log_words, records

TRANSACTION_TIMEOUT_MS: Final = 60_000
COMMIT_DEADLINE_S: Final = 30.0

# Another producer has this transactional id.
_FENCED: Final = (
    aiokafka.errors.ProducerFenced,
    aiokafka.errors.InvalidProducerEpoch,
    aiokafka.errors.InvalidProducerIdMapping,
)
# A transaction that failed in some way. The committed offsets show its outcome.
_FAILED: Final = (
    *clients.CONNECTION_ERRORS,
    AssertionError,  # without a leader, and with a dead sender
    AttributeError,
)


class Fenced(Exception):
    """Another process has this transactional id now. Nothing of the transaction was written."""


class Outgoing(NamedTuple):
    """A record to be written. Its partition is chosen by the key, as Kafka's own clients do."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: log_words.Headers = ()


class Transactions:
    """Writes transactions under one transactional id, one after the other.

    Attributes:
        _producer: None before `start`, and after a transaction failed.
    """

    def __init__(
        self,
        bootstrap: str,
        transactional_id: str,
        *,
        client_id: str,
        api: client_api.ClientApi | None = None,
    ) -> None:
        self._bootstrap = bootstrap
        self._id = transactional_id
        self._client_id = client_id
        self._api = api or client_api.default()
        self._producer: aiokafka.AIOKafkaProducer | None = None

    async def start(self) -> None:
        """Take the transactional id over. Afterwards no transaction of a former producer is open,
        and none begins.

        Raises:
            LogUnavailable: no answer; try again.
        """
        await self.stop()
        try:
            producer = self._new_producer()
        except OSError as error:  # a file of the address is missing now
            raise log_words.LogUnavailable(f"transactions: {error}") from error
        try:
            await deadlines.start_client(producer, clients.ANSWER_DEADLINE_S)
        except (*_FAILED, *_FENCED) as error:
            await self._api.discard_producer(producer)
            raise log_words.LogUnavailable(f"transactions: {type(error).__name__}") from error
        except BaseException:  # also cancelled: a half started producer would continue by itself
            await self._api.discard_producer(producer)
            raise
        self._producer = producer

    def _new_producer(self) -> aiokafka.AIOKafkaProducer:
        return aiokafka.AIOKafkaProducer(
            **address.options(self._bootstrap),
            client_id=self._client_id,
            transactional_id=self._id,
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            acks="all",
            linger_ms=0,
            max_batch_size=65536,
            max_request_size=records.MAX_RECORD_BYTES,
            metadata_max_age_ms=30_000,
            retry_backoff_ms=50,
        )

    async def commit(
        self,
        outgoing: Sequence[Outgoing],
        group: str,
        offsets: Mapping[tuple[str, int], tuple[int, str]],
    ) -> None:
        """Write the records and the group's (next offset, metadata) by partition: all or nothing.

        Raises:
            Fenced: nothing was written.
            LogUnavailable: the outcome is unknown. After `start` the group's committed offsets show
                it. Before `start` they may lag: the broker answers before it has written them.
        """
        producer = self._producer
        if producer is None:
            raise log_words.LogUnavailable("transactions: not started")
        try:
            async with asyncio.timeout(COMMIT_DEADLINE_S):
                await self._write(producer, outgoing, group, offsets)
        except _FENCED as error:
            await self.stop()
            raise Fenced(type(error).__name__) from error
        except (*_FAILED, TimeoutError) as error:
            await self.stop()
            raise log_words.LogUnavailable(f"transaction: {type(error).__name__}") from error
        except BaseException:
            await self.stop()
            raise

    async def _write(
        self,
        producer: aiokafka.AIOKafkaProducer,
        outgoing: Sequence[Outgoing],
        group: str,
        offsets: Mapping[tuple[str, int], tuple[int, str]],
    ) -> None:
        await producer.begin_transaction()
        sends = [
            await producer.send(each.topic, each.value, each.key, headers=list(each.headers))
            for each in outgoing
        ]
        # aiokafka can commit a transaction of which a batch failed, unless each send was awaited.
        for outcome in await asyncio.gather(*sends, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome
        await producer.send_offsets_to_transaction(
            {
                aiokafka.TopicPartition(topic, partition): OffsetAndMetadata(offset, metadata)
                for (topic, partition), (offset, metadata) in offsets.items()
            },
            group,
        )
        await producer.commit_transaction()

    async def stop(self) -> None:
        """Close the producer. A transaction that is open ends with it, or by its timeout."""
        producer, self._producer = self._producer, None
        if producer is not None:
            await self._api.discard_producer(producer)
