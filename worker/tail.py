"""One tail of the token partitions this worker has to do with: "DONE?", "cancelled?", "claimed by
another?", and the barrier (log rule P4).

A fold here may begin in the middle of the partition. It may call a response NEW only if it began at
or below the lower bound in the response's id; where it did not, the response is folded again from
that bound (`known`). So forgetting a fold is always safe, and memory is bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tailrace import log, telemetry
from tailrace.protocol import fold, ids, records, topics
from worker import clock

MAX_FOLDS = 10_000  # per partition; the oldest that nobody holds are forgotten
WAIT_MS = 50
EAGER_BYTES = (
    64 * 1024
    # less than this waits for WAIT_MS at the broker: most of it is our own frames, and a fetch per
    # flush would double their cost
)
BARRIER_S = 15.0
RETRY_S = 0.5


@dataclass(slots=True)
class Entry:
    """One response as the tail knows it.

    Attributes:
        complete: every record of the response at or above this offset was applied to `fold`.
        begun: offset of the first record read, -1 before.
        first: offset of the first record that took effect, -1 before.
        seen: fencing tokens of the CLAIMs read so far, and whether any copy of them took effect.
        holds: who needs this entry; it is forgotten only at 0.
        delayed: records that came while the response is read back; None otherwise.
        listener: called at every change of ownership or phase, at once; set by whoever serves the
            response here, None otherwise.
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
        if outcome is fold.Void.SEEN:
            return
        if isinstance(outcome, fold.Void):
            telemetry.IGNORED_RECORDS.labels(reason=outcome.value).inc()
        if isinstance(outcome, fold.Claimed | fold.Ended) and self.first < 0:
            self.first = offset
        if isinstance(record, records.Claim):
            # A second copy of a claim is void; that says nothing about the first.
            self.seen[record.own] = self.seen.get(record.own, False) or isinstance(
                outcome, fold.Claimed
            )
        if not isinstance(outcome, fold.Accepted):
            self.wake()

    def wake(self) -> None:
        """Let everyone who waits look again."""
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


