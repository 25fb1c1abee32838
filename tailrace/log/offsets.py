"""Queries offsets: where partitions begin and end, and which offsets a group has committed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

import aiokafka
import aiokafka.admin
import aiokafka.errors

from tailrace.log import address, client_api, clients
from tailrace.protocol import log_words
from tailrace.retry import retry_until

# An answer takes milliseconds. Shorter than the wait of `health`, so that its query also gets a
# second client.
FIRST_ANSWER_S: Final = 2.0


class Offsets:
    """Queries offsets on connections of its own. Every query raises LogUnavailable without an
    answer.

    Attributes:
        _consumer: answers about ends and beginnings; None before the first question and after an
            error.
        _admin: answers about groups and topics; None likewise.
        _lock: held while one of them is created.
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        client_id: str = "tailrace-offsets",
        answer_deadline_s: float = clients.ANSWER_DEADLINE_S,
        api: client_api.ClientApi | None = None,
    ) -> None:
        self._bootstrap = bootstrap
        self._client_id = client_id
        self._answer_deadline_s = answer_deadline_s
        self._api = api or client_api.default()
        self._consumer: aiokafka.AIOKafkaConsumer | None = None
        self._admin: aiokafka.admin.AIOKafkaAdminClient | None = None
        self._lock = asyncio.Lock()

    async def ends(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        """Current end offset (next to be written, up to the high watermark) of each partition."""
        return await self._query_consumer(aiokafka.AIOKafkaConsumer.end_offsets, topic, partitions)

    async def beginnings(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        """Oldest offset still held, of each partition."""
        return await self._query_consumer(
            aiokafka.AIOKafkaConsumer.beginning_offsets, topic, partitions
        )

    async def since(self, topic: str, partitions: Iterable[int], timestamp: int) -> dict[int, int]:
        """Offset of the first record at or after a time (ms), of each partition that has one."""

        async def first_at(
            consumer: aiokafka.AIOKafkaConsumer, tps: list[aiokafka.TopicPartition]
        ) -> dict[aiokafka.TopicPartition, int]:
            offsets = await consumer.offsets_for_times(dict.fromkeys(tps, timestamp))
            return {tp: at.offset for tp, at in offsets.items() if at is not None}

        return await self._query_consumer(first_at, topic, partitions)

    async def committed(self, group: str) -> dict[tuple[str, int], tuple[int, str]]:
        """Committed (offset, metadata) of a group by (topic, partition)."""
        offsets = await self._query_admin(
            lambda admin: self._committed(admin, group), f"committed offsets of {group}"
        )
        return {
            (tp.topic, tp.partition): (o.offset, o.metadata)
            for tp, o in offsets.items()
            if o.offset >= 0
        }

    async def partitions(self, topic: str) -> int:
        """Number of partitions of `topic`."""
        [description] = await self._query_admin(
            lambda admin: admin.describe_topics([topic]), f"partitions of {topic}"
        )
        if description["error_code"]:
            raise log_words.LogUnavailable(
                f"partitions of {topic}: error {description['error_code']}"
            )
        return len(description["partitions"])

    async def members(self, group: str) -> frozenset[str]:
        """Ids of the group's members. The broker makes them of their client ids, `CLIENT-UUID`."""
        [answer] = await self._query_admin(
            lambda admin: admin.describe_consumer_groups([group]), f"members of {group}"
        )
        error, *_ = group_info = answer.groups[0]
        if error:
            raise log_words.LogUnavailable(f"members of {group}: error {error}")
        return frozenset(member[0] for member in group_info[5])

    async def existing(self, topics: Iterable[str]) -> frozenset[str]:
        """Those topics among `topics` that exist."""
        names = await self._query_admin(lambda admin: admin.list_topics(), "topics")
        return frozenset(topics) & frozenset(names)

    async def stop(self) -> None:
        """Close the connections."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await self._api.stop_consumer(consumer, 1.0)
        await self._drop_admin(self._admin)

    @staticmethod
    async def _committed(admin: aiokafka.admin.AIOKafkaAdminClient, group: str) -> dict[Any, Any]:
        # A new cluster creates its offsets topic at the first query.
        offsets: dict[Any, Any] = await retry_until(
            lambda: admin.list_consumer_group_offsets(group),
            on=(
                aiokafka.errors.GroupCoordinatorNotAvailableError,
                aiokafka.errors.NotCoordinatorForGroupError,
            ),
            pause_s=0.1,
        )
        return offsets

    async def _query_client(self) -> aiokafka.AIOKafkaConsumer:
        async with self._lock:
            if self._consumer is None:
                self._consumer = await clients.start_consumer(
                    lambda: clients.new_consumer(self._bootstrap, client_id=self._client_id),
                    self._api,
                    self._answer_deadline_s,
                )
            return self._consumer

    async def _drop(self, consumer: aiokafka.AIOKafkaConsumer | None) -> None:
        """Drop the client that failed. Another question may have made a new one since."""
        if consumer is not None and self._consumer is consumer:
            self._consumer = None
            await self._api.stop_consumer(consumer, 1.0)

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

    async def _query_admin(self, question: Callable[[Any], Awaitable[Any]], subject: str) -> Any:
        return await self._query_with_retry(
            self._administrator, question, self._drop_admin, subject
        )

    async def _query_consumer(
        self, question: Any, topic: str, partitions: Iterable[int]
    ) -> dict[int, int]:
        tps = [aiokafka.TopicPartition(topic, p) for p in partitions]
        if not tps:
            return {}
        offsets = await self._query_with_retry(
            self._query_client,
            lambda consumer: question(consumer, tps),
            self._drop,
            f"{question.__name__} of {topic}",
        )
        return {tp.partition: offset for tp, offset in offsets.items()}

    async def _query_with_retry(
        self,
        get: Callable[[], Awaitable[Any]],
        question: Callable[[Any], Awaitable[Any]],
        drop: Callable[[Any], Awaitable[None]],
        subject: str,
    ) -> Any:
        """Query once more, on a new client, if the first one does not answer. Its connection may
        have ended, and it logs in again with the credentials of its creation.

        Raises:
            LogUnavailable
        """
        give_up = time.monotonic() + self._answer_deadline_s
        first_s = min(FIRST_ANSWER_S, self._answer_deadline_s / 2)
        failure: BaseException | None = None
        for second in (False, True):
            client = None
            try:
                async with asyncio.timeout(give_up - time.monotonic() if second else first_s):
                    client = await get()
                    return await question(client)
            except (*clients.CONNECTION_ERRORS, log_words.LogUnavailable, AttributeError) as error:
                # AttributeError: there is no controller (aiokafka 0.14).
                await drop(client)
                failure = error
        raise log_words.LogUnavailable(f"{subject}: {type(failure).__name__}") from failure
