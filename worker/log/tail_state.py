"""What the tail knows: the folds of one partition's responses.

A fold here may begin in the middle of the partition. It may call a response NEW only if it began at
or below the lower bound in the response's id. Every other response must be read back
(`worker.log.tail`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from tailrace import telemetry
from tailrace.protocol import fold, history, records
from worker.log import finished

# Memory of a worker's tail in bytes; above it the oldest entries that are not held are dropped.
MAX_BYTES = 32 << 20
# Measured: an entry without tokens, one token of it, and an ended response without its packed fold.
ENTRY_BYTES = 2_400
TOKEN_BYTES = 40
ENDED_BYTES = 300


@dataclass(slots=True)
class Entry:
    """One response as the tail knows it.

    Attributes:
        complete: every record of the response at or above this offset was applied to `fold`.
        first_offset: offset of the first record read, -1 before.
        fold: the response under the reader rule.
        first: offset of the first record that took effect, -1 before.
        last_record_ms: broker time of the last record read, also of an ignored one; 0 before.
        streams: the last record was a frame.
        claim_effects: fencing tokens of the CLAIMs read so far, and whether any copy of them took
            effect.
        holds: number of callers that need this entry; it is forgotten only at 0.
        last_size: bytes that its partition has counted for it.
        pending: records that arrived while the response is read back; None otherwise.
        draft: what `llm.history` will keep of it; None where nobody asked for it before its first
            claim, or memory was short. Then it is read back (`Tail.draft`).
        listener: called at every change of ownership or phase; set while the response is served
            here, None otherwise.
        _changed: set and dropped at every change; None while no reader waits.
    """

    complete: int
    first_offset: int = -1
    fold: fold.Fold = field(default_factory=lambda: fold.Fold(retain_ids=True))
    first: int = -1
    last_record_ms: int = 0
    streams: bool = False
    claim_effects: dict[str, bool] = field(default_factory=dict)
    holds: int = 0
    last_size: int = 0
    pending: list[tuple[records.TokenRecord, int, int]] | None = None
    draft: history.Draft | None = None
    listener: Callable[[], None] | None = None
    _changed: asyncio.Event | None = None

    @property
    def size(self) -> int:
        """Estimated memory in bytes."""
        draft_bytes = self.draft.size if self.draft is not None else 0
        return ENTRY_BYTES + TOKEN_BYTES * len(self.fold.ids) + len(self.fold.text) + draft_bytes

    def apply(self, record: records.TokenRecord, offset: int, timestamp: int) -> None:
        """Apply one record; wakes waiters when ownership or phase may have changed."""
        if self.pending is not None:
            self.pending.append((record, offset, timestamp))
            return
        if self.first_offset < 0:
            self.first_offset = offset
        self.last_record_ms, self.streams = timestamp, isinstance(record, records.Tok)
        outcome = self.fold.apply(record, offset, timestamp)
        if outcome is fold.Ignored.SEEN:
            return
        if isinstance(outcome, fold.Ignored):
            telemetry.IGNORED_RECORDS.labels(reason=outcome.value).inc()
        elif self.draft is not None:
            self.draft.add(record, timestamp)
        if isinstance(outcome, fold.Claimed | fold.Ended) and self.first < 0:
            self.first = offset
        if isinstance(record, records.Claim):
            # A second copy of a claim has no effect; that says nothing about the first.
            took_effect = isinstance(outcome, fold.Claimed)
            self.claim_effects[record.own] = (
                self.claim_effects.get(record.own, False) or took_effect
            )
        if (
            isinstance(record, records.Cancel)
            and record.failed != "expired"
            and record.by == self.fold.principal
        ):
            self.complete = 0  # DONE, whatever came before: the fold need not begin any earlier
        if not isinstance(outcome, fold.Accepted):
            self._drop_unneeded(outcome)
            self.wake()

    def _drop_unneeded(self, outcome: object) -> None:
        """A worker reads the public data in the request, and ids only to continue."""
        if isinstance(outcome, fold.Claimed) and self.fold.first is outcome.claim:
            self.fold.first = msgspec.structs.replace(outcome.claim, echo={})
        elif isinstance(outcome, fold.Ended):
            self.fold.ids, self.fold.text = [], bytearray()

    def wake(self) -> None:
        """Wake all waiters and call the listener."""
        if self._changed is not None:
            self._changed.set()
            self._changed = None
        if self.listener is not None:
            self.listener()

    async def changed(self, timeout_s: float | None = None) -> None:
        """Return at the next change, or when the time is over."""
        event = self._changed = self._changed or asyncio.Event()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await event.wait()

    def replace(self, complete: Entry) -> None:
        """Replace the tail's state by what was read back."""
        if self.fold.principal is not None:
            complete.fold.belongs_to(self.fold.principal)
        self.complete, self.first_offset = complete.complete, complete.first_offset
        self.fold, self.first, self.claim_effects = (
            complete.fold,
            complete.first,
            complete.claim_effects,
        )
        self.last_record_ms, self.streams = complete.last_record_ms, complete.streams
        self.draft = complete.draft


