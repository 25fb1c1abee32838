"""The reader of event streams: which bytes end a line, and which are text."""

from __future__ import annotations

import itertools
import json

from hypothesis import given
from hypothesis import strategies as st

from tailrace.cli import event_reader

# Unicode's ends of lines that are none in an event stream. JSON need not escape them.
TEXT = "a\u2028b\u2029c\u0085d\u000be\u000cf\u001cg\u001dh\u001ei 東京 🌊"


def read(*pieces: bytes) -> list[str]:
    return list(event_reader.data_of(pieces))


def test_comments_other_fields_and_blank_lines_are_no_data() -> None:
    stream = (
        b': keep-alive\n\nevent: x\ndata: {"a": 1}\n\nid: 7\ndata:{"b":\ndata: 2}\n\n\ndata\n\n'
    )
    assert read(stream) == ['{"a": 1}', '{"b":\n2}', ""]


def test_an_event_without_its_blank_line_is_dropped() -> None:
    assert read(b"data: 1\n\ndata: 2\n") == ["1"]


def test_the_ends_of_lines_that_only_unicode_knows_are_text() -> None:
    assert read(f"data: {TEXT}\n\ndata: next\n\n".encode()) == [TEXT, "next"]


def test_a_line_feed_a_return_and_both_end_a_line() -> None:
    for end in ("\n", "\r", "\r\n"):
        assert read(f"data: 1{end}data: 2{end}{end}data: 3{end}{end}".encode()) == ["1\n2", "3"]


def test_a_return_ends_an_event_before_more_is_known() -> None:
    """An event is not held back until the next one, because a line feed could follow."""
    events = event_reader.EventReader()
    assert events.feed(b"data: 1\r\n\r") == ["1"]
    assert events.feed(b"") == []
    assert events.feed(b"\ndata: 2\r") == []
    assert events.feed(b"\r") == ["2"]


def test_bytes_that_are_no_utf_8_are_replaced() -> None:
    assert read(b"data: a\xff\xe2\x80b\n\n") == ["a��b"]


@given(
    st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=4),
    st.sampled_from(["\n", "\r", "\r\n"]),
    st.lists(st.integers(0, 200), max_size=12),
)
def test_where_the_bytes_are_cut_changes_nothing(
    texts: list[str], end: str, cuts: list[int]
) -> None:
    """Also within a character, and between the two bytes of an end of line."""
    data = [json.dumps(text + TEXT, ensure_ascii=False) for text in texts]
    stream = "".join(f"event: x{end}data: {each}{end}{end}" for each in data).encode()
    places = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    pieces = [stream[begin:end] for begin, end in itertools.pairwise(places)]
    assert read(*pieces) == data
    assert read(*(stream[n : n + 1] for n in range(len(stream)))) == data
