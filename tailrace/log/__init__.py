"""The Kafka client: one writer that heals by replacement, readers by `assign()`, group intake, and
administration.

What aiokafka 0.14 forces (`docs/design.md`, The log client):
- any failed or ambiguous send makes its producer worthless (an expired batch has used up sequence
  numbers): replace it, and let writers claim anew;
- `stop()` may wait for ever while the broker is away, and a producer goes on sending meanwhile:
  every shutdown has its own deadline;
- `assign()` forgets the positions of partitions it already had: they are read before and sought
  after;
- requests on one connection are answered in order, so an offset query behind a long poll waits for
  it: queries have a client of their own.
"""

from tailrace.log.admin import Layout, apply_topics, layout, wait_for_layout, wait_until_ready
from tailrace.log.client_api import use_public_api
from tailrace.log.clients import RETRY_S
from tailrace.log.complaints import fold_complaints
from tailrace.log.group_consumer import GroupConsumer
from tailrace.log.offsets import Offsets
from tailrace.log.readers import Reader, Replays
from tailrace.log.writer import RECORD_OVERHEAD_BYTES, Writer
from tailrace.protocol.log_words import (
    Appended,
    AppendFailed,
    Headers,
    HistoryLost,
    LogChanged,
    LogUnavailable,
    Record,
    TooLarge,
)

__all__ = [
    "RECORD_OVERHEAD_BYTES",
    "RETRY_S",
    "AppendFailed",
    "Appended",
    "GroupConsumer",
    "Headers",
    "HistoryLost",
    "Layout",
    "LogChanged",
    "LogUnavailable",
    "Offsets",
    "Reader",
    "Record",
    "Replays",
    "TooLarge",
    "Writer",
    "apply_topics",
    "fold_complaints",
    "layout",
    "use_public_api",
    "wait_for_layout",
    "wait_until_ready",
]
