"""What the tail knows: the folds of one partition's responses.

A fold here may begin in the middle of the partition. It may call a response NEW only if it began at
or below the lower bound in the response's id. Everything else must be read back (`worker.tail`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field

from tailrace import telemetry
from tailrace.protocol import fold, records

MAX_FOLDS = 10_000  # per partition; above it the oldest that are not held are forgotten


@dataclass(slots=True)
class Entry:
    """One response as the tail knows it.

    Attributes:
        complete: every record of the response at or above this offset was applied to `fold`.
        begun: offset of the first record read, -1 before.
        fold: the response under the reader rule.
        first: offset of the first record that took effect, -1 before.
        seen: fencing tokens of the CLAIMs read so far, and whether any copy of them took effect.
        holds: number of callers that need this entry; it is forgotten only at 0.
        delayed: records that came while the response is read back; None otherwise.
        listener: called at every change of ownership or phase; set while the response is served
            here, None otherwise.
        _changed: replaced at every change; waiters hold the old one.
    """

    complete: int
    begun: int = -1
    fold: fold.Fold = field(default_factory=lambda: fold.Fold(keep_ids=True))
    first: int = -1
    seen: dict[str, bool] = field(default_factory=dict)
    holds: int = 0
    delayed: list[tuple[records.TokenRecord, int, int]] | None = None
    listener: Callable[[], None] | None = None
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def apply(self, record: records.TokenRecord, offset: int, timestamp: int) -> None:
        """Apply one record; wakes waiters when ownership or phase may have changed."""
        if self.delayed is not None:
            self.delayed.append((record, offset, timestamp))
            return
        if self.begun < 0:
            self.begun = offset
        outcome = self.fold.apply(record, offset, timestamp)
        if outcome is fold.Ignored.SEEN:
            return
        if isinstance(outcome, fold.Ignored):
            telemetry.IGNORED_RECORDS.labels(reason=outcome.value).inc()
        if isinstance(outcome, fold.Claimed | fold.Ended) and self.first < 0:
            self.first = offset
        if isinstance(record, records.Claim):
            # A second copy of a claim has no effect; that says nothing about the first.
            took_effect = isinstance(outcome, fold.Claimed)
            self.seen[record.own] = self.seen.get(record.own, False) or took_effect
        if not isinstance(outcome, fold.Accepted):
            self.wake()

    def wake(self) -> None:
        """Let all waiters and the listener look again."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        if self.listener is not None:
            self.listener()

    async def changed(self, timeout_s: float | None = None) -> None:
        """Return at the next change, or when the time is over."""
        event = self._changed
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await event.wait()

    def replace(self, complete: Entry) -> None:
        """Put what was read back in the place of what the tail had."""
        self.complete, self.begun = complete.complete, complete.begun
        self.fold, self.first, self.seen = complete.fold, complete.first, complete.seen


@dataclass(slots=True)
class Partition:
    """The tail's state of one partition.

    Attributes:
        start: every response whose records all lie at or above it is known here.
        position: everything in [start, position) was applied.
        target: end offset known when the partition was opened; decisions wait until it was read.
        fresh: nothing was read since `follow`. A fetch for an earlier following may still bring
            records from elsewhere, which must not be applied.
        entries: by response id, in order of their first record.
        caught_up: set once `target` was read.
    """

    start: int
    position: int
    target: int
    fresh: bool = True
    entries: dict[str, Entry] = field(default_factory=dict)
    caught_up: asyncio.Event = field(default_factory=asyncio.Event)

    def entry(self, rid: str) -> Entry:
        """The entry of a response. A response without one has no record at or above `start`, so a
        new entry is complete from there."""
        found = self.entries.get(rid)
        if found is None:
            found = self.entries[rid] = Entry(self.start)
        return found

    def expects(self, offset: int) -> bool:
        """Whether a record at `offset` belongs to the present following."""
        return not self.fresh or offset == self.position

    def extend_target(self, end: int) -> None:
        """Decisions wait until `end` was read."""
        self.target = max(self.target, end)
        self.caught_up.clear()

    def check_caught_up(self) -> None:
        """Let decisions go on once `target` was read."""
        if not self.caught_up.is_set() and self.position >= self.target:
            self.caught_up.set()

    def restart(self, offset: int) -> None:
        """Go on at `offset`: the log no longer holds what lies before it."""
        self.start = self.position = offset
        self.fresh = True
        for entry in self.entries.values():
            entry.complete = offset

    def forget(self) -> None:
        """Forget the oldest entries that are not held. A response that began there is read back if
        it is asked for again."""
        excess = len(self.entries) - MAX_FOLDS
        if excess <= 0:
            return
        for rid in [rid for rid, entry in self.entries.items() if not entry.holds][:excess]:
            self.start = max(self.start, self.entries.pop(rid).begun + 1)
