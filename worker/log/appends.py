"""Records that must be in the log before a request's offset is finished."""

from __future__ import annotations

from typing import Final

from tailrace import log
from tailrace.log import interfaces
from tailrace.retry import retry_until

RETRY_S: Final = 0.5


async def append_surely(
    writer: interfaces.RecordWriter, topic: str, partition: int, key: str, value: bytes
) -> None:
    """Return once the broker has the record. An ambiguous append may double it."""
    await retry_until(
        lambda: writer.append(topic, partition, key, value),
        on=log.AppendFailed,
        pause_s=RETRY_S,
    )
