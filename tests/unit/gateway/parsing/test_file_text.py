"""The text of files, and where it is cut."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.parsing import file_text
from tailrace.protocol import errors
from tests.support import cases


@cases.each("name", ["a.txt", "README", "b.MD", ".env", "c.d.json", "x.csv", "y.htm"])
def test_files_of_text_are_taken(name: str) -> None:
    file_text.check(name, True, "file_id")


@cases.each(
    ("name", "is_text"), [("a.pdf", True), ("a.txt", False), ("x.docx", True), ("a.exe", True)]
)
def test_others_are_refused_by_name(name: str, is_text: bool) -> None:
    with pytest.raises(errors.ApiError, match=r"Supported are text files: \.txt, ") as error:
        file_text.check(name, is_text, "file_ids")
    assert (error.value.code, error.value.param) == ("unsupported_file", "file_ids")


def test_of_html_what_it_shows() -> None:
    page = (
        b"<!doctype html><head><title>T</title><style>p{}</style>"
        b"<body><h1>Head</h1><p>One &amp;\n two<br>three<script>x()</script><li>a<li>b</body>"
    )
    assert file_text.text_of("p.html", page) == "Head\nOne &\ntwo\nthree\na\nb"
    assert file_text.text_of("p.txt", b"\xef\xbb\xbf<p>") == "<p>"


def test_a_piece_ends_where_a_paragraph_does_if_that_is_in_its_last_quarter() -> None:
    text = "a" * 350 + "\n\n" + "b" * 30 + ". " + "c" * 300
    assert file_text.pieces(text, 100, 0) == ["a" * 350, "b" * 30 + ". " + "c" * 300]
    assert [len(each) for each in file_text.pieces("x" * 1_000, 100, 0)] == [400, 400, 200]


def test_pieces_overlap_by_whole_words() -> None:
    text = " ".join(f"word{n:03}" for n in range(200))
    pieces = file_text.pieces(text, 100, 50)
    for one, following in itertools.pairwise(pieces):
        first = following.split()[0]
        assert first.startswith("word")
        assert len(first) == 7
        assert 100 < len(one) - one.index(first) <= 200


@given(
    st.text(alphabet="ab \n.é", max_size=3_000),
    st.integers(10, 200),
    st.floats(0, 0.5),
)
def test_no_word_is_lost_and_no_piece_too_long(text: str, size: int, part: float) -> None:
    pieces = file_text.pieces(text, size, int(size * part))
    most = size * file_text.CHARS_PER_TOKEN
    assert all(0 < len(each) <= most for each in pieces)
    # Each piece lies behind the beginning of the one before it, and no text between two is lost.
    at = end = 0
    for each in pieces:
        at = text.index(each, at)
        assert not text[end:at].strip()
        end = max(end, at + len(each))
        at += 1
    assert not text[end:].strip()
    assert pieces == file_text.pieces(text, size, int(size * part))
