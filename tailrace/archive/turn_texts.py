"""What was said in a turn, and in items that were added (pure).

Searched are messages of users and of models: no instructions, no reasoning, no calls of tools and
nothing that tools gave.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from typing import Any, Final, NamedTuple

from tailrace.archive import words
from tailrace.protocol import file_search, fold, history, ids, items, records

_ROLES: Final = ("user", "assistant")


class Said(NamedTuple):
    """The text of one item, by its id."""

    item: str
    text: str


def of_turn(whole: history.History, removed: Container[str]) -> str:
    """The text of a turn, without items that are left out: what was asked and what was answered, as
    far as they are searched. Empty for one that failed, which has no items."""
    end = whole.end
    if isinstance(end, records.End) and fold.STATUS_OF_REASON.get(end.reason) in (None, "failed"):
        return ""
    return "\n".join(
        filter(None, (_joined(each, removed) for each in (_asked(whole), answered(whole))))
    )


def of_items(contents: Iterable[dict[str, Any]]) -> str:
    """The text of items that were added together."""
    return _joined((Said("", text_of(content)) for content in contents), ())


def text_of(item: dict[str, Any]) -> str:
    """The text of an item as clients are shown it, without that of files; empty where it is none
    that is searched."""
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


def _asked(whole: history.History) -> Iterator[Said]:
    for number, item in enumerate(whole.request.input):
        yield Said(ids.item_id(whole.rid, f"msg_{number}_"), text_of(item))


def answered(whole: history.History) -> list[Said]:
    """The messages of an answer, as `events.Series` makes them of the same records, in a fraction
    of its time: that makes every event, too."""
    answer = _Answer(whole)
    if len(whole.claims) == 1 and not whole.marks:  # as most are
        answer.claim(0, whole.claims[0])
        answer.add(whole.text, len(whole.ids), ())
    else:
        _frame_by_frame(whole, answer)
    if isinstance(whole.end, records.End):
        answer.add(whole.end.text_tail, 0, whole.end.marks)
    return [
        Said(ids.item_id(whole.rid, "msg_", index), "".join(parts))
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
        _opened: the last one takes more.
        _parsed: the ids are parsed into items (`events.Series.parsed`).
    """

    def __init__(self, whole: history.History) -> None:
        self.items: list[tuple[int, str, list[str]]] = []
        self._opened = self._parsed = False
        self._first = int(file_search.from_echo(whole.request.echo) is not None)
        self._continued = set(whole.continued)

    def claim(self, number: int, claim: history.Claimed) -> None:
        self._parsed = bool(claim.parser)
        if number in self._continued and claim.at:
            self._opened = False

    def add(self, text: str, count: int, marks: tuple[records.Mark, ...]) -> None:
        for piece in items.pieces(text, marks, count):
            if piece.mark is not None:
                self._open(piece.mark.kind)
            elif not self._opened and (piece.text or (piece.ids and not self._parsed)):
                self._open(items.UNMARKED.kind)
            if piece.text and self._opened:
                self.items[-1][2].append(piece.text)

    def _open(self, kind: str) -> None:
        self._opened = True
        self.items.append((len(self.items) + self._first, kind, []))


def _joined(said: Iterable[Said], removed: Container[str]) -> str:
    texts = [each.text for each in said if each.text and each.item not in removed]
    return "\n".join(texts)[: words.MAX_CHARACTERS]
