"""Markers of items in the scripted engine's text, and the parser that reads them (pure).

    ⟦think⟧          reasoning begins
    ⟦call NAME⟧      a function call begins; its arguments follow
    ⟦custom NAME⟧    a call of a custom tool begins; its input follows
    ⟦end⟧            it ends; what follows is a message

Anything else in these brackets is text. A marker is several ids, and the parser, like those of real
models, recognises one only if it gets the ids one by one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from worker.text.generation import Detokenizer
from worker.text.item_parser import Piece

PARSER: Final = "scripted@1"
OPEN: Final = "⟦"
CLOSE: Final = "⟧"
END: Final = f"{OPEN}end{CLOSE}"
THINK: Final = f"{OPEN}think{CLOSE}"
MAX_MARKER: Final = 300  # characters; a tool's name has 128, with its namespace 258
_MARKER: Final = re.compile(rf"{OPEN}(?:(think)|(end)|(call|custom) ([^\s{CLOSE}]+)){CLOSE}")
_LONELY: Final = re.compile(rf"{OPEN}(?![^{OPEN}{CLOSE}]{{0,200}}{CLOSE})")


def call(name: str, *, custom: bool) -> str:
    """The marker that begins a call."""
    return f"{OPEN}{'custom' if custom else 'call'} {name}{CLOSE}"


def is_marker(text: str) -> bool:
    """Whether it is one marker and nothing else."""
    return _MARKER.fullmatch(text) is not None


def harmless(text: str) -> str:
    """Text without markers or beginnings of one: a client's text must not become one."""
    return _MARKER.sub(lambda match: f"[{match[0][1:-1]}]", _LONELY.sub("[", text))


class Parser:
    """Ids to pieces of items. It must be fed one id at a time.

    Attributes:
        _open: the kind of the item that text belongs to.
        _buffer: the beginning of a marker, or text that looks like one.
    """

    def __init__(self, detokenizer: Detokenizer) -> None:
        self._detokenizer = detokenizer
        self._open: Piece = Piece("m", "")
        self._buffer = ""

    def push(self, token: int) -> Sequence[Piece]:
        return self._parse(self._detokenizer.push((token,)))

    def finish(self) -> Sequence[Piece]:
        """The text still held, also that of a marker without an end."""
        rest, self._buffer = self._buffer, ""
        return self._text(rest + self._detokenizer.flush())

    def _parse(self, delta: str) -> Sequence[Piece]:
        if not self._buffer:
            if delta != OPEN:
                return self._text(delta)
            self._buffer = delta
            return ()
        self._buffer += delta
        if not self._buffer.endswith(CLOSE) and len(self._buffer) < MAX_MARKER:
            return ()
        rest, self._buffer = self._buffer, ""
        marker = _MARKER.fullmatch(rest)
        if marker is None:
            return self._text(rest)
        self._open = Piece("m", "")
        if marker[1]:
            self._open = Piece("r", "")
        elif marker[3]:
            self._open = Piece("c" if marker[3] == "call" else "x", "")
            return (self._open._replace(name=marker[4]),)
        return ()

    def _text(self, text: str) -> Sequence[Piece]:
        return (self._open._replace(text=text),) if text else ()
