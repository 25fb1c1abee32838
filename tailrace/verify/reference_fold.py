"""A second implementation of the reader rule, for the judge (log rule §4; pure).

It has another shape than `tailrace.protocol.fold`, which walks the records with a state. Here each
question about a whole history is answered on its own:

1. Who owned the response, and from where to where? The claims alone decide, except for a first
   claim whose principal had cancelled before.
2. Which frames count? In each epoch, those of the owner that continue the accepted prefix.
3. Where does it end? At the first record that ends it. Everything after it is dropped; this can be
   the last step, because a later record changes nothing before it.
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
    """The hash chain after `ids`: for each id, eight bytes of blake2b over the chain so far and
    the id as four bytes, little-endian."""
    for i in ids:
        chain = hashlib.blake2b(
            chain + bytes((i & 255, i >> 8 & 255, i >> 16 & 255, i >> 24)), digest_size=8
        ).digest()
    return chain


class Epoch(NamedTuple):
    """The entries of one owner: from its claim at position `start` up to `stop`, where another
    claim replaces it or the entries end."""

    claim: records.Claim
    start: int
    stop: int


class Beginning(NamedTuple):
    """Where an item begins: after `at` characters and `ids` ids of the whole response."""

    at: int
    ids: int
    kind: str
    name: str
    call_id: str


class Part(NamedTuple):
    """An item: how it began (None: a message without a mark), its characters, and the numbers of
    its first id and of the one after its last."""

    beginning: Beginning | None
    text: str
    first: int
    stop: int


class Frame(NamedTuple):
    """An accepted TOK at position `at`; `total` ids and `chain` after it."""

    at: int
    tok: records.Tok
    total: int
    chain: bytes


@dataclass(slots=True)
class Account:
    """The result of a response's records.

    Attributes:
        entries: its token records, each offset once.
        principal: whose response it is, by its first claim or else its request; None if neither
            is known.
        epochs: accepted claims in order.
        frames: accepted frames in order.
        ended_at: position of the record that ended it; None while it is open.
        end: that record; None for a cancel or while it is open.
        torn: positions of records by the owner at the right index whose hash contradicts the
            accepted prefix: the writer continued another text.
        yielded: owners that wrote YIELD while they were owners, with the position of the first.
    """

    entries: Sequence[history.Entry]
    principal: records.Owner | None = None
    epochs: list[Epoch] = field(default_factory=list)
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
        """The text that every reader holds at the end, or so far."""
        return "".join(
            [f.tok.text for f in self.frames] + ([self.end.text_tail] if self.end else [])
        )

    @property
    def marks(self) -> list[Beginning]:
        """All marks, counted from the beginning of the response."""
        return self._beginnings(())

    def _beginnings(self, unmarked: Sequence[int]) -> list[Beginning]:
        """All marks, and for each of the positions `unmarked`, in order, a message that begins
        there without one."""
        beginnings: list[Beginning] = []
        written = generated = 0
        positions = [*unmarked]
        pieces = [(f.at, f.tok.marks, f.tok.text, len(f.tok.ids)) for f in self.frames]
        if self.end is not None:
            pieces.append((len(self.entries), self.end.marks, self.end.text_tail, 0))
        for position, marks, text, count in pieces:
            while positions and positions[0] < position:
                beginnings.append(Beginning(written, generated, "m", "", ""))
                del positions[0]
            beginnings += [
                Beginning(written + m.at, generated + m.ids, m.kind, m.name, m.call_id)
                for m in marks
            ]
            written += len(text)
            generated += count
        return beginnings

    @property
    def continued(self) -> list[Epoch]:
        """The epochs whose owners continue the text of another model (log rule §25)."""
        return [t for t in self.epochs if t.claim.continues and self._total_before(t.start)]

    @property
    def former(self) -> list[tuple[int, int, str]]:
        """For each of them: ids and characters before it, and the model that had answered."""
        former = []
        names = [self._first_served, *(t.claim.served for t in self.continued)]
        for name, epoch in zip(names, self.continued, strict=False):
            texts = [len(f.tok.text) for f in self.frames if f.at < epoch.start]
            former.append((self._total_before(epoch.start), sum(texts), name))
        return former

    @property
    def parts(self) -> list[Part]:
        """The items: the whole text and all ids, cut where the marks say, and where another model
        continues."""
        text, marks = self.text, self._beginnings([t.start for t in self.continued])
        starts: list[Beginning | None] = [None, *marks]
        ends = [(m.at, m.ids) for m in marks] + [(len(text), self.total)]
        begins = [(0, 0), *ends[:-1]]
        parts = [
            Part(start, text[a:b], first, stop)
            for start, (a, first), (b, stop) in zip(starts, begins, ends, strict=True)
        ]
        # Without characters before it, the first mark begins the first item.
        return parts[1:] if marks and not parts[0].text else parts

    @property
    def vectors(self) -> tuple[bytes, ...]:
        """The vectors of the inputs that were to be embedded."""
        return self.end.vectors if self.end is not None else ()

    @property
    def reasoning(self) -> int:
        """Number of ids that belong to reasoning, without those that were copied."""
        return sum(
            max(0, p.stop - max(p.first, self.copied))
            for p in self.parts
            if p.beginning is not None and p.beginning.kind == "r"
        )

    @property
    def copied(self) -> int:
        """How many ids it begins with that are another response's, as the last claim before its
        first id says that has some."""
        first_frame = self.frames[0].at if self.frames else len(self.entries)
        counts = [t.claim.copied for t in self.epochs if t.start < first_frame and t.claim.copied]
        return counts[-1] if counts else 0

    @property
    def dropped(self) -> int:
        """How many messages its prompt lacks, as the first owner said."""
        return self.epochs[0].claim.dropped if self.epochs else 0

    @property
    def prompt(self) -> int:
        """How many tokens its prompt has, as the last owner before its first token said who did."""
        first_frame = self.frames[0].at if self.frames else len(self.entries)
        lengths = [t.claim.prompt_tokens for t in self.epochs if t.start < first_frame]
        return next((tokens for tokens in reversed(lengths) if tokens), 0)

    @property
    def served(self) -> str:
        """The model that answers, if it is not the requested one: from the claim under which its
        first token was generated, or the last claim while there is none, or the last one that
        continues."""
        continued = self.continued
        return continued[-1].claim.served if continued else self._first_served

    @property
    def _first_served(self) -> str:
        names = self.served_at(self.frames[0].at if self.frames else len(self.entries))
        return names[-1] if names else ""

    def served_at(self, position: int) -> list[str]:
        """What each owner before `position` said of it."""
        return [epoch.claim.served for epoch in self.epochs if epoch.start < position]

    @property
    def answer_of(self) -> str:
        """The response whose answer it is again, as the last owner before its first token said."""
        first_frame = self.frames[0].at if self.frames else len(self.entries)
        sources = [epoch.claim.answer_of for epoch in self.epochs if epoch.start < first_frame]
        return sources[-1] if sources else ""

    @property
    def hedged(self) -> list[str]:
        """Owners that replaced one that lived and was late."""
        return [epoch.claim.own for epoch in self.epochs if epoch.claim.hedged]

    @property
    def generated_count(self) -> int:
        """How many ids were generated for it."""
        return max(0, self.total - self.copied)

    @property
    def parser(self) -> str:
        """What makes items of the ids, as the owner said who made the first of them; empty: nothing
        does."""
        first_frame = self.frames[0].at if self.frames else len(self.entries)
        owners = [epoch.claim for epoch in self.epochs if epoch.start < first_frame]
        return owners[-1].parser if owners else ""

    @property
    def status(self) -> str | None:
        """The client's status; None while open."""
        if self.ended_at is None:
            return None
        if self.end is not None:
            return STATUS.get(self.end.reason, "failed")
        return "cancelled" if self.reason in ("cancelled", "withdrawn") else "failed"

    @property
    def reason(self) -> str | None:
        """END's reason, or that of a CANCEL: `cancelled`, `withdrawn`, or why it failed."""
        if self.ended_at is None:
            return None
        last = self.entries[self.ended_at].record
        if isinstance(last, records.Cancel):
            return last.failed or ("withdrawn" if last.withdrawn else "cancelled")
        return last.reason if isinstance(last, records.End) else None

    @property
    def takeovers(self) -> list[tuple[Epoch, int]]:
        """Every epoch but the first, each with k: the tokens accepted before it."""
        return [(t, self._total_before(t.start)) for t in self.epochs[1:]]

    def accepted(self) -> list[int]:
        """Positions of all records that took effect, in order."""
        ended = [] if self.ended_at is None else [self.ended_at]
        return sorted([t.start for t in self.epochs] + [f.at for f in self.frames] + ended)

    def _total_before(self, position: int) -> int:
        n = bisect.bisect_left(self.frames, position, key=lambda f: f.at)
        return self.frames[n - 1].total if n else 0


