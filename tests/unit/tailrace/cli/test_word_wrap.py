"""Words that arrive in pieces, on a terminal of some width."""

from __future__ import annotations

import hypothesis
from hypothesis import strategies as st

from tailrace.cli.word_wrap import WordWrap, columns
from tests.support import cases


def wrapped(text: str, width: int, size: int = 1) -> str:
    wrap = WordWrap(width)
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    return "".join(wrap.feed(piece) for piece in pieces) + wrap.flush()


@cases.each("size", [1, 3, 100])
def test_a_line_ends_between_words(size: int) -> None:
    text = "the quick brown fox jumps over it"
    assert wrapped(text, 10, size) == "the quick\nbrown fox\njumps over\nit"


@cases.each(
    ("text", "shown"),
    [
        ("a\n\n  indented", "a\n\n  indented"),
        ("abcdefghijklm", "abcdefghij\nklm"),
        ("\u4f60\u597d\u4f60\u597d\u4f60\u597d", "\u4f60\u597d\u4f60\u597d\u4f60\n\u597d"),
        ("e\u0301" * 10, "e\u0301" * 10),
        ("one\r two\x1b[31m", "one\ntwo[31m"),
        ("end  ", "end"),
    ],
)
def test_what_is_not_a_plain_word(text: str, shown: str) -> None:
    assert wrapped(text, 10 if "one" not in text else 8) == shown


def test_after_a_note_the_text_goes_on_at_the_beginning_of_a_line() -> None:
    wrap = WordWrap(10)
    assert wrap.feed("one two ") == "one two"
    wrap.restart()
    assert wrap.feed("three four") + wrap.flush() == "three four"


@hypothesis.given(
    st.text(alphabet=st.sampled_from("ab \n\u4f60\u0301\t")), st.integers(2, 12), st.integers(1, 5)
)
def test_no_line_is_wider_and_no_word_is_lost(text: str, width: int, size: int) -> None:
    shown = wrapped(text, width, size)
    assert shown == wrapped(text, width, len(text) or 1)
    for line in shown.splitlines():
        stripped = line.strip()
        assert sum(columns(c) for c in stripped) <= width
    assert "".join(shown.split()) == "".join(text.split())
