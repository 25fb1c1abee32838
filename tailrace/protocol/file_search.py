"""File search: its member in a request's echo, and what readers derive from it (pure; log rule
§28).

The gateway searches before it writes the request. The member `MEMBER` of the echo, which clients
do not see, has what readers need: the queries, the file of each passage in the prompt, and the
number of the prompt's characters that are passages. From it follow an output item, which is the
call of the tool, and the citations: a marker `[n]` in the text of a message names passage n.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from tailrace.protocol import ids

MEMBER: Final = "_search"  # of an echo
PREFIX: Final = "fs_"
CALL: Final = "file_search_call"  # type of the output item
MAX_PASSAGES: Final = 50
MAX_CITATIONS: Final = 1_000  # of one message; each is an event of its own

_MARKER: Final = re.compile(r"\[([1-9][0-9]?)\]")
_PARTIAL: Final = re.compile(r"\[(?:[1-9][0-9]?)?\Z")
_LONGEST_PARTIAL: Final = len("[50")

Fields = dict[str, Any]


class Source(msgspec.Struct, array_like=True, frozen=True):
    """The file of a passage."""

    file: str
    name: str


class Search(msgspec.Struct, frozen=True, omit_defaults=True):
    """The search of a request.

    Attributes:
        queries: the texts that were searched for.
        sources: of the passages in the prompt, in the order of their numbers, from 1 on.
        characters: of these passages in the prompt, at the end of its last message of a user.
        results: the passages as clients see them; None if the client did not request them.
    """

    queries: tuple[str, ...]
    sources: tuple[Source, ...] = ()
    characters: int = 0
    results: tuple[Fields, ...] | None = None

    def call(self, rid: str, *, done: bool = True) -> Fields:
        """The output item: the call of the tool, as it begins or `done`."""
        return {
            "id": ids.item_id(rid, PREFIX),
            "type": CALL,
            "status": "completed" if done else "in_progress",
            "queries": list(self.queries) if done else [],
            "results": list(self.results) if done and self.results is not None else None,
        }

    def call_events(self, rid: str) -> list[tuple[str, Fields]]:
        """Types and members of the events that show the call. It is the first output item."""
        place = {"output_index": 0, "item_id": ids.item_id(rid, PREFIX)}
        steps = ("in_progress", "searching", "completed")
        return [
            ("response.output_item.added", {"output_index": 0, "item": self.call(rid, done=False)}),
            *((f"response.file_search_call.{step}", place) for step in steps),
            ("response.output_item.done", {"output_index": 0, "item": self.call(rid)}),
        ]


def from_echo(echo: Mapping[str, Any]) -> Search | None:
    """The search of a request; None if there was none, or if the member cannot be read: an echo
    comes from a record, and readers continue."""
    member = echo.get(MEMBER)
    if member is None:
        return None
    try:
        return msgspec.convert(member, Search)
    except msgspec.ValidationError:
        return None


def question_index(messages: Sequence[Fields]) -> int | None:
    """The index of the message that is the question of the search and contains the passages: the
    last one of a user."""
    return next((i for i in reversed(range(len(messages))) if messages[i]["role"] == "user"), None)


def without_passages(messages: Sequence[Fields], echo: Mapping[str, Any]) -> list[Fields]:
    """The messages of a request as they were before its search. Later turns inherit these."""
    search = from_echo(echo)
    at = question_index(messages)
    result_messages = list(messages)
    if search is None or not search.characters or at is None:
        return result_messages
    content = result_messages[at]["content"]
    if isinstance(content, str):
        result_messages[at] = {**result_messages[at], "content": content[: -search.characters]}
    else:  # they are a part of their own
        result_messages[at] = {**result_messages[at], "content": content[:-1]}
    return result_messages


def with_passages(messages: Sequence[Fields], passages: str) -> list[Fields]:
    """The messages with the passages after the text of a user's last message, which must exist."""
    at = question_index(messages)
    assert at is not None
    result_messages = list(messages)
    content = result_messages[at]["content"]
    new_content: str | list[Fields] = (
        content + passages
        if isinstance(content, str)
        else [*content, {"type": "text", "text": passages}]
    )
    result_messages[at] = {**result_messages[at], "content": new_content}
    return result_messages


class Citations:
    """Finds the citations in the text of one message, however it is cut.

    Attributes:
        annotations: the citations so far.
        _at: characters before `_partial`.
        _partial: the end of the text, if it may be the beginning of a marker.
    """

    __slots__ = ("_at", "_partial", "_sources", "annotations")

    def __init__(self, sources: Sequence[Source]) -> None:
        self.annotations: list[Fields] = []
        self._sources = sources
        self._at = 0
        self._partial = ""

    def add(self, text: str) -> list[Fields]:
        """More of the text. Returns the annotations of the markers that it completes."""
        whole = self._partial + text
        annotations: list[Fields] = []
        for marker in _MARKER.finditer(whole):
            number = int(marker[1])
            if (
                number <= len(self._sources)
                and len(self.annotations) + len(annotations) < MAX_CITATIONS
            ):
                source = self._sources[number - 1]
                annotations.append(
                    {
                        "type": "file_citation",
                        "index": self._at + marker.start(),
                        "file_id": source.file,
                        "filename": source.name,
                    }
                )
        self.annotations += annotations
        last = whole.rfind("[", max(0, len(whole) - _LONGEST_PARTIAL))
        complete = last if last >= 0 and _PARTIAL.match(whole, last) else len(whole)
        self._at += complete
        self._partial = whole[complete:]
        return annotations