def account(entries: Sequence[history.Entry], principal: records.Owner | None = None) -> Account:
    """The account of one response's records in offset order. A repeated offset is one record read
    twice, and counts once. `principal`: that of its request, where it is known."""
    once = [e for i, e in enumerate(entries) if i == 0 or e.offset > entries[i - 1].offset]
    result = Account(once)
    result.epochs = _epochs(once)
    result.principal = result.epochs[0].claim.owner if result.epochs else principal
    for t in result.epochs:
        _append_frames(result, t)
    _cut(result)
    return result


def _epochs(entries: Sequence[history.Entry]) -> list[Epoch]:
    """Follow the claims: an owner is replaced by the first later claim that names it."""
    successors: dict[str | None, list[int]] = {}
    cancelled: set[records.Owner] = set()
    for at, e in enumerate(entries):
        if isinstance(e.record, records.Cancel):
            cancelled.add(e.record.by)
        elif isinstance(e.record, records.Claim):
            first = e.record.prev is None and None not in successors
            if first and e.record.owner in cancelled:
                continue
            successors.setdefault(e.record.prev, []).append(at)
    starts: list[int] = []
    owner: str | None = None
    while True:
        waiting = successors.get(owner, [])
        next_at = bisect.bisect_right(waiting, starts[-1] if starts else -1)
        if next_at == len(waiting):
            break
        starts.append(waiting[next_at])
        claim = entries[starts[-1]].record
        assert isinstance(claim, records.Claim)
        owner = claim.own
    stops = [*starts[1:], len(entries)]
    return [Epoch(entries[a].record, a, b) for a, b in zip(starts, stops, strict=False)]  # type: ignore[arg-type]


