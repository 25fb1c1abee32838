"""The types of the archive's answers, and their errors.

Nothing here imports the database library: services without an archive do not need it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tailrace.protocol import conversations, history


class ArchiveUnavailable(Exception):
    """The archive does not answer, or has no tables yet. The text says why."""


@dataclass(frozen=True, slots=True)
class ArchivedResponse:
    """A response from the archive. `metadata` is its latest one."""

    history: history.History
    metadata: dict[str, str]


@dataclass(frozen=True, slots=True)
class ListQuery:
    """Which responses a list contains.

    Attributes:
        owner: the key of the principal who owns them.
        kind: `RESPONSE` or `CHAT`.
        model: only responses of this model; None: of any.
        metadata: only responses that have all of these.
        newest_first: the order, by creation time.
        after: the id of the response after which the list begins; None: at its beginning. For a
            chat completion the id of the first choice.
        limit: the maximum number.
    """

    owner: str
    kind: str
    model: str | None = None
    metadata: Mapping[str, str] | None = None
    newest_first: bool = False
    after: str | None = None
    limit: int = 20


@dataclass(frozen=True, slots=True)
class Match:
    """A conversation that a search found, without its nodes.

    Attributes:
        response: the turn that matches; None: the title matches, or items that were added.
        snippet: a part of the matching text; plain text in one line.
        ranges: (start, end) of the snippet's characters that are words of the query.
    """

    conversation: conversations.Conversation
    response: str | None
    snippet: str
    ranges: list[tuple[int, int]]


class UnknownPlace(Exception):
    """`after` is not in this list."""
