"""Answers questions about offsets: where partitions begin and end, what a group has committed."""

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

# An answer takes milliseconds. Shorter than what `health` waits, so that its question gets a second
# client, too.
FIRST_ANSWER_S: Final = 2.0


class Offsets:
    """Asks for offsets on connections of its own. Every question raises LogUnavailable when there
    is no answer.

    Attributes:
        _consumer: answers about ends and beginnings; None before the first question and after an
            error.
        _admin: answers about groups and topics; None likewise.
        _lock: held while one of them is made.
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
        return await self._ask(aiokafka.AIOKafkaConsumer.end_offsets, topic, partitions)

    async def beginnings(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        """Oldest offset still held, of each partition."""
        return await self._ask(aiokafka.AIOKafkaConsumer.beginning_offsets, topic, partitions)

    async def since(self, topic: str, partitions: Iterable[int], timestamp: int) -> dict[int, int]:
        """Offset of the first record at or after a time (ms), of each partition that has one."""

        async def first_at(
            consumer: aiokafka.AIOKafkaConsumer, tps: list[aiokafka.TopicPartition]
        ) -> dict[aiokafka.TopicPartition, int]:
            found = await consumer.offsets_for_times(dict.fromkeys(tps, timestamp))
            return {tp: at.offset for tp, at in found.items() if at is not None}

        return await self._ask(first_at, topic, partitions)

    async def committed(self, group: str) -> dict[tuple[str, int], tuple[int, str]]:
        """Committed (offset, metadata) of a group by (topic, partition)."""
        found = await self._ask_admin(
            lambda admin: self._committed(admin, group), f"committed offsets of {group}"
        )
        return {
            (tp.topic, tp.partition): (o.offset, o.metadata)
            for tp, o in found.items()
            if o.offset >= 0
        }

    async def partitions(self, topic: str) -> int:
        """Number of partitions of `topic`."""
        [found] = await self._ask_admin(
            lambda admin: admin.describe_topics([topic]), f"partitions of {topic}"
        )
        if found["error_code"]:
            raise log_words.LogUnavailable(f"partitions of {topic}: error {found['error_code']}")
        return len(found["partitions"])

    async def members(self, group: str) -> frozenset[str]:
        """Ids of the group's members. The broker makes them of their client ids, `CLIENT-UUID`."""
        [found] = await self._ask_admin(
            lambda admin: admin.describe_consumer_groups([group]), f"members of {group}"
        )
        error, *_ = described = found.groups[0]
        if error:
            raise log_words.LogUnavailable(f"members of {group}: error {error}")
        return frozenset(member[0] for member in described[5])

    async def there(self, topics: Iterable[str]) -> frozenset[str]:
        """Those of the topics that exist."""
        found = await self._ask_admin(lambda admin: admin.list_topics(), "topics")
        return frozenset(topics) & frozenset(found)

    async def stop(self) -> None:
        """Close the connections."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await self._api.stop_consumer(consumer, 1.0)
        await self._drop_admin(self._admin)

    @staticmethod
    async def _committed(admin: aiokafka.admin.AIOKafkaAdminClient, group: str) -> dict[Any, Any]:
        # A new cluster makes its offsets topic at the first question.
        found: dict[Any, Any] = await retry_until(
            lambda: admin.list_consumer_group_offsets(group),
            on=(
                aiokafka.errors.GroupCoordinatorNotAvailableError,
                aiokafka.errors.NotCoordinatorForGroupError,
            ),
            pause_s=0.1,
        )
        return found

    async def _asker(self) -> aiokafka.AIOKafkaConsumer:
        async with self._lock:
            if self._consumer is None:
                self._consumer = await clients.started_consumer(
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

    async def _ask_admin(self, question: Callable[[Any], Awaitable[Any]], what: str) -> Any:
        return await self._ask_twice(self._administrator, question, self._drop_admin, what)

    async def _ask(self, question: Any, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        tps = [aiokafka.TopicPartition(topic, p) for p in partitions]
        if not tps:
            return {}
        found = await self._ask_twice(
            self._asker,
            lambda consumer: question(consumer, tps),
            self._drop,
            f"{question.__name__} of {topic}",
        )
        return {tp.partition: offset for tp, offset in found.items()}

    async def _ask_twice(
        self,
        get: Callable[[], Awaitable[Any]],
        question: Callable[[Any], Awaitable[Any]],
        drop: Callable[[Any], Awaitable[None]],
        what: str,
    ) -> Any:
        """Ask once more, on a new client, where the first one does not answer. Its connection may
        have ended, and it logs in again with what it was made with.

        Raises:
            LogUnavailable
        """
        give_up = time.monotonic() + self._answer_deadline_s
        first_s = min(FIRST_ANSWER_S, self._answer_deadline_s / 2)
        failure: BaseException | None = None
        for again in (False, True):
            client = None
            try:
                async with asyncio.timeout(give_up - time.monotonic() if again else first_s):
                    client = await get()
                    return await question(client)
            except (*clients.CONNECTION_ERRORS, log_words.LogUnavailable, AttributeError) as error:
                # AttributeError: there is no controller (aiokafka 0.14).
                await drop(client)
                failure = error
        raise log_words.LogUnavailable(f"{what}: {type(failure).__name__}") from failure
