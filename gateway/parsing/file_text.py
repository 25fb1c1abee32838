"""The text of a file, and its pieces (pure).

A token counts as four characters, because a gateway may lack the model's tokenizer.
"""

from __future__ import annotations

import html.parser
from collections.abc import Iterator
from typing import Final

from tailrace.protocol import errors

CHARS_PER_TOKEN: Final = 4
MAX_SIZE: Final = 4_000  # tokens: in UTF-8 they fit into a field of the vector database
# Suffixes of text files; other uploads are images.
SUFFIXES: Final = (
    *("txt", "text", "md", "markdown", "rst", "log"),
    *("json", "jsonl", "csv", "tsv", "yaml", "yml", "html", "htm"),
)
_HTML: Final = ("html", "htm")
_HIDDEN: Final = frozenset({"script", "style", "head", "title", "template", "noscript", "svg"})
_BLOCKS: Final = frozenset(
    {
        *("address", "article", "aside", "blockquote", "br", "dd", "div", "dl", "dt", "figure"),
        *("footer", "form", "h1", "h2", "h3", "h4", "h5", "h6", "header", "hr", "li", "main"),
        *("nav", "ol", "p", "pre", "section", "table", "td", "th", "tr", "ul"),
    }
)
# Preferred ends of a piece: the first of these that is found in its last quarter.
_BREAKS: Final = ("\n\n", "\n", ". ", " ")


def check(filename: str, is_text: bool, where: str) -> None:
    """
    Raises:
        errors.ApiError: 400, a file of this kind has no text here.
    """
    if not is_text or _suffix(filename) not in SUFFIXES:
        raise errors.unsupported_file(where, ", ".join(f".{each}" for each in SUFFIXES))


def text_of(filename: str, data: bytes) -> str:
    """The text of a file; of HTML its visible text. Raises UnicodeDecodeError."""
    text = data.decode("utf-8-sig")
    return _visible_text(text) if _suffix(filename) in _HTML else text


def pieces(text: str, size: int, overlap: int) -> list[str]:
    """The pieces of a text in order: each has at most `size` tokens, and begins about `overlap`
    tokens before the end of the previous one. The result depends on the arguments only, so a file
    is always split at the same places.

    Args:
        overlap: at most half of `size`.
    """
    return list(_pieces(text, size * CHARS_PER_TOKEN, overlap * CHARS_PER_TOKEN))


def _pieces(text: str, size: int, overlap: int) -> Iterator[str]:
    start = 0
    while start < len(text):
        end = _end(text, start, size)
        piece = text[start:end].strip()
        if piece:
            yield piece
        if end == len(text):
            return
        start = _beginning(text, max(start + 1, end - overlap), end)


def _end(text: str, start: int, size: int) -> int:
    end = start + size
    if end >= len(text):
        return len(text)
    least = start + size - size // 4
    for each in _BREAKS:
        at = text.rfind(each, least, end)
        if at >= 0:
            return at + len(each)
    return end


def _beginning(text: str, at: int, end: int) -> int:
    """`at` or soon after it: after a space, so that a piece begins with a whole word."""
    if at >= end or text[at - 1].isspace():
        return at
    space = text.find(" ", at, min(end, at + (end - at) // 2 + 1))
    return space + 1 if space >= 0 else at


def _suffix(filename: str) -> str:
    name, dot, suffix = filename.rpartition(".")
    return suffix.lower() if dot and name else "txt"


class _Text(html.parser.HTMLParser):
    """Collects the visible text of a page."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self._hidden_depth = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "body":  # the end of the head may be left out
            self._hidden_depth = 0
        elif tag in _HIDDEN:
            self._hidden_depth += 1
        elif tag in _BLOCKS:
            self.parts.append("\n")

    def handle_endtag(self, tag: str) -> None:
        if tag in _HIDDEN:
            self._hidden_depth = max(0, self._hidden_depth - 1)
        elif tag in _BLOCKS:
            self.parts.append("\n")

    def handle_data(self, data: str) -> None:
        if not self._hidden_depth:
            self.parts.append(data)


def _visible_text(page: str) -> str:
    parser = _Text()
    parser.feed(page)
    parser.close()
    lines = (" ".join(line.split()) for line in "".join(parser.parts).split("\n"))
    return "\n".join(line for line in lines if line)
