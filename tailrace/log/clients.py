"""aiokafka's clients: made, started and ended within deadlines."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

import aiokafka
import aiokafka.admin
import aiokafka.errors

from tailrace.log import address
from tailrace.protocol import log_words

APPEND_DEADLINE_S = 15.0
STOP_DEADLINE_S = 5.0
ANSWER_DEADLINE_S = 10.0
RETRY_S = 0.5


async def start_client(client: Any, deadline_s: float = float("inf")) -> None:
    """Start a client.

    aiokafka leaves a connection open behind it when it is cancelled while it makes one: it may
    finish first, for a moment.

    Raises:
        TimeoutError: not within the deadline.
    """
    starting = asyncio.create_task(client.start())
    try:
        await asyncio.wait({starting}, timeout=deadline_s if deadline_s < float("inf") else None)
        if not starting.done():
            raise TimeoutError
    except BaseException:
        await asyncio.wait({starting}, timeout=1.0)
        starting.cancel()
        await asyncio.wait({starting}, timeout=1.0)
        raise
    starting.result()


# What was cancelled and has not ended yet; held, because the loop itself holds tasks only weakly.
_leftovers: set[asyncio.Task[Any]] = set()


async def finishes_within(work: Coroutine[Any, Any, Any], deadline_s: float) -> bool:
    """Whether the work ends well within the deadline. Otherwise it is cancelled and left alone:
    aiokafka swallows cancellations while it closes, and `wait_for` would wait for it without
    limit."""
    task = asyncio.create_task(work)
    _leftovers.add(task)
    task.add_done_callback(_leftovers.discard)
    task.add_done_callback(lambda t: t.cancelled() or t.exception())
    try:
        await asyncio.wait({task}, timeout=deadline_s)
    finally:
        task.cancel()
    return task.done() and not task.cancelled() and task.exception() is None


async def stop_consumer(consumer: aiokafka.AIOKafkaConsumer, deadline_s: float) -> None:
    """Stop a consumer within a deadline; afterwards at least its connections are closed."""
    if not await finishes_within(consumer.stop(), deadline_s):
        await finishes_within(consumer._client.close(), 1.0)


async def discard_producer(producer: aiokafka.AIOKafkaProducer) -> None:
    """Get rid of a producer without flushing: its own `stop()` would go on sending records that
    were told to have failed, and leave its task behind when it is not let finish."""
    producer._closed = True
    sender = producer._sender.sender_task
    if sender is not None:
        sender.cancel()
    await finishes_within(producer.client.close(), 1.0)  # fails what the sender still waits for
    producer._message_accumulator.fail_all(aiokafka.errors.ProducerClosed())
    if sender is not None:
        await asyncio.wait({sender}, timeout=STOP_DEADLINE_S - 1.0)


def new_consumer(bootstrap: str, **settings: Any) -> aiokafka.AIOKafkaConsumer:
    """Without a group; it says so when an offset is not in the log, and does not choose another."""
    return aiokafka.AIOKafkaConsumer(
        **address.options(bootstrap),
        enable_auto_commit=False,
        auto_offset_reset="none",
        check_crcs=False,
        retry_backoff_ms=50,
        metadata_max_age_ms=30_000,
        fetch_max_bytes=16 * 2**20,
        max_partition_fetch_bytes=4 * 2**20,
        **settings,
    )


async def started_consumer(
    make: Callable[[], aiokafka.AIOKafkaConsumer], deadline_s: float = float("inf")
) -> aiokafka.AIOKafkaConsumer:
    """A started consumer; waits for a broker that is away.

    Raises:
        LogUnavailable: not within the deadline.
    """
    give_up = time.monotonic() + deadline_s
    while True:
        consumer = make()
        try:
            await start_client(consumer, give_up - time.monotonic())
        except (aiokafka.errors.KafkaError, OSError, TimeoutError) as error:
            await stop_consumer(consumer, 1.0)
            if time.monotonic() + RETRY_S > give_up:
                raise log_words.LogUnavailable(
                    f"no connection in {deadline_s:.0f} s: {type(error).__name__}"
                ) from error
            await asyncio.sleep(RETRY_S)
        except BaseException:  # cancelled: a consumer half started would go on by itself
            await stop_consumer(consumer, 1.0)
            raise
        else:
            return consumer


async def close_admin(admin: aiokafka.admin.AIOKafkaAdminClient) -> None:
    await finishes_within(admin.close(), 1.0)
