"""The texts of a turn, and of items that were added (pure).

Messages of users and of models are searchable: not instructions, reasoning, calls of tools or their
outputs.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from typing import Any, Final, NamedTuple

from tailrace.archive import words
from tailrace.protocol import file_search, fold, history, ids, items, records

_ROLES: Final = ("user", "assistant")


class ItemText(NamedTuple):
    """The text of one item, by its id."""

    item: str
    text: str


def turn_text(whole: history.History, removed: Container[str]) -> str:
    """The searchable text of a turn, input and answer, without removed items. Empty for a failed
    turn, which has no items."""
    end = whole.end
    if isinstance(end, records.End) and fold.STATUS_OF_REASON.get(end.reason) in (None, "failed"):
        return ""
    return "\n".join(
        filter(None, (_join(each, removed) for each in (_input_texts(whole), answer_texts(whole))))
    )


def items_text(contents: Iterable[dict[str, Any]]) -> str:
    """The text of items that were added together."""
    return _join((ItemText("", item_text(content)) for content in contents), ())


def item_text(item: dict[str, Any]) -> str:
    """The text of an item as clients see it, without that of files; empty for an item that is not
    searchable."""
    if item.get("type", "message") != "message" or item.get("role") not in _ROLES:
        return ""
    content = item.get("content")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "".join(
        part["text"]
        for part in parts
        if isinstance(part, dict) and isinstance(part.get("text"), str) and "filename" not in part
    )


def _input_texts(whole: history.History) -> Iterator[ItemText]:
    for number, item in enumerate(whole.request.input):
        yield ItemText(ids.item_id(whole.rid, f"msg_{number}_"), item_text(item))


def answer_texts(whole: history.History) -> list[ItemText]:
    """The messages of an answer, equal to those of `events.Series` for the same records, but in a
    fraction of the time, because no events are made."""
    answer = _Answer(whole)
    if len(whole.claims) == 1 and not whole.marks:  # as most are
        answer.claim(0, whole.claims[0])
        answer.add(whole.text, len(whole.ids), ())
    else:
        _frame_by_frame(whole, answer)
    if isinstance(whole.end, records.End):
        answer.add(whole.end.text_tail, 0, whole.end.marks)
    return [
        ItemText(ids.item_id(whole.rid, "msg_", index), "".join(parts))
        for index, kind, parts in answer.items
        if kind == "m"
    ]


def _frame_by_frame(whole: history.History, answer: _Answer) -> None:
    at, seq = 0, 0
    marks = {each.frame: each.marks for each in whole.marks}
    claims = list(enumerate(whole.claims))[::-1]
    for number, frame in enumerate(whole.frames):
        while claims and claims[-1][1].at <= seq:
            answer.claim(*claims.pop())
        text = whole.text[at : at + frame.characters]
        answer.add(text, frame.ids, marks.get(number, ()))
        seq, at = seq + frame.ids, at + frame.characters
    for each in reversed(claims):
        answer.claim(*each)


class _Answer:
    """The items of an answer while its records are read.

    Attributes:
        items: index, kind and characters of each.
        _is_open: the last one is open.
        _is_parsed: the ids are parsed into items (`events.Series.parsed`).
    """

    def __init__(self, whole: history.History) -> None:
        self.items: list[tuple[int, str, list[str]]] = []
        self._is_open = self._is_parsed = False
        self._first = int(file_search.from_echo(whole.request.echo) is not None)
        self._continuations = set(whole.continued)

    def claim(self, number: int, claim: history.Claimed) -> None:
        self._is_parsed = bool(claim.parser)
        if number in self._continuations and claim.at:
            self._is_open = False

    def add(self, text: str, count: int, marks: tuple[records.Mark, ...]) -> None:
        for piece in items.pieces(text, marks, count):
            if piece.mark is not None:
                self._open(piece.mark.kind)
            elif not self._is_open and (piece.text or (piece.ids and not self._is_parsed)):
                self._open(items.UNMARKED.kind)
            if piece.text and self._is_open:
                self.items[-1][2].append(piece.text)

    def _open(self, kind: str) -> None:
        self._is_open = True
        self.items.append((len(self.items) + self._first, kind, []))


def _join(item_texts: Iterable[ItemText], removed: Container[str]) -> str:
    texts = [each.text for each in item_texts if each.text and each.item not in removed]
    return "\n".join(texts)[: words.MAX_CHARACTERS]
