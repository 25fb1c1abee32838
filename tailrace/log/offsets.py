"""Questions about offsets: where partitions begin and end, and what a group has committed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import aiokafka
import aiokafka.admin
import aiokafka.errors

from tailrace.log import address, clients
from tailrace.protocol import log_words


class Offsets:
    """Asks for offsets on connections of its own."""

    def __init__(
        self,
        bootstrap: str,
        *,
        client_id: str = "tailrace-offsets",
        answer_deadline_s: float = clients.ANSWER_DEADLINE_S,
    ) -> None:
        self._bootstrap = bootstrap
        self._client_id = client_id
        self._answer_deadline_s = answer_deadline_s
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
            async with asyncio.timeout(self._answer_deadline_s):
                admin = await self._administrator()
                found = await self._committed(admin, group)
        except (aiokafka.errors.KafkaError, OSError, TimeoutError, AttributeError) as error:
            await self._drop_admin(admin)
            raise log_words.LogUnavailable(
                f"committed offsets of {group}: {type(error).__name__}"
            ) from error
        return {
            (tp.topic, tp.partition): (o.offset, o.metadata)
            for tp, o in found.items()
            if o.offset >= 0
        }

    async def partitions(self, topic: str) -> int:
        """How many partitions `topic` has."""
        consumer = None
        try:
            async with asyncio.timeout(self._answer_deadline_s):
                consumer = await self._asker()
                await consumer._client._wait_on_metadata(topic)
        except (aiokafka.errors.KafkaError, OSError, TimeoutError) as error:
            await self._drop(consumer)
            raise log_words.LogUnavailable(
                f"partitions of {topic}: {type(error).__name__}"
            ) from error
        return len(consumer.partitions_for_topic(topic) or ())

    async def stop(self) -> None:
        """Close the connections."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await clients.stop_consumer(consumer, 1.0)
        await self._drop_admin(self._admin)

    @staticmethod
    async def _committed(admin: aiokafka.admin.AIOKafkaAdminClient, group: str) -> dict[Any, Any]:
        while True:
            try:
                found: dict[Any, Any] = await admin.list_consumer_group_offsets(group)
            except (
                aiokafka.errors.GroupCoordinatorNotAvailableError,
                aiokafka.errors.NotCoordinatorForGroupError,
            ):
                await asyncio.sleep(
                    0.1
                )  # the first question of a new cluster makes the broker create its offsets topic
            else:
                return found

    async def _asker(self) -> aiokafka.AIOKafkaConsumer:
        async with self._lock:
            if self._consumer is None:
                self._consumer = await clients.started_consumer(
                    lambda: clients.new_consumer(self._bootstrap, client_id=self._client_id),
                    self._answer_deadline_s,
                )
            return self._consumer

    async def _drop(self, consumer: aiokafka.AIOKafkaConsumer | None) -> None:
        """After an error. The one that failed only: another question may have made a new one
        since."""
        if consumer is not None and self._consumer is consumer:
            self._consumer = None
            await clients.stop_consumer(consumer, 1.0)

    async def _administrator(self) -> aiokafka.admin.AIOKafkaAdminClient:
        async with self._lock:
            if self._admin is None:
                admin = aiokafka.admin.AIOKafkaAdminClient(
                    **address.options(self._bootstrap), client_id=self._client_id
                )
                try:
                    await admin.start()
                except BaseException:
                    await clients.close_admin(admin)
                    raise
                self._admin = admin
            return self._admin

    async def _drop_admin(self, admin: aiokafka.admin.AIOKafkaAdminClient | None) -> None:
        if admin is not None and self._admin is admin:
            self._admin = None
            await clients.close_admin(admin)

    async def _ask(self, method: str, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        tps = [aiokafka.TopicPartition(topic, p) for p in partitions]
        if not tps:
            return {}
        consumer = None
        try:
            async with asyncio.timeout(self._answer_deadline_s):
                consumer = await self._asker()
                found = await getattr(consumer, method)(tps)
        except (aiokafka.errors.KafkaError, OSError, TimeoutError) as error:
            await self._drop(consumer)
            raise log_words.LogUnavailable(
                f"{method} of {topic}: {type(error).__name__}"
            ) from error
        return {tp.partition: offset for tp, offset in found.items()}
