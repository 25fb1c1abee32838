"""Opens an archive, and the queries that services make of it.

The database library is imported only when an archive is opened: the import takes a quarter of a
gateway's start, and services without an archive do not need it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from tailrace.archive.archived import ArchivedResponse, ListQuery, Match
from tailrace.protocol import conversations


class Reader(Protocol):
    """Reads one archive. Every query raises ArchiveUnavailable without an answer."""

    async def stop(self) -> None:
        """Close the connections."""

    async def find(self, rid: str, owner: str) -> ArchivedResponse | None:
        """The response with this id, if it belongs to the owner with this key. Rows of others are
        not even read."""

    async def several(self, rids: Sequence[str], owner: str) -> dict[str, ArchivedResponse]:
        """Those of these responses that exist and belong to the owner with this key, by id."""

    async def present(self, rids: Sequence[str], owner: str) -> set[str]:
        """The ids of the responses that `several` would return."""

    async def metadata(self, rids: Sequence[str], owner: str) -> dict[str, dict[str, str]]:
        """The metadata that the owner gave these responses later; without unchanged ones."""

    async def conversation(
        self, name: str, log: str, partition: int, *, contents: bool = False
    ) -> tuple[conversations.Conversation, int | None]:
        """A conversation, folded from the records below an offset of its partition, and that
        offset;
        None: nothing of the partition was folded. A missing conversation has no attributes.
        `contents`: include those of items that were added."""

    async def conversations(
        self, owner: str, after: str | None, limit: int
    ) -> list[conversations.Conversation]:
        """The owner's conversations, without their nodes, the one with the latest change first. One
        more than `limit`, if there is one more.

        Raises:
            UnknownPlace
        """

    async def search(self, owner: str, query: str, after: str | None, limit: int) -> list[Match]:
        """The owner's conversations in which a turn, items that were added together or the title
        has all words of the query. The last word may be the beginning of a word. Each conversation
        appears once, with its newest match, the one with the latest change first. One more than
        `limit`, if there is one more.

        Raises:
            UnknownPlace
        """

    async def file(self, key: str) -> bytes | None:
        """A chunk of a file, by its key in the topic."""

    async def list_responses(self, query: ListQuery) -> list[list[ArchivedResponse]]:
        """Responses in order; all choices of a chat completion count as one, without completions
        that have a failed choice. One more than `limit`, if there is one more.

        Raises:
            UnknownPlace
        """

    async def wait_until_folded(self, log: str, topic: str, ends: Mapping[int, int]) -> None:
        """Wait until everything below `ends` (by partition) was folded, so that a read sees
        everything that was acknowledged before.

        Raises:
            ArchiveUnavailable: not within some seconds.
        """


def open_reader(url: str) -> Reader | None:
    """The reader of an archive's URL; None for an empty one. It connects at its first use."""
    if not url:
        return None
    from tailrace.archive import database, sql_reader

    return sql_reader.SqlReader(database.engine(url))
