"""The words of the log client: records as appended and as read, and how it fails (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

Headers = Sequence[tuple[str, bytes]]


class LogUnavailable(Exception):
    """The log cannot be reached or does not answer in time."""


class AppendFailed(LogUnavailable):
    """An append failed or is ambiguous: the record may or may not be in the log. Its owner nonce
    must never be used again (log rule W4)."""


class TooLarge(AppendFailed):
    """The record is larger than the log takes. It is not in the log, and nothing else was
    disturbed."""


class HistoryLost(Exception):
    """The log no longer holds what was asked for, or is another log (retention, incarnation)."""


class LogChanged(Exception):
    """The log under this process is another one (its incarnation changed): every position held is
    meaningless. The process must start anew."""


class Appended(NamedTuple):
    """Where a record went: offset, and the broker's timestamp in ms (LogAppendTime)."""

    offset: int
    timestamp: int


class Record(NamedTuple):
    """One record as read. `timestamp` is the broker's, ms."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


def record(r: Any) -> Record:
    """A record of aiokafka's as one of ours."""
    return Record(r.topic, r.partition, r.offset, r.timestamp, r.key, r.value, r.headers)