@dataclass(slots=True)
class Partition:
    """The tail's state of one partition.

    Attributes:
        start: every response whose records all lie at or above it is known here.
        position: everything in [start, position) was applied.
        target: end offset known when the partition was opened; decisions wait until it was read.
        fresh: nothing was read since `follow`; a fetch for an earlier following may still bring
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
        """The entry of a response, made if need be: whatever lies at or above `start` would have
        made it before."""
        found = self.entries.get(rid)
        if found is None:
            found = self.entries[rid] = Entry(self.start)
        return found


class Tail:
    """Folds the followed partitions; `run` is its one task.

    Attributes:
        garbage: records that did not parse (they are void).
        gaps: how often the log had lost what was to be read next.
        _partitions: what is followed; `follow` adds, `leave` removes.
        _incarnation: which log this is; empty before `run`.
    """

    def __init__(
        self,
        bootstrap: str,
        offsets: log.Offsets,
        broker_clock: clock.BrokerClock,
        *,
        client_id: str,
    ) -> None:
        self._bootstrap = bootstrap
        self._incarnation = ""
        self._reader = log.Reader(
            bootstrap,
            topics.TOKENS,
            wait_ms=WAIT_MS,
            min_bytes=EAGER_BYTES,
            client_id=f"{client_id}-tail",
        )
        self._replays = log.Replays(bootstrap, size=2, client_id=f"{client_id}-replay")
        self._offsets = offsets
        self._clock = broker_clock
        self._partitions: dict[int, Partition] = {}
        self.garbage = 0
        self.gaps = 0

    def follow(self, partition: int, start: int, end: int) -> None:
        """Fold `partition` from `start` on; `end` is the end offset known now. One that is followed
        already goes on, but must reach `end` again."""
        state = self._partitions.get(partition)
        if state is None:
            state = self._partitions[partition] = Partition(start, start, end)
            self._reader.follow(partition, start)
        else:
            state.target = max(state.target, end)
            state.caught_up.clear()
        _look(state)

    def leave(self, partition: int) -> None:
        """Stop following; folds are forgotten."""
        if self._partitions.pop(partition, None) is not None:
            self._reader.leave(partition)

    def position(self, partition: int) -> int:
        """Everything below it was applied; -1 if the partition is not followed."""
        state = self._partitions.get(partition)
        return -1 if state is None else state.position

    @property
    def followed(self) -> list[int]:
        """Partitions followed now."""
        return sorted(self._partitions)

    @contextlib.contextmanager
    def hold(self, partition: int, rid: str) -> Iterator[Entry]:
        """The entry of a response, which is not forgotten meanwhile; the partition must be
        followed."""
        entry = self._partitions[partition].entry(rid)
        entry.holds += 1
        try:
            yield entry
        finally:
            entry.holds -= 1

    async def known(self, partition: int, rid: str) -> Entry:
        """The entry, once it may be believed: the tail has reached the partition's target, and
        began early enough for this response. Hold it before.

        Raises:
            HistoryLost: the log no longer holds the beginning of this response.
            LogUnavailable: it could not be read further back.
        """
        state = self._partitions[partition]
        await state.caught_up.wait()
        entry = state.entry(rid)
        bound = ids.parse(rid).offset
        if bound < entry.complete:
            await self._read_back(state, partition, rid, bound)
        return entry

    async def barrier(
        self, partition: int, rid: str, fencing_token: str, appended: int
    ) -> bool | None:
        """Wait until our own CLAIM was read; whether it took effect, or None if it did not show up
        in time.

        It is found by its fencing token: the acknowledged offset only says how far an eager read beside the
        long poll has to go.
        """
        state = self._partitions[partition]
        entry = state.entry(rid)
        if appended >= state.position:
            with contextlib.suppress(
                log.LogUnavailable, log.HistoryLost
            ):  # then the tail alone must bring it
                await self._replay(entry, partition, rid, state.position, appended + 1)
        give_up = time.monotonic() + BARRIER_S
        while fencing_token not in entry.seen and time.monotonic() < give_up:
            await entry.changed(1.0)
        return entry.seen.get(fencing_token)

    async def run(self, incarnation: str) -> None:
        """Read until cancelled, then close the connections; survives a broker that is away.

        Raises:
            LogChanged: the log is not `incarnation` any more.
        """
        self._incarnation = incarnation
        try:
            await self._replays.start()
            while True:
                await self._read()
        finally:
            await self._reader.stop()
            await self._replays.stop()

    async def _read(self) -> None:
        try:
            batch = await self._reader.poll()
        except log.LogUnavailable:
            await asyncio.sleep(RETRY_S)
            return
        except log.HistoryLost:
            await self._skip_gaps()
            return
        now = time.monotonic()
        for r in batch:
            self._apply(r, now)
        for state in self._partitions.values():
            _look(state)
            _forget(state)

    def _apply(self, r: log.Record, now: float) -> None:
        self._clock.observe(r.timestamp, now)
        state = self._partitions.get(r.partition)
        if state is None or (state.fresh and r.offset != state.position):
            return
        state.fresh = False
        state.position = r.offset + 1
        record = records.token_of(r.key, r.value)
        if record is None:
            self.garbage += 1
            telemetry.IGNORED_RECORDS.labels(reason="garbage").inc()
        else:
            state.entry(record.rid).apply(record, r.offset, r.timestamp)

    async def same_log(self) -> None:
        """
        Raises:
            LogChanged, LogUnavailable
        """
        found = await log.layout(self._bootstrap)
        if found.incarnation != self._incarnation:
            raise log.LogChanged(
                f"the log's incarnation changed from {self._incarnation} to {found.incarnation}"
            )

    async def _skip_gaps(self) -> None:
        """Retention passed the position, or storage was lost: what was there cannot be known, so
        `known` will refuse responses that began in it."""
        self.gaps += 1
        await asyncio.sleep(RETRY_S)
        try:
            await self.same_log()
            beginnings = await self._offsets.beginnings(topics.TOKENS, self.followed)
        except log.LogUnavailable:
            return
        for partition, beginning in beginnings.items():
            state = self._partitions.get(partition)
            if state is not None and state.position < beginning:
                state.start = state.position = beginning
                state.fresh = True
                for entry in state.entries.values():
                    entry.complete = beginning
                self._reader.follow(partition, beginning)

    async def _read_back(self, state: Partition, partition: int, rid: str, bound: int) -> None:
        """Fold the response again from its bound up to here, then what the tail brought meanwhile,
        and put that in place of what the tail had."""
        entry = state.entry(rid)
        fresh = Entry(bound)
        entry.delayed, end = [], state.position
        try:
            await self._replay(fresh, partition, rid, bound, end)
            for record, offset, timestamp in entry.delayed:
                fresh.apply(record, offset, timestamp)
            entry.complete, entry.begun, entry.fold, entry.first, entry.seen = (
                bound,
                fresh.begun,
                fresh.fold,
                fresh.first,
                fresh.seen,
            )
        finally:
            delayed, entry.delayed = entry.delayed, None
            for record, offset, timestamp in delayed:
                entry.apply(record, offset, timestamp)  # without effect if they were applied above
            entry.wake()

    async def _replay(self, entry: Entry, partition: int, rid: str, start: int, end: int) -> None:
        """Apply the response's records of [start, end)."""
        async with contextlib.aclosing(
            self._replays.read(topics.TOKENS, partition, start, end)
        ) as batches:
            async for batch in batches:
                for r in batch:
                    record = records.token_of(r.key, r.value)
                    if record is not None and record.rid == rid:
                        entry.apply(record, r.offset, r.timestamp)


def _look(state: Partition) -> None:
    if not state.caught_up.is_set() and state.position >= state.target:
        state.caught_up.set()


def _forget(state: Partition) -> None:
    """Forget the oldest that nobody holds; a response that began there is read back if it is ever
    asked for."""
    excess = len(state.entries) - MAX_FOLDS
    if excess <= 0:
        return
    for rid in [rid for rid, entry in state.entries.items() if not entry.holds][:excess]:
        state.start = max(state.start, state.entries.pop(rid).begun + 1)