def _append_frames(account: Account, epoch: Epoch) -> None:
    """Append those frames of one epoch that continue the accepted prefix."""
    for at in range(epoch.start + 1, epoch.stop):
        record = account.entries[at].record
        if isinstance(record, records.Yield) and record.own == epoch.claim.own:
            account.yielded.setdefault(record.own, at)
        if (
            not isinstance(record, records.Tok)
            or record.own != epoch.claim.own
            or record.seq != account.total
        ):
            continue
        chain = account.frames[-1].chain if account.frames else START
        if record.parent != chain.hex():
            account.torn.append(at)
            continue
        account.frames.append(
            Frame(at, record, record.seq + len(record.ids), link(chain, record.ids))
        )


def _cut(account: Account) -> None:
    """Find the end and drop everything after it."""
    starts = [t.start for t in account.epochs]
    for at, e in enumerate(account.entries):
        epoch = account.epochs[n - 1] if (n := bisect.bisect_left(starts, at)) else None
        if isinstance(e.record, records.Cancel) and account.principal in (None, e.record.by):
            if e.record.failed == "expired" and epoch is not None:
                continue  # it was claimed in time
            account.ended_at = at
            break
        if (
            isinstance(e.record, records.End)
            and epoch is not None
            and _complete(account, at, e.record, epoch)
        ):
            account.ended_at, account.end = at, e.record
            break
    last = len(account.entries) if account.ended_at is None else account.ended_at
    account.epochs = [t for t in account.epochs if t.start < last]
    account.frames = [f for f in account.frames if f.at < last]
    account.torn = [at for at in account.torn if at < last]
    account.yielded = {own: at for own, at in account.yielded.items() if at < last}


def _complete(account: Account, at: int, end: records.End, epoch: Epoch) -> bool:
    """Whether this END is the owner's and closes exactly the accepted prefix."""
    if end.own != epoch.claim.own:
        return False
    n = bisect.bisect_left(account.frames, at, key=lambda f: f.at)
    total, chain = (account.frames[n - 1].total, account.frames[n - 1].chain) if n else (0, START)
    if end.seq != total:
        return False
    if end.digest != chain.hex():
        account.torn.append(at)
        return False
    return True
