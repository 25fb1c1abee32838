"""The reader rule a second time, written from docs/log-rule.md and in another shape than
tailrace.protocol.fold, so that a mistake in one shows in the other.

No state changes here. The whole history is given, and every quantity is a question about its
first `n` records: who owns the response then, which ids are accepted, where it ended. An answer is
defined by the answer for `n - 1`, and cached.
"""

from __future__ import annotations

import functools
import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from tailrace.protocol import records


class Entry(NamedTuple):
    """One record where it lies in the partition; `timestamp` is the broker's."""

    offset: int
    timestamp: int
    record: records.TokenRecord


class Token(NamedTuple):
    """One accepted token and the index of the record that brought it."""

    id: int
    brought_by: int


def chain(ids: Sequence[int]) -> str:
    """H over all ids from the start: H(empty) is eight zero bytes, H(ids + [i]) = blake2b-64(H(ids)
    + i as four bytes, least first)."""
    link = bytes(8)
    for i in ids:
        link = hashlib.blake2b(
            link + bytes((i & 255, i >> 8 & 255, i >> 16 & 255, i >> 24)), digest_size=8
        ).digest()
    return link.hex()


class History:
    """Questions about the first `n` records of one response, in offset order. A record at an offset
    that was passed already is not part of the history."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.entries = [
            e
            for i, e in enumerate(entries)
            if all(e.offset > earlier.offset for earlier in entries[:i])
        ]
        self.owner = functools.cache(self._owner)
        self.principal = functools.cache(self._principal)
        self.tokens = functools.cache(self._tokens)
        self.end = functools.cache(self._end)
        # In order, so that no question recurses deeper than one step.
        for n in range(len(self.entries)):
            self.owner(n), self.principal(n), self.tokens(n), self.end(n)

    def _last(self, n: int) -> records.TokenRecord:
        return self.entries[n - 1].record

    def _owner(self, n: int) -> str | None:
        """The fencing token whose records count."""
        if n == 0:
            return None
        before, last = self.owner(n - 1), self._last(n)
        takes_over = isinstance(last, records.Claim) and last.prev == before
        if takes_over and self.principal(n - 1) is None:
            takes_over = last.owner not in self._cancellers(n - 1)  # type: ignore[union-attr]
        elif takes_over:
            takes_over = self.end(n - 1) is None
        return last.own if takes_over else before  # type: ignore[union-attr]

    def _cancellers(self, n: int) -> set[records.Owner]:
        """Who wrote a CANCEL."""
        return {e.record.by for e in self.entries[:n] if isinstance(e.record, records.Cancel)}

    def _principal(self, n: int) -> records.Owner | None:
        """Whose response it is, by its first claim."""
        if n == 0:
            return None
        last = self._last(n)
        if isinstance(last, records.Claim) and self.owner(n - 1) is None and self.owner(n):
            return last.owner
        return self.principal(n - 1)

    def _tokens(self, n: int) -> tuple[Token, ...]:
        """All accepted tokens."""
        if n == 0:
            return ()
        before, last = self.tokens(n - 1), self._last(n)
        if not isinstance(last, records.Tok) or self.end(n - 1) is not None:
            return before
        expected = (self.owner(n - 1), len(before), chain([t.id for t in before]))
        if (last.own, last.seq, last.parent) != expected:
            return before
        return (*before, *(Token(i, n - 1) for i in last.ids))

    def _end(self, n: int) -> int | None:
        """Index of the record that ended the response."""
        if n == 0:
            return None
        before, last = self.end(n - 1), self._last(n)
        if before is not None:
            # A first claim shows that a former cancel was none of the principal's.
            return None if self.principal(n - 1) is None and self.principal(n) else before
        if isinstance(last, records.Cancel):
            late = last.failed == "expired" and self.owner(n - 1) is not None
            return n - 1 if self.principal(n) in (None, last.by) and not late else None
        ids = [t.id for t in self.tokens(n - 1)]
        complete = isinstance(last, records.End) and (last.own, last.seq, last.digest) == (
            self.owner(n - 1),
            len(ids),
            chain(ids),
        )
        return n - 1 if complete else None

    def claims(self, n: int) -> list[tuple[str, str]]:
        """Accepted claims as (own, worker)."""
        changes = [i for i in range(n) if self.owner(i) != self.owner(i + 1) or self._retaken(i)]
        return [
            (r.own, r.worker)
            for r in (self.entries[i].record for i in changes)
            if isinstance(r, records.Claim)
        ]

    def former(self, n: int) -> list[tuple[int, int]]:
        """Ids and characters before each accepted claim that continues another model's text."""
        return [
            (len(self.tokens(i)), len(self.text(i)))
            for i in range(n)
            if (self.owner(i) != self.owner(i + 1) or self._retaken(i))
            and self.tokens(i)
            and getattr(self.entries[i].record, "continues", False)
        ]

    def _retaken(self, i: int) -> bool:
        """A claim that replaces a fencing token by the same token. The rule accepts it, though the
        owner does not change; writers never do it."""
        last = self.entries[i].record
        return (
            isinstance(last, records.Claim)
            and last.prev == self.owner(i) == last.own
            and self.end(i) is None
        )

    def outcome(self, i: int) -> str:
        """What record `i` came to: a word for its effect, or the reason it is ignored."""
        record = self.entries[i].record
        if self.end(i) is not None:
            return "after_done" if self.end(i + 1) is not None else "claimed"
        if self.end(i + 1) is not None:
            return "ended"
        if isinstance(record, records.Tok):
            return self._outcome_of_token(record, i)
        if isinstance(record, records.Claim):
            return "claimed" if record.prev == self.owner(i) else "lost_race"
        if isinstance(record, records.Yield):
            return "yielded" if record.own == self.owner(i) else "stale_owner"
        if isinstance(record, records.Cancel):
            late = record.failed == "expired" and self.owner(i) is not None
            return "lost_race" if late else "foreign"
        return "end"

    def _outcome_of_token(self, record: records.Tok, i: int) -> str:
        if len(self.tokens(i + 1)) > len(self.tokens(i)):
            return "accepted"
        if record.own != self.owner(i):
            return "stale_owner"
        ahead = record.seq - len(self.tokens(i))
        return "duplicate" if ahead < 0 else "gap" if ahead > 0 else "chain"

    def text(self, n: int) -> str:
        """All accepted text, without the end's tail."""
        brought = dict.fromkeys(t.brought_by for t in self.tokens(n))
        return "".join(
            r.text for r in (self.entries[i].record for i in brought) if isinstance(r, records.Tok)
        )

    def marks(self, n: int) -> list[records.Mark]:
        """All accepted marks, without those of the end, counted from the response's beginning."""
        return [mark for _, mark in self._marks(n)]

    def last_mark(self, n: int) -> records.Mark | None:
        """The last of them in the segment that the last continuing claim began."""
        begin = max((ids for ids, _ in self.former(n)), default=0)
        return next((mark for first, mark in reversed(self._marks(n)) if first >= begin), None)

    def _marks(self, n: int) -> list[tuple[int, records.Mark]]:
        """Each with the number of the first token of its record."""
        brought = [t.brought_by for t in self.tokens(n)]
        found = []
        for i in dict.fromkeys(brought):
            record = self.entries[i].record
            assert isinstance(record, records.Tok)
            first, written = brought.index(i), len(self.text(i))
            found += [
                (first, records.Mark(written + m.at, first + m.ids, m.kind, m.name, m.call_id))
                for m in record.marks
            ]
        return found

    def reasoning(self, n: int) -> int:
        """Number of accepted ids in front of which the last mark of their segment is one of
        reasoning."""
        marks, begins = self._marks(n), [0, *(ids for ids, _ in self.former(n))]
        kinds = [
            next(
                (
                    m.kind
                    for first, m in reversed(marks)
                    if m.ids <= k and first >= max(b for b in begins if b <= k)
                ),
                "m",
            )
            for k in range(len(self.tokens(n)))
        ]
        return kinds.count("r")

    def ignored(self, n: int) -> Counter[str]:
        """Ignored records, counted by reason."""
        effects = {"ended", "accepted", "claimed", "yielded"}
        return Counter(o for o in map(self.outcome, range(n)) if o not in effects)
