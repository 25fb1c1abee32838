"""`tailrace archive retry`: folds the records again that the archive has set aside."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from tailrace import log
from tailrace.archive import conversation_rows, database, retry

UNAVAILABLE = (log.LogUnavailable, *database.ERRORS)


def run(kafka: str, archive: str, say: Callable[[str], None]) -> int:
    """Print the outcome of each record. Returns the number that stay set aside.

    Raises:
        ValueError: `archive` is not a database URL.
        UNAVAILABLE
    """
    database.address(archive)
    return asyncio.run(_retry(kafka, archive, say))


async def _retry(kafka: str, archive: str, say: Callable[[str], None]) -> int:
    engine = database.engine(archive)
    replays, writer = log.Replays(kafka, size=1), log.Writer(kafka)
    writing = asyncio.create_task(writer.run())
    remaining = 0

    async def erase(addresses: set[conversation_rows.Address]) -> None:
        await asyncio.gather(*(writer.append(*each, None) for each in sorted(addresses)))

    try:
        layout = await log.layout(kafka)
        async for row, outcome in retry.retry(engine, layout.incarnation, replays, erase):
            remaining += outcome not in (retry.FOLDED, retry.LOST)
            say(f"{row.name[0]}[{row.partition}] offset {row.offset}: {outcome}")
        say("nothing is set aside" if not remaining else f"{remaining} records stay set aside")
    finally:
        await writer.stop(log.RETRY_S)
        writing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await writing
        await replays.stop()
        await engine.dispose()
    return remaining