class _Ended(NamedTuple):
    """An entry whose response has ended and that no reader holds."""

    complete: int
    first_offset: int
    first: int
    fold_bytes: bytes

    @property
    def size(self) -> int:
        return ENDED_BYTES + len(self.fold_bytes)


@dataclass(slots=True)
class Partition:
    """The tail's state of one partition.

    Attributes:
        start: every response whose records all lie at or above it is known here.
        position: everything in [start, position) was applied.
        target: end offset known when the partition was opened; decisions wait until it was read.
        fresh: nothing was read since `follow`. A fetch for an earlier following may still bring
            records from elsewhere, which must not be applied.
        entries: by response id, in order of their first record; without those in `ended`.
        ended: responses that have ended, oldest end first.
        size: bytes of all entries, by estimate.
        caught_up: set once `target` was read.
    """

    start: int
    position: int
    target: int
    fresh: bool = True
    entries: dict[str, Entry] = field(default_factory=dict)
    ended: dict[str, _Ended] = field(default_factory=dict)
    size: int = 0
    caught_up: asyncio.Event = field(default_factory=asyncio.Event)

    def entry(self, rid: str) -> Entry:
        """The entry of a response. A response without one has no record at or above `start`, so a
        new entry is complete from there."""
        entry = self.entries.get(rid)
        if entry is None:
            entry = self.entries[rid] = self._unpack(rid) or Entry(self.start)
            self._count(entry, entry.size)
        return entry

    def end_reason(self, rid: str) -> str | None:
        """Why a response ended; None where it has not, or is not known."""
        summary = self.ended.get(rid)
        if summary is not None:
            state = finished.unpack(rid, summary.fold_bytes)
        elif (entry := self.entries.get(rid)) is not None:
            state = entry.fold
        else:
            return None
        return state.ended.reason if state.ended is not None else None

    def release(self, rid: str) -> None:
        """A caller needs the entry no longer."""
        entry = self.entries[rid]
        entry.holds -= 1
        self._pack_ended(rid, entry)

    def _pack_ended(self, rid: str, entry: Entry) -> None:
        if entry.holds or entry.pending is not None or entry.fold.phase is not fold.Phase.DONE:
            return
        self._count(self.entries.pop(rid), 0)
        summary = _Ended(entry.complete, entry.first_offset, entry.first, finished.pack(entry.fold))
        self.ended[rid] = summary
        self.size += summary.size

    def _unpack(self, rid: str) -> Entry | None:
        summary = self.ended.pop(rid, None)
        if summary is None:
            return None
        self.size -= summary.size
        state = finished.unpack(rid, summary.fold_bytes)
        effects = {own: True for own, _ in state.claims}
        return Entry(
            summary.complete, summary.first_offset, state, summary.first, claim_effects=effects
        )

    def apply(self, record: records.TokenRecord, offset: int, timestamp: int) -> None:
        """Apply one record to its response."""
        entry = self.entry(record.rid)
        entry.apply(record, offset, timestamp)
        self._count(entry, entry.size)
        self._pack_ended(record.rid, entry)

    def _count(self, entry: Entry, size: int) -> None:
        self.size += size - entry.last_size
        entry.last_size = size

    def expects(self, offset: int) -> bool:
        """Whether a record at `offset` belongs to the present following."""
        return not self.fresh or offset == self.position

    def extend_target(self, end: int) -> None:
        """Decisions wait until `end` was read."""
        self.target = max(self.target, end)
        self.caught_up.clear()

    def reach_back(self, start: int) -> None:
        """Fold again from `start`, which lies before the former start. Held responses keep their
        folds: repeated records have no effect (R1)."""
        self.entries = {
            rid: each
            for rid, each in self.entries.items()
            if each.holds or each.pending is not None
        }
        self.ended = {}
        self.size = sum(each.last_size for each in self.entries.values())
        self.start = self.position = start
        self.fresh = True

    def check_caught_up(self) -> None:
        """Allow decisions once `target` was read."""
        if not self.caught_up.is_set() and self.position >= self.target:
            self.caught_up.set()

    def restart(self, offset: int) -> None:
        """Continue at `offset`: the log no longer holds the records before it."""
        self.start = self.position = offset
        self.fresh = True
        for entry in self.entries.values():
            entry.complete = offset
        self.ended = {rid: each._replace(complete=offset) for rid, each in self.ended.items()}

    def forget(self, max_bytes: int) -> None:
        """Drop the oldest entries that are not held until the others fit into `max_bytes`, then
        drafts of held ones. A response that is needed again is read back."""
        while self.ended and self.size > max_bytes:
            oldest = self.ended.pop(next(iter(self.ended)))
            self.size -= oldest.size
            self.start = max(self.start, oldest.first_offset + 1)
        if self.size <= max_bytes:
            return
        for rid, entry in list(self.entries.items()):
            if self.size <= max_bytes:
                return
            if not entry.holds:
                self._count(self.entries.pop(rid), 0)
                self.start = max(self.start, entry.first_offset + 1)
        for entry in self.entries.values():
            if self.size <= max_bytes:
                return
            entry.draft = None
            self._count(entry, entry.size)
