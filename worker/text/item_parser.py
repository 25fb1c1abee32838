"""What an engine's parser makes of the ids of one response: pieces of items (pure).

A parser is the engine's, because the model's tokenizer and the form of its calls decide what the
ids mean. What becomes of the pieces in the log is `worker.text.generation`'s (log rule §16).
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
    """Makes pieces of the ids of one response. A function of the ids alone, and of how they come:
    it is fed one id at a time, always, also with the ids of former owners."""

    def push(self, token: int) -> Sequence[Piece]:
        """What this id completes, in order; possibly nothing."""

    def finish(self) -> Sequence[Piece]:
        """The response ended: what is still held, such as half a character or text that was taken
        for the beginning of a call."""
