"""What a vector database does.

All calls block, and one thread makes them. All but `close` raise Unavailable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

MAX_ROWS: Final = 16_384  # rows of one answer


class Unavailable(Exception):
    """The database does not answer, or refused. The text says why and holds nothing of a row."""


class NotInstalled(Exception):
    """The libraries are missing. The text says what to install."""


@dataclass(frozen=True, slots=True)
class Passage:
    """One row.

    Attributes:
        key: of its record. The row's own key is a digest of it.
        scope: digest of the owner.
        attachment: the file as it was added to the store.
        number: of the passage within the file, from 0.
        model: whose `vector` it is; little-endian float32 values.
    """

    key: str
    scope: str
    store: str
    attachment: str
    number: int
    text: str
    model: str
    vector: bytes


class Hit(NamedTuple):
    """A row that a search found. `score`: cosine of both vectors."""

    attachment: str
    number: int
    text: str
    score: float


class Where(NamedTuple):
    """Which rows may be found at all: those of an owner's store and of these files in it."""

    scope: str
    store: str
    attachments: Sequence[str]


class VectorDatabase(Protocol):
    """A database of passages."""

    def open(self) -> None:
        """Connect, before the first use; idempotent."""

    def positions(self) -> dict[int, int]:
        """For each partition of the topic the offset below which it was folded."""

    def fold(
        self, passages: Sequence[Passage], erased: Sequence[str], positions: Mapping[int, int]
    ) -> None:
        """Put rows in, or in the place of rows of the same keys; take those out whose keys are
        `erased`; and then remember the positions. On return all of it is durable."""

    def check_writes(self) -> None:
        """Return if a harmless row can be written."""

    def search(self, where: Where, model: str, vector: bytes, limit: int) -> list[Hit]:
        """The rows that are most alike, best first."""

    def numbers(self, where: Where, model: str) -> set[int]:
        """The numbers of the existing rows."""

    def texts(self, where: Where) -> list[str]:
        """The texts, in the order of their numbers."""

    def close(self) -> None:
        """Close the connection; idempotent."""
