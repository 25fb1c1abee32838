"""A `Delivery` over a log in memory."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence

from tailrace.archive import reader
from tailrace.delivery import delivery, kept_bytes, log_clients, revocations
from tailrace.protocol import feed, topics
from tests.support import log_contract, memory_log

WAIT_MS = 20


def clients(broker: memory_log.MemoryLog, *, replays: int = 2) -> log_clients.LogClients:
    """What a delivery reads `broker` with. `replays`: how many may run at once."""
    return log_clients.LogClients(
        broker.reader(topics.TOKENS, wait_ms=WAIT_MS),
        broker.reader(topics.TOKENS, wait_ms=WAIT_MS),
        broker.reader(topics.DELETIONS, wait_ms=WAIT_MS),
        broker.reader(topics.REVOCATIONS, wait_ms=WAIT_MS),
        {topic: broker.reader(topic, wait_ms=WAIT_MS) for topic in feed.TOPICS},
        broker.replays(replays),
        broker.offsets(),
        broker.read_layout,
    )


def over(
    broker: memory_log.MemoryLog,
    *,
    preferred: Sequence[int] = (),
    using: log_clients.LogClients | None = None,
    clock: Callable[[], float] = time.monotonic,
    kept: kept_bytes.KeptBytes | None = None,
    archive: reader.Reader | None = None,
) -> delivery.Delivery:
    """A delivery that knows `broker` as it is now."""
    return delivery.Delivery(
        using or clients(broker),
        layout=broker.layout,
        pools=lambda: ["default"],
        preferred=preferred,
        clock=clock,
        request_bytes=kept,
        archive=archive,
    )


def no_revocations() -> revocations.Revocations:
    """Nothing is revoked, unless a test applies a record."""
    broker = memory_log.MemoryLog()
    return revocations.Revocations(broker.reader(topics.REVOCATIONS), broker.offsets())


@contextlib.asynccontextmanager
async def running(
    made: delivery.Delivery, *, ready: bool = True
) -> AsyncIterator[delivery.Delivery]:
    """Run it; it is ready inside, unless `ready` is False."""
    task = asyncio.create_task(made.run())
    try:
        if ready:
            await log_contract.until(lambda: made.ready or task.done(), 10)
        yield made
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
