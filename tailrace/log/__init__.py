"""The Kafka client: a writer, tail readers, replays, offset queries, a group consumer, topics.

In: records, offsets and the address of a broker. Out: the records and errors of
`tailrace.protocol.log_words`. Callers take the types of `interfaces`; no other room of a service
imports aiokafka.

What aiokafka 0.14 forces (`docs/design/log-client.md`):

- A failed or ambiguous send makes its producer worthless: an expired batch has used up sequence
  numbers. The writer replaces the producer, and workers claim again.
- `stop()` may wait without limit while the broker is away. Every shutdown has its own deadline.
- `assign()` forgets the positions of partitions it already had. They are sought again after it.
- A broker answers the requests of one connection in order. An offset query after a long poll would
  wait for it, so queries have connections of their own.
- Private parts of aiokafka are used in `aiokafka_internals` only. `client_api` chooses between them
  and public API.
"""

from tailrace.log.admin import Layout, apply_topics, create_topics, layout, wait_for_layout
from tailrace.log.client_api import use_public_api
from tailrace.log.clients import RETRY_S
from tailrace.log.complaints import fold_complaints
from tailrace.log.group_consumer import GroupConsumer
from tailrace.log.marks import Mark, Position, rolled_back
from tailrace.log.offsets import Offsets
from tailrace.log.readers import Reader, Replays
from tailrace.log.record_keys import in_use as record_keys_in_use
from tailrace.log.record_keys import use_record_keys
from tailrace.log.transactions import Fenced, Outgoing, Transactions
from tailrace.log.writer import RECORD_OVERHEAD_BYTES, Writer
from tailrace.protocol.log_words import (
    Appended,
    AppendFailed,
    Headers,
    HistoryLost,
    LogChanged,
    LogUnavailable,
    NotAppended,
    Record,
    TooLarge,
)

__all__ = [
    "RECORD_OVERHEAD_BYTES",
    "RETRY_S",
    "AppendFailed",
    "Appended",
    "Fenced",
    "GroupConsumer",
    "Headers",
    "HistoryLost",
    "Layout",
    "LogChanged",
    "LogUnavailable",
    "Mark",
    "NotAppended",
    "Offsets",
    "Outgoing",
    "Position",
    "Reader",
    "Record",
    "Replays",
    "TooLarge",
    "Transactions",
    "Writer",
    "apply_topics",
    "create_topics",
    "fold_complaints",
    "layout",
    "record_keys_in_use",
    "rolled_back",
    "use_public_api",
    "use_record_keys",
    "wait_for_layout",
]
