"""Makes and starts aiokafka's clients."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import aiokafka
import aiokafka.admin
import aiokafka.errors

from tailrace.log import address, client_api
from tailrace.log.deadlines import finishes_within, start_client
from tailrace.protocol import log_words
from tailrace.retry import retry_until

T = TypeVar("T")

APPEND_DEADLINE_S = 15.0
STOP_DEADLINE_S = 5.0
ANSWER_DEADLINE_S = 10.0
RETRY_S = 0.5

# What a client raises while its broker is away. TimeoutError is an OSError.
CONNECTION_ERRORS = (aiokafka.errors.KafkaError, OSError)


def new_consumer(bootstrap: str, **settings: Any) -> aiokafka.AIOKafkaConsumer:
    """A consumer without a group. An offset that is not in the log is an error, not a reason to
    choose another one."""
    return aiokafka.AIOKafkaConsumer(
        **address.options(bootstrap),
        enable_auto_commit=False,
        auto_offset_reset="none",
        check_crcs=False,
        retry_backoff_ms=50,
        metadata_max_age_ms=30_000,
        **{"fetch_max_bytes": 16 * 2**20, "max_partition_fetch_bytes": 4 * 2**20, **settings},
    )


async def start_consumer(
    make: Callable[[], aiokafka.AIOKafkaConsumer],
    api: client_api.ClientApi,
    deadline_s: float = float("inf"),
    failed: Callable[[], None] = lambda: None,
) -> aiokafka.AIOKafkaConsumer:
    """A started consumer from `make`; waits for a broker that is away.

    `failed` is called after each attempt that failed.

    Raises:
        LogUnavailable: not within the deadline.
    """
    give_up = time.monotonic() + deadline_s

    async def attempt() -> aiokafka.AIOKafkaConsumer:
        try:
            return await start()
        except CONNECTION_ERRORS:
            failed()
            raise

    async def start() -> aiokafka.AIOKafkaConsumer:
        consumer = make()
        try:
            await start_client(consumer, give_up - time.monotonic())
        except BaseException:  # also cancelled: a half started consumer would continue by itself
            await api.stop_consumer(consumer, 1.0)
            raise
        return consumer

    try:
        return await retry_until(
            attempt, on=CONNECTION_ERRORS, pause_s=RETRY_S, deadline_s=deadline_s
        )
    except CONNECTION_ERRORS as error:
        raise log_words.LogUnavailable(
            f"no connection in {deadline_s:.0f} s: {type(error).__name__}"
        ) from error


async def retry_once(query: Callable[[], Awaitable[T]]) -> T:
    """The answer of an admin client. Its first call after the broker ended its connection fails, so
    the query is repeated once."""
    try:
        return await query()
    except aiokafka.errors.KafkaConnectionError:
        return await query()


async def close_admin(admin: aiokafka.admin.AIOKafkaAdminClient) -> None:
    """Close an admin client within a second."""
    await finishes_within(admin.close(), 1.0)
