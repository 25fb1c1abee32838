"""The interface of a sink's database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from pipelines.sinks.outputs import Output


class Rejection(NamedTuple):
    """A row that the server refuses because of its content. `why` has nothing of the row."""

    row: Output
    why: str


class WriteResult(NamedTuple):
    """The result of a write. `retries`: rows that the server could not accept now. All others that
    are not in `rejections` are in the database."""

    retries: tuple[Output, ...] = ()
    rejections: tuple[Rejection, ...] = ()


class Target(Protocol):
    """A database. All calls block."""

    def write(self, rows: Sequence[Output]) -> WriteResult:
        """Write rows under their sources. Those that were written before change nothing.

        Raises:
            servers.Unavailable: some of them may be there.
            servers.Refused: the server will take none of them.
        """

    def close(self) -> None:
        """Close the connections."""
