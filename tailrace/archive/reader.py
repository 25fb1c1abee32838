"""What services that answer clients ask of an archive, and the words of it.

Nothing here imports the database library: that takes a quarter of a gateway's start, and services
without an archive do not need it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tailrace.protocol import conversations, history


class ArchiveUnavailable(Exception):
    """The archive does not answer, or has no tables yet. The text says why."""


@dataclass(frozen=True, slots=True)
class ArchivedResponse:
    """A response as the archive has it. `metadata` is what its owner gave it last."""

    history: history.History
    metadata: dict[str, str]


@dataclass(frozen=True, slots=True)
class ListQuery:
    """What a list is to hold.

    Attributes:
        owner: the key of the principal whose responses they are.
        kind: `RESPONSE` or `CHAT`.
        model: only of this one; None: of any.
        metadata: only those that have all of these.
        newest_first: the order, by the time they were made.
        after: the id of the response behind which the list begins; None: at its beginning. Of a
            chat completion it is that of the first choice.
        limit: how many at most.
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
        response: the turn that matches; None: its title does, or items that were added.
        snippet: a part of what matches; plain text in one line.
        ranges: characters of the snippet, from and to, that are words of the search.
    """

    conversation: conversations.Conversation
    response: str | None
    snippet: str
    ranges: list[tuple[int, int]]


class UnknownPlace(Exception):
    """`after` names nothing of this list."""


class Reader(Protocol):
    """Reads one archive. Every question raises ArchiveUnavailable without an answer."""

    async def stop(self) -> None:
        """Close the connections."""

    async def find(self, rid: str, owner: str) -> ArchivedResponse | None:
        """The response with this id, if it is that of the owner with this key. What others have is
        not even read."""

    async def several(self, rids: Sequence[str], owner: str) -> dict[str, ArchivedResponse]:
        """Those of these responses that are of the owner with this key and there, by id."""

    async def present(self, rids: Sequence[str], owner: str) -> set[str]:
        """The ids of those that `several` would answer."""

    async def metadata(self, rids: Sequence[str], owner: str) -> dict[str, dict[str, str]]:
        """What the owner changed the metadata of these responses to, of those that were changed."""

    async def conversation(
        self, name: str, log: str, partition: int, *, contents: bool = False
    ) -> tuple[conversations.Conversation, int | None]:
        """A conversation as the records below an offset of its partition make it, and that offset;
        None: nothing of the partition was folded. Of one that is not there, nothing is set.
        `contents`: with those of items that were added."""

    async def conversations(
        self, owner: str, after: str | None, limit: int
    ) -> list[conversations.Conversation]:
        """The owner's conversations, without their nodes; that in which something happened last
        comes first. One more than `limit`, if there is one more.

        Raises:
            UnknownPlace
        """

    async def search(self, owner: str, query: str, after: str | None, limit: int) -> list[Match]:
        """The owner's conversations of which a turn, items that were added together or the title
        has all words that are asked for, the last one perhaps as a beginning. Each is here once,
        with the newest of what matches; that in which something happened last comes first. One
        more than `limit`, if there is one more.

        Raises:
            UnknownPlace
        """

    async def file(self, key: str) -> bytes | None:
        """A piece of a file, by its key in the topic."""

    async def list_responses(self, query: ListQuery) -> list[list[ArchivedResponse]]:
        """Responses in order; of a chat completion all choices together, as one, and none that
        failed. One more than `limit`, if there is one more.

        Raises:
            UnknownPlace
        """

    async def wait_until_folded(self, log: str, topic: str, ends: Mapping[int, int]) -> None:
        """Wait until everything below `ends` (by partition) was folded, so that what was
        acknowledged before is seen.

        Raises:
            ArchiveUnavailable: it was not, within some seconds.
        """


def open_reader(url: str) -> Reader | None:
    """The reader of an archive's URL; None for an empty one. It connects at its first use."""
    if not url:
        return None
    from tailrace.archive import database, sql_reader

    return sql_reader.SqlReader(database.engine(url))
