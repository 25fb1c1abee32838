"""Records of a pipeline's output, alert and dead-letter topics."""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

import msgspec

from pipelines.rows import DETAIL, PIPELINE, REASON, SOURCE, place_of
from tailrace.log import Record

# Servers bound an id to 512 bytes, and refuse all rows with one that is longer.
_PLACE: Final = re.compile(r"[A-Za-z0-9._-]{1,249}(/-?\d{1,20}){3}")


class Output(NamedTuple):
    """One record.

    Attributes:
        source: `topic/partition/offset/timestamp` of the input record; of a record that no runner
            wrote, its own. It is the key in every database.
        answer: the member `answer` of an output; the whole value where it has none.
        input: the value of a dead letter, as text.
        timestamp: of the output, in ms.
        version: offset of the output. Of two outputs of one input record the later one counts.
        place: `topic/partition/offset` of the output, for messages.
    """

    source: str
    answer: Any
    response: str
    model: str
    revision: str
    reason: str
    detail: str
    input: str
    timestamp: int
    version: int
    place: str


def of_record(record: Record) -> Output:
    """The output in a record. No value of a record is an error."""
    headers = {name: (value or b"").decode(errors="replace") for name, value in record.headers}
    dead = REASON in headers
    text = (record.value or b"").decode(errors="replace")
    value: Any = None
    if not dead and record.value:
        try:
            value = msgspec.json.decode(record.value)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            value = text
    members: dict[str, Any] = value if isinstance(value, dict) else {}
    source = headers.get(SOURCE, "")
    return Output(
        source if _PLACE.fullmatch(source) else place_of(record),
        members.get("answer", value),
        _text(members.get("response")),
        _text(members.get("model")),
        headers.get(PIPELINE, "").partition("/")[2],
        headers.get(REASON, ""),
        headers.get(DETAIL, ""),
        text if dead else "",
        record.timestamp,
        record.offset,
        f"{record.topic}/{record.partition}/{record.offset}",
    )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
