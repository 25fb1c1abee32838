"""The output of an engine's parser for the ids of one response: pieces of items (pure).

The engine provides the parser, because the model's tokenizer and the form of its calls decide what
the ids mean. `worker.text.generation` writes the pieces to the log (log rule §16).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from tailrace.protocol import records


class Piece(NamedTuple):
    """Visible text of one item.

    It continues the open item if that is of the same kind and `name` is empty; otherwise it begins
    an item. So a call begins with the piece that has its name, and two messages in a row are one.

    Attributes:
        kind: of the item: message, reasoning, function call (text: arguments), or call of a custom
            tool (text: input).
        text: possibly empty, for example where a call begins.
        name: the tool's name, in the first piece of a call only.
    """

    kind: records.MarkKind
    text: str
    name: str = ""


class ItemParser(Protocol):
    """Turns the ids of one response into pieces. A function of the ids alone: it always gets one id
    at a time, also the ids of former owners."""

    def push(self, token: int) -> Sequence[Piece]:
        """The pieces that this id completes, in order; possibly none."""

    def finish(self) -> Sequence[Piece]:
        """The response ended: the pieces still held, such as half a character or text that looked
        like the beginning of a call."""
