"""An answer as text, for a terminal or a pipe (pure).

A terminal gets messages, reasoning dimmed, and each call of a tool as one line. A pipe gets what is
meant for its reader, messages and calls, and no escape sequences.
"""

from __future__ import annotations

import unicodedata
from typing import Final, Literal, NamedTuple

from tailrace.cli.word_wrap import WordWrap

DIM: Final = "\x1b[2m"
PLAIN: Final = "\x1b[0m"
ARROW: Final = "→"

Kind = Literal["message", "reasoning", "call"]


class Piece(NamedTuple):
    """What one event adds to an answer: characters of one item.

    `name` is the tool whose call begins here. `ends`: no more of this item; `cut`: it is not whole.
    """

    kind: Kind
    text: str = ""
    name: str = ""
    ends: bool = False
    cut: bool = False


class Transcript:
    """The text of one answer, piece by piece. The caller prints the methods' results.

    Attributes:
        _open: the kind of the item that is being printed; None between items.
        _column_0: the cursor is at the beginning of a line.
        _dim: the terminal is set to dim.
    """

    def __init__(self, width: int = 0, *, dims: bool = True) -> None:
        """`width`: columns of the terminal, 0 for a pipe. `dims`: it understands DIM."""
        self._terminal = width > 0
        self._dims = dims
        self._wrap = WordWrap(width) if self._terminal else None
        self._open: Kind | None = None
        self._column_0 = True
        self._dim = False

    def feed(self, piece: Piece) -> str:
        if piece.kind == "reasoning" and not self._terminal:
            return ""
        out = ""
        if piece.name or (piece.text and piece.kind != self._open):
            out += self._begin(piece)
        if piece.text:
            out += self._text(_one_line(piece.text) if piece.kind == "call" else piece.text)
        if piece.ends and self._open == piece.kind:
            if piece.kind == "call":
                out += self._text(" …" if piece.cut else ")")
            out += self.end()
        return out

    def end(self) -> str:
        """Nothing more comes of this item, or of the answer."""
        out = self._held()
        if self._dim:
            out += PLAIN
        self._open, self._dim = None, False
        return out

    def interrupt(self) -> str:
        """Something else is going to be printed on the terminal, in lines of its own. The item goes
        on after it."""
        if self._wrap is None:
            return ""
        out = PLAIN if self._dim else ""
        self._dim, self._column_0 = False, True
        self._wrap.restart()
        return f"{out}\n"

    def _begin(self, piece: Piece) -> str:
        out = self.end()
        if not self._column_0:
            out += "\n"
            self._column_0 = True
            if self._wrap:
                self._wrap.restart()
        self._open = piece.kind
        if piece.kind == "call":
            out += self._text(f"{ARROW} {_one_line(piece.name)}(")
        elif piece.kind == "reasoning" and not self._dims:
            out += self._text("(thinking) ")
        return out

    def _text(self, text: str) -> str:
        out = self._wrap.feed(text) if self._wrap else text
        if self._open == "reasoning" and self._dims and not self._dim:
            self._dim = True
            out = DIM + out
        self._column_0 = text.endswith("\n")
        return out

    def _held(self) -> str:
        return self._wrap.flush() if self._wrap else ""


def _one_line(text: str) -> str:
    """`text` without line breaks and without characters that a terminal would obey."""
    return "".join(" " if unicodedata.category(c) in ("Cc", "Zl", "Zp") else c for c in text)
