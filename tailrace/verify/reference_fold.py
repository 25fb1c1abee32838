"""The reader rule once more, for the judge: in another shape than `tailrace.protocol.fold`, which
walks records with a state (log rule §4; pure).

Here questions about a whole history are answered one after the other. Who owned the response, and
from where to where, follows from the claims alone. In each tenure the owner's frames are strung
together where they fit. Then the first record that ends the response cuts everything behind it: a
later record can change nothing before it, so the cut may come last.
"""

from __future__ import annotations

import bisect
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tailrace.protocol import records
from tailrace.verify import history

START = bytes(8)
STATUS = {"stop": "completed", "warmup": "completed", "length": "incomplete"}


def link(chain: bytes, ids: Sequence[int]) -> bytes:
    """The chain after `ids`: eight bytes of blake2b over the chain before and each id as four
    bytes, least first."""
    for i in ids:
        chain = hashlib.blake2b(
            chain + bytes((i & 255, i >> 8 & 255, i >> 16 & 255, i >> 24)), digest_size=8
        ).digest()
    return chain


class Tenure(NamedTuple):
    """One owner's time: its claim at position `start` of the entries, up to the position where it
    is replaced."""

    claim: records.Claim
    start: int
    stop: int


class Frame(NamedTuple):
    """An accepted TOK at position `at`; `total` ids and `chain` after it."""

    at: int
    tok: records.Tok
    total: int
    chain: bytes


@dataclass(slots=True)
class Account:
    """What the records of a response came to.

    Attributes:
        tenures: accepted claims in order.
        frames: accepted frames in order.
        ended_at: position of the record that ended it; None while it is open.
        end: that record; None for a cancel or while it is open.
        torn: positions of records by the right owner at the right index whose hash contradicts the
            prefix: a writer continued something else.
        yielded: owners that asked to be taken over while they were owners, with the position where
            they first did.
    """

    entries: Sequence[history.Placed]
    tenures: list[Tenure] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=list)
    ended_at: int | None = None
    end: records.End | None = None
    torn: list[int] = field(default_factory=list)
    yielded: dict[str, int] = field(default_factory=dict)

    @property
    def ids(self) -> list[int]:
        return [i for f in self.frames for i in f.tok.ids]

    @property
    def total(self) -> int:
        return self.frames[-1].total if self.frames else 0

    @property
    def chain(self) -> str:
        return (self.frames[-1].chain if self.frames else START).hex()

    @property
    def text(self) -> str:
        """What every reader holds at the end, or so far."""
        return "".join(
            [f.tok.text for f in self.frames] + ([self.end.text_tail] if self.end else [])
        )

    @property
    def status(self) -> str | None:
        """The client's status; None while open."""
        if self.ended_at is None:
            return None
        return STATUS.get(self.end.reason, "failed") if self.end else "cancelled"

    @property
    def reason(self) -> str | None:
        """END's reason, or `cancelled`."""
        if self.ended_at is None:
            return None
        return self.end.reason if self.end else "cancelled"

    @property
    def takeovers(self) -> list[tuple[Tenure, int]]:
        """Tenures behind the first, each with k: the tokens accepted before it."""
        return [(t, self._total_before(t.start)) for t in self.tenures[1:]]

    def accepted(self) -> list[int]:
        """Positions of all records that took effect, in order."""
        ended = [] if self.ended_at is None else [self.ended_at]
        return sorted([t.start for t in self.tenures] + [f.at for f in self.frames] + ended)

    def made_by(self, t: Tenure) -> int:
        """How many tokens of a tenure were accepted."""
        return self._total_before(t.stop) - self._total_before(t.start)

    def _total_before(self, position: int) -> int:
        n = bisect.bisect_left(self.frames, position, key=lambda f: f.at)
        return self.frames[n - 1].total if n else 0


def account(entries: Sequence[history.Placed]) -> Account:
    """Judge one response's records, given in offset order; an offset that comes again is the same
    record read twice."""
    once = [e for i, e in enumerate(entries) if i == 0 or e.offset > entries[i - 1].offset]
    found = Account(once)
    found.tenures = _tenures(once)
    for t in found.tenures:
        _string(found, t)
    _cut(found)
    return found


def _tenures(entries: Sequence[history.Placed]) -> list[Tenure]:
    """Follow the claims: the heir of an owner is the first later claim that names it."""
    heirs: dict[str | None, list[int]] = {}
    for at, e in enumerate(entries):
        if isinstance(e.record, records.Claim):
            heirs.setdefault(e.record.prev, []).append(at)
    starts: list[int] = []
    owner: str | None = None
    while True:
        waiting = heirs.get(owner, [])
        next_at = bisect.bisect_right(waiting, starts[-1] if starts else -1)
        if next_at == len(waiting):
            break
        starts.append(waiting[next_at])
        claim = entries[starts[-1]].record
        assert isinstance(claim, records.Claim)
        owner = claim.own
    stops = [*starts[1:], len(entries)]
    return [Tenure(entries[a].record, a, b) for a, b in zip(starts, stops, strict=False)]  # type: ignore[arg-type]


def _string(found: Account, tenure: Tenure) -> None:
    """Append the frames of one tenure that continue what is there."""
    for at in range(tenure.start + 1, tenure.stop):
        record = found.entries[at].record
        if isinstance(record, records.Yield) and record.own == tenure.claim.own:
            found.yielded.setdefault(record.own, at)
        if (
            not isinstance(record, records.Tok)
            or record.own != tenure.claim.own
            or record.seq != found.total
        ):
            continue
        chain = found.frames[-1].chain if found.frames else START
        if record.parent != chain.hex():
            found.torn.append(at)
            continue
        found.frames.append(
            Frame(at, record, record.seq + len(record.ids), link(chain, record.ids))
        )


def _cut(found: Account) -> None:
    """Find the end; drop what lies behind it."""
    starts = [t.start for t in found.tenures]
    for at, e in enumerate(found.entries):
        if isinstance(e.record, records.Cancel):
            found.ended_at = at
            break
        tenure = found.tenures[n - 1] if (n := bisect.bisect_left(starts, at)) else None
        if (
            isinstance(e.record, records.End)
            and tenure is not None
            and _complete(found, at, e.record, tenure)
        ):
            found.ended_at, found.end = at, e.record
            break
    last = len(found.entries) if found.ended_at is None else found.ended_at
    found.tenures = [t for t in found.tenures if t.start < last]
    found.frames = [f for f in found.frames if f.at < last]
    found.torn = [at for at in found.torn if at < last]
    found.yielded = {own: at for own, at in found.yielded.items() if at < last}


def _complete(found: Account, at: int, end: records.End, tenure: Tenure) -> bool:
    if end.own != tenure.claim.own:
        return False
    n = bisect.bisect_left(found.frames, at, key=lambda f: f.at)
    total, chain = (found.frames[n - 1].total, found.frames[n - 1].chain) if n else (0, START)
    if end.seq != total:
        return False
    if end.digest != chain.hex():
        found.torn.append(at)
        return False
    return True
