"""The log of a deployment: a writer, and the records of given responses after they have ended."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterable

from tailrace import log
from tailrace.protocol import ids, records, topics


@contextlib.asynccontextmanager
async def writer(bootstrap: str) -> AsyncGenerator[log.Writer]:
    """A running writer of the log."""
    log_writer = log.Writer(bootstrap, client_id="bench")
    running = asyncio.create_task(log_writer.run())
    try:
        yield log_writer
    finally:
        await log_writer.stop()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def token_records(
    bootstrap: str, rids: Iterable[str]
) -> AsyncGenerator[tuple[records.TokenRecord, log.Record], None]:
    """Yield the readable records of these responses, decoded and raw, in order per partition."""
    rid_set = frozenset(rids)
    starts: dict[int, int] = {}
    for address in map(ids.parse, rid_set):
        starts[address.partition] = min(
            address.offset, starts.get(address.partition, address.offset)
        )
    offsets, replays = log.Offsets(bootstrap), log.Replays(bootstrap, size=1)
    try:
        ends = await offsets.ends(topics.TOKENS, starts)
        for partition, start in starts.items():
            async for batch in replays.read(topics.TOKENS, partition, start, ends[partition]):
                for r in batch:
                    record = records.token_of(r.key, r.value)
                    if record is not None and record.rid in rid_set:
                        yield record, r
    finally:
        await replays.stop()
        await offsets.stop()
