"""File search: what a request's echo says of it, and what readers derive from that (pure; log rule
§28).

The gateway searches before it writes the request. The echo has what readers need, as its member
`MEMBER`, which clients are not shown: the questions, the file of each passage that the prompt has,
and how many characters of the prompt these passages are. From it follow an output item, the call of
the tool, and the citations: a marker `[n]` in the text of a message names passage n.
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
_BEGUN: Final = re.compile(r"\[(?:[1-9][0-9]?)?\Z")
_LONGEST_BEGUN: Final = len("[50")

Fields = dict[str, Any]


class Source(msgspec.Struct, array_like=True, frozen=True):
    """The file that a passage is of."""

    file: str
    name: str


class Search(msgspec.Struct, frozen=True, omit_defaults=True):
    """A search that was made for a request.

    Attributes:
        queries: what was searched for.
        sources: of the passages in the prompt, in the order of their numbers, from 1 on.
        characters: of these passages in the prompt, at the end of its last message of a user.
        results: the passages as clients are shown them; None where the client did not ask for them.
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

    def showing(self, rid: str) -> list[tuple[str, Fields]]:
        """Types and members of the events that show the call. It is the first output item."""
        place = {"output_index": 0, "item_id": ids.item_id(rid, PREFIX)}
        steps = ("in_progress", "searching", "completed")
        return [
            ("response.output_item.added", {"output_index": 0, "item": self.call(rid, done=False)}),
            *((f"response.file_search_call.{step}", place) for step in steps),
            ("response.output_item.done", {"output_index": 0, "item": self.call(rid)}),
        ]


def of_echo(echo: Mapping[str, Any]) -> Search | None:
    """The search of a request; None where there was none, and for what cannot be read: an echo
    comes from a record, and readers go on."""
    found = echo.get(MEMBER)
    if found is None:
        return None
    try:
        return msgspec.convert(found, Search)
    except msgspec.ValidationError:
        return None


def asked(messages: Sequence[Fields]) -> int | None:
    """The place of the message that is searched for, and that has the passages: the last one of a
    user."""
    return next((i for i in reversed(range(len(messages))) if messages[i]["role"] == "user"), None)


def without_passages(messages: Sequence[Fields], echo: Mapping[str, Any]) -> list[Fields]:
    """The messages of a request as they were before its search: so later turns inherit them."""
    search = of_echo(echo)
    at = asked(messages)
    found = list(messages)
    if search is None or not search.characters or at is None:
        return found
    content = found[at]["content"]
    if isinstance(content, str):
        found[at] = {**found[at], "content": content[: -search.characters]}
    else:  # they are a part of their own
        found[at] = {**found[at], "content": content[:-1]}
    return found


def with_passages(messages: Sequence[Fields], passages: str) -> list[Fields]:
    """The messages with a text of passages behind the last one of a user, which there is."""
    at = asked(messages)
    assert at is not None
    found = list(messages)
    content = found[at]["content"]
    whole: str | list[Fields] = (
        content + passages
        if isinstance(content, str)
        else [*content, {"type": "text", "text": passages}]
    )
    found[at] = {**found[at], "content": whole}
    return found


class Citations:
    """Finds the citations in the text of one message, however it is cut.

    Attributes:
        made: annotations so far.
        _at: characters before `_begun`.
        _begun: the end of the text, if a marker may have begun there.
    """

    __slots__ = ("_at", "_begun", "_sources", "made")

    def __init__(self, sources: Sequence[Source]) -> None:
        self.made: list[Fields] = []
        self._sources = sources
        self._at = 0
        self._begun = ""

    def add(self, text: str) -> list[Fields]:
        """More of the text. Returns the annotations of the markers that it completes."""
        whole = self._begun + text
        found: list[Fields] = []
        for marker in _MARKER.finditer(whole):
            number = int(marker[1])
            if number <= len(self._sources) and len(self.made) + len(found) < MAX_CITATIONS:
                source = self._sources[number - 1]
                found.append(
                    {
                        "type": "file_citation",
                        "index": self._at + marker.start(),
                        "file_id": source.file,
                        "filename": source.name,
                    }
                )
        self.made += found
        last = whole.rfind("[", max(0, len(whole) - _LONGEST_BEGUN))
        cut = last if last >= 0 and _BEGUN.match(whole, last) else len(whole)
        self._at += cut
        self._begun = whole[cut:]
        return found
