"""Kinds of settings: what is read from a variable's text, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.settings import kinds

LINES = kinds.secret_lines(32)
ONE, TWO = b"1" * 32, b"2" * 40


def test_every_line_of_the_file_is_a_secret(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    for content in (ONE + b"\n" + TWO, b"\n " + ONE + b" \r\n\n" + TWO + b"\n"):
        file.write_bytes(content)
        assert LINES.parse(str(file)) == (ONE, TWO)


@pytest.mark.parametrize(
    ("content", "said"), [(b" \n", "empty"), (ONE + b"\nshort", "5 bytes on line 2")]
)
def test_a_short_line_or_none_is_refused_without_repeating_it(
    tmp_path: Path, content: bytes, said: str
) -> None:
    file = tmp_path / "keys"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=said) as refused:
        LINES.parse(str(file))
    assert "short" not in str(refused.value)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="No such file"):
        LINES.parse(str(tmp_path / "none"))
