"""The ids of an OpenAI-compatible server's answers, and the parser of their items (pure).

Such a server sends text, so ids are its Unicode code points. Answers to requests with tools, a
format or reasoning may be several items. There, ids above all code points mark where one begins:

    MESSAGE     a message begins
    REASONING   reasoning begins
    CALL        a function call begins; the code points of its name follow, then NAMED
    NAMED       the name is complete; its arguments follow
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from tailrace.protocol import records
from worker.text.item_parser import Piece

PARSER: Final = "openai@1"
_FIRST: Final = 0x110000
MESSAGE, REASONING, CALL, NAMED = range(_FIRST, _FIRST + 4)
_KINDS: Final[dict[int, records.MarkKind]] = {MESSAGE: "m", REASONING: "r", CALL: "c"}

THOUGHTS: Final = ("reasoning_content", "reasoning")  # a delta's members; servers have either


class BadCall(ValueError):
    """The server sent a call that cannot be read."""


def code_points(text: str) -> list[int]:
    """The text's code points. U+FFFD replaces half of a surrogate pair, which is not a character
    and cannot be encoded."""
    return [0xFFFD if 0xD800 <= ord(c) <= 0xDFFF else ord(c) for c in text]


def text_of(ids: Sequence[int]) -> str | None:
    """The text of ids that are one message and nothing else; None for others."""
    if any(token >= _FIRST and token != MESSAGE for token in ids):
        return None
    return "".join(chr(token) for token in ids if token < _FIRST)


def text_in(delta: dict[str, Any], *names: str) -> str:
    """The first of these members that is a text, or an empty text."""
    return next((v for v in map(delta.get, names) if isinstance(v, str) and v), "")


class Writer:
    """Makes ids of the deltas of one answer.

    Attributes:
        _open: marker of the item that is open; a message at the beginning.
        _index: the server's number of the call that is open; -1 before the first.
    """

    def __init__(self) -> None:
        self._open = MESSAGE
        self._index = -1

    def delta(self, delta: dict[str, Any], *, items: bool) -> list[int]:
        """The ids of a chunk's delta. Without `items` reasoning and calls are left out.

        Raises:
            BadCall: a call without a name, or a part of one that is complete already.
        """
        ids: list[int] = []
        if items and (thought := text_in(delta, *THOUGHTS)):
            ids += self._item(REASONING) + code_points(thought)
        if text := text_in(delta, "content", "refusal"):
            ids += (self._item(MESSAGE) if items else []) + code_points(text)
        for call in (delta.get("tool_calls") or []) if items else []:
            ids += self._call(call)
        return ids

    def _item(self, marker: int) -> list[int]:
        if self._open == marker:
            return []
        self._open = marker
        return [marker]

    def _call(self, call: Any) -> list[int]:
        members = call if isinstance(call, dict) else {}
        function = members.get("function")
        function = function if isinstance(function, dict) else {}
        name, arguments = function.get("name"), function.get("arguments") or ""
        # Servers that send each call in one piece may leave the number out.
        index = members.get("index")
        if not isinstance(index, int):
            index = self._index + 1 if name else self._index
        if index == self._index and self._open == CALL:
            return code_points(str(arguments))
        if index <= self._index or not isinstance(name, str) or not name:
            raise BadCall
        self._index, self._open = index, CALL
        return [CALL, *code_points(name), NAMED, *code_points(str(arguments))]


class Parser:
    """Ids to pieces of items.

    Attributes:
        _kind: of the item that is open.
        _name: characters of a call's name; None outside of one.
    """

    def __init__(self) -> None:
        self._kind: records.MarkKind = "m"
        self._name: list[str] | None = None

    def push(self, token: int) -> Sequence[Piece]:
        if token == NAMED:
            name, self._name = "".join(self._name or ()), None
            return (Piece(self._kind, "", name),)
        if token in _KINDS:
            self._kind = _KINDS[token]
            self._name = [] if token == CALL else None
            return ()
        character = chr(token) if token < _FIRST else "\ufffd"
        if self._name is not None:
            self._name.append(character)
            return ()
        return (Piece(self._kind, character),)

    def finish(self) -> Sequence[Piece]:
        return ()
