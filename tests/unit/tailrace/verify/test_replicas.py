"""L8 on segments as brokers write them."""

from __future__ import annotations

import struct

from tailrace.verify import replicas, report
from tests.support import cases


def segment(*found: tuple[int, int, bytes]) -> bytes:
    """Batches of (first offset, records, payload)."""
    out = b""
    for first, count, payload in found:
        body = struct.pack(">ibIhi", 0, 2, sum(payload), 0, count - 1) + payload
        out += struct.pack(">qi", first, len(body)) + body
    return out


GOOD = segment((0, 3, b"aaa"), (3, 1, b"b"), (4, 2, b"cc"))


def failed(*segments: bytes, end: int = 6) -> list[str]:
    out = report.Report()
    replicas.judge(out, "t[0]", {str(i): replicas.batches(s) for i, s in enumerate(segments)}, end)
    assert out.results["L8"].count == 1
    return out.failed()


def test_batches_are_read_with_their_offsets() -> None:
    assert [b[:2] for b in replicas.batches(GOOD)] == [(0, 2), (3, 3), (4, 5)]


def test_equal_replicas_agree_and_a_torn_tail_above_the_high_watermark_does_not_matter() -> None:
    assert failed(GOOD, GOOD, GOOD + segment((6, 1, b"x"))[:-1]) == []


def test_what_lies_above_the_high_watermark_may_differ() -> None:
    assert failed(GOOD + segment((6, 1, b"x")), GOOD + segment((6, 1, b"y"))) == []


def test_a_replica_that_begins_later_agrees() -> None:
    assert failed(GOOD, segment((3, 1, b"b"), (4, 2, b"cc"))) == []


@cases.each(
    "other",
    [
        segment((0, 3, b"aaa"), (3, 1, b"z"), (4, 2, b"cc")),
        segment((0, 3, b"aaa"), (4, 2, b"cc")),
        segment((0, 3, b"aaa"), (3, 1, b"b")),
        segment((0, 3, b"aaa"), (3, 3, b"bcc")),
    ],
    ids=["other bytes", "a hole", "ends early", "other batches"],
)
def test_replicas_that_differ_fail(other: bytes) -> None:
    assert failed(GOOD, other) == ["L8"]


def test_an_acknowledged_end_that_nobody_has_fails() -> None:
    assert failed(GOOD, GOOD, end=8) == ["L8"]
