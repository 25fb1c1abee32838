"""The ids of an OpenAI-compatible server's answers, and the parser of their items (pure).

Such a server sends text, so ids are its Unicode code points. Answers to requests with tools, a
format or reasoning may be several items. There, ids above all code points mark where one begins:

    MESSAGE     a message begins
    REASONING   reasoning begins
    CALL        a function call begins; the code points of its name follow, then NAMED
    NAMED       the name is complete; its arguments follow
"""

from __future__ import annotations

import collections
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


class _Item:
    """An item of an answer.

    Attributes:
        marker: its kind.
        ids: those that are not written yet.
        id: the server's name of a call; empty without one.
        is_closed: all of it is written, and another item follows.
        _depth: of a call's arguments: objects and arrays that are open; None before the first one.
        _in_text, _escaped: where in a string of the arguments their text ends.
    """

    def __init__(self, marker: int, ids: Sequence[int] = (), id_: str = "") -> None:
        self.marker, self.ids, self.id = marker, [*ids], id_
        self.is_closed = False
        self._depth: int | None = None
        self._in_text = self._escaped = False

    @property
    def whole(self) -> bool:
        """Nothing is missing: it is no call, or its arguments are whole."""
        return self.marker != CALL or self._depth == 0

    def add(self, text: str) -> None:
        self.ids += code_points(text)
        if self.marker == CALL:
            for character in text:
                self._read(character)

    def _read(self, character: str) -> None:
        if self._escaped:
            self._escaped = False
        elif self._in_text:
            self._in_text, self._escaped = character != '"', character == "\\"
        elif character == '"':
            self._in_text = True
        elif character in "{[":
            self._depth = (self._depth or 0) + 1
        elif character in "}]" and self._depth:
            self._depth -= 1


class Writer:
    """Makes ids of the deltas of one answer.

    Ids are one item after the other. Servers send pieces of parallel calls in turn, or the rest of
    a call after a text. So what follows a call is written once the call's arguments are whole.

    Attributes:
        _items: those that are not written as a whole, the open one first; a message at the
            beginning.
        _calls: the newest call of each of the server's numbers.
        _newest: the newest call.
    """

    def __init__(self) -> None:
        self._items = collections.deque([_Item(MESSAGE)])
        self._calls: dict[int, _Item] = {}
        self._newest: _Item | None = None

    def delta(self, delta: dict[str, Any], *, items: bool) -> list[int]:
        """The ids of a chunk's delta. Without `items` reasoning and calls are left out.

        Raises:
            BadCall: a call without a name, or a part of one that is complete already.
        """
        if items and (thought := text_in(delta, *THOUGHTS)):
            self._add(REASONING, thought)
        if text := text_in(delta, "content", "refusal"):
            self._add(MESSAGE, text)
        for call in (delta.get("tool_calls") or []) if items else []:
            self._call(call)
        return self._next_ids()

    def finish(self) -> list[int]:
        """The ids that are left at the end of the answer."""
        return [*self._next_ids(), *(i for item in self._items for i in item.ids)]

    def _next_ids(self) -> list[int]:
        """The ids that may be written now."""
        ids: list[int] = []
        while True:
            item = self._items[0]
            ids += item.ids
            item.ids = []
            if len(self._items) == 1 or not item.whole:
                return ids
            item.is_closed = True
            self._items.popleft()

    def _add(self, marker: int, text: str) -> None:
        if self._items[-1].marker != marker:
            self._items.append(_Item(marker, [marker]))
        self._items[-1].add(text)

    def _call(self, call: Any) -> None:
        members = call if isinstance(call, dict) else {}
        function = members.get("function")
        function = function if isinstance(function, dict) else {}
        name, id_ = text_in(function, "name"), text_in(members, "id")
        arguments = str(function.get("arguments") or "")
        # Servers that send each call in one piece may leave the number out.
        number = members.get("index")
        if isinstance(number, int):
            item = self._calls.get(number)
        else:
            item = None if name else self._newest
        if item is None or (name and _is_another(id_, item)):
            if not name:
                raise BadCall
            item = _Item(CALL, [CALL, *code_points(name), NAMED], id_)
            self._items.append(item)
            self._newest = item
            if isinstance(number, int):
                self._calls[number] = item
        if item.is_closed and arguments:
            raise BadCall
        item.add(arguments)


def _is_another(id_: str, call: _Item) -> bool:
    """Whether a piece with a name is of another call than the one with its number: Ollama gives
    every call the number 0."""
    return id_ != call.id if id_ and call.id else call.whole


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
