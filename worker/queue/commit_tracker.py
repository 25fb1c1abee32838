"""Which offset of a request partition may be committed (pure).

- Only `committable` is committed: the smallest offset in flight, otherwise the next one. So a
  commit never passes unfinished work.
- The commit's metadata is an offset of the token log. It lies at or below the first effective
  record of every request at or above `committable`, finished requests included. A successor that
  folds from there cannot mistake a redelivered finished request for a new one.
- A tracker belongs to one assignment and ends with it. aiokafka commits under the group's current
  generation, so a tracker that survived a revoke could move the offset back.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class Commit(NamedTuple):
    """What to commit.

    `offset` is the next offset to be read, `token_offset` where a successor starts to fold.
    """

    offset: int
    token_offset: int

    @property
    def metadata(self) -> str:
        """The text that is stored with the committed offset."""
        return str(self.token_offset)


@dataclass(slots=True)
class Tracker:
    """Offsets of one partition during one assignment.

    Attributes:
        start: offset that a worker had committed at the assignment, -1 if none had. Commits never
            go below it.
        last: highest offset that was read, -1 before the first.
        valid: its assignment still holds.
        _in_flight: offsets read and not finished.
        _lowest: the smallest of them; None while it has to be looked for.
        _claims: request offset -> token-log offset of its first effective record, for requests at
            or above `committable`.
        _last_commit: (committable, lowest claim or None) of the last acknowledged commit; None
            before.
    """

    start: int = -1
    last: int = -1
    valid: bool = True
    _in_flight: set[int] = field(default_factory=set)
    _lowest: int | None = None
    _claims: dict[int, int] = field(default_factory=dict)
    _last_commit: tuple[int, int | None] | None = None

    @property
    def in_flight(self) -> int:
        """Number of requests read and not finished."""
        return len(self._in_flight)

    @property
    def committable(self) -> int:
        """The lowest offset that may be unfinished; -1 while nothing was read or committed."""
        if self._in_flight:
            # Read at every poll, and thousands may be in flight.
            if self._lowest is None:
                self._lowest = min(self._in_flight)
            return self._lowest
        return self.last + 1 if self.last >= 0 else self.start

    @property
    def in_flight_span(self) -> int:
        """`last - committable`: how far finished work runs ahead of the commit."""
        return max(0, self.last - self.committable)

    def begin(self, offset: int) -> None:
        """A request was read."""
        self._in_flight.add(offset)
        if self._lowest is not None:
            self._lowest = min(self._lowest, offset)
        self.last = max(self.last, offset)

    def note_claim(self, offset: int, token_offset: int) -> None:
        """The request's first effective record (CLAIM or CANCEL) lies at `token_offset`. No effect
        for an offset that is not in flight."""
        if offset in self._in_flight:
            self._claims[offset] = min(token_offset, self._claims.get(offset, token_offset))

    def finish(self, offset: int) -> None:
        """This request needs no more work."""
        self._in_flight.discard(offset)
        if offset == self._lowest:
            self._lowest = None

    def skip(self, offset: int) -> None:
        """A record that is not a request: read and finished at once."""
        self.begin(offset)
        self.finish(offset)

    def next_commit(self, position: int) -> Commit | None:
        """The commit to make now, or None if nothing changed.

        `position` is the tail's position in the token partition: below it, every record of the
        requests at or above `committable` was seen.
        """
        committable = self.committable
        if committable < 0:
            return None
        self._claims = {offset: at for offset, at in self._claims.items() if offset >= committable}
        lowest = min(self._claims.values(), default=None)
        if (committable, lowest) == self._last_commit or (
            self._last_commit is None and committable == self.start
        ):
            return None
        return Commit(committable, position if lowest is None else lowest)

    def note_commit(self, commit: Commit) -> None:
        """The broker has `commit`."""
        lowest = min(
            (at for offset, at in self._claims.items() if offset >= commit.offset), default=None
        )
        self._last_commit = (commit.offset, lowest)
