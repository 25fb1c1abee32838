"""Records as appended and as read, and how the log fails (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

# A header without a value is allowed by Kafka, and so are names that are empty or there twice.
Headers = Sequence[tuple[str, bytes | None]]


def size_of(headers: Headers) -> int:
    """Bytes that headers take in a record, at most."""
    return sum(len(name) * 4 + len(value or b"") + 10 for name, value in headers)


class LogUnavailable(Exception):
    """The log cannot be reached or does not answer in time."""


class AppendFailed(LogUnavailable):
    """An append failed or is ambiguous: the record may be in the log, or may still get there. The
    fencing token in it must never be used again (log rule W4)."""


class NotAppended(AppendFailed):
    """The record is not in the log and never will be: it was not sent, and will not be."""


class TooLarge(NotAppended):
    """The record is larger than the log accepts. No other append is affected."""


class HistoryLost(Exception):
    """The log no longer holds the records (retention), or it is another log (incarnation)."""


class LogChanged(Exception):
    """The log under this process was replaced (its incarnation changed). Every position that the
    process holds is meaningless; it must start again."""


class Appended(NamedTuple):
    """Where a record was written. `timestamp` is the broker's in ms (LogAppendTime)."""

    offset: int
    timestamp: int


class Record(NamedTuple):
    """One record as read. `timestamp` is the broker's in ms.

    `forgery` says why the record is forged (`record_tags`); then `value` is None.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    forgery: str = ""
