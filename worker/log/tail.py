"""The worker's tail of the token partitions (log rule P4).

One tail answers three questions: is the response DONE, was it cancelled, did another worker claim
it. It also passes the barrier of a takeover. Folds may be dropped at any time: a response whose
fold began too late is read back from the lower bound in its id (`complete_entry`). So memory is
bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator

from tailrace import log, telemetry
from tailrace.log import interfaces
from tailrace.log.identity import LogIdentity, require_not_rolled_back
from tailrace.protocol import fold, history, ids, records, topics
from tailrace.protocol.broker_clock import BrokerClock
from tailrace.retry import retry_until
from worker.log.tail_state import MAX_BYTES, Entry, Partition

WAIT_MS = 50
# Less than this waits for WAIT_MS at the broker. Most of it is the worker's own frames, and a fetch
# per frame would double their cost.
EAGER_BYTES = 64 * 1024
BARRIER_S = 15.0
RETRY_S = 0.5


class Tail:
    """Folds the followed partitions; `run` is its one task.

    Attributes:
        _partitions: what is followed; `follow` adds, `leave` removes.
    """

    def __init__(
        self,
        reader: interfaces.TailReader,
        replays: interfaces.RangeReader,
        offsets: interfaces.OffsetQueries,
        identity: LogIdentity,
        broker_clock: BrokerClock,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reader = reader
        self._replays = replays
        self._offsets = offsets
        self._identity = identity
        self._clock = broker_clock
        self._monotonic = monotonic
        self._partitions: dict[int, Partition] = {}

    def follow(self, partition: int, start: int, end: int) -> None:
        """Fold `partition` from `start` on; `end` is its end offset known now. A followed partition
        continues, or begins anew if it was followed from a later offset; it must reach `end`
        again."""
        state = self._partitions.get(partition)
        if state is None:
            state = self._partitions[partition] = Partition(start, start, end)
            self._reader.follow(partition, start)
        else:
            if start < state.start:
                state.reach_back(start)
                self._reader.follow(partition, start)
            state.extend_target(end)
        state.check_caught_up()

    def leave(self, partition: int) -> None:
        """Stop following; the folds are forgotten."""
        if self._partitions.pop(partition, None) is not None:
            self._reader.leave(partition)

    def position(self, partition: int) -> int:
        """Everything below it was applied; -1 if the partition is not followed."""
        state = self._partitions.get(partition)
        return -1 if state is None else state.position

    @property
    def partitions(self) -> list[int]:
        """Partitions followed now."""
        return sorted(self._partitions)

    @contextlib.contextmanager
    def hold(
        self, partition: int, rid: str, principal: records.Owner, *, keep: bool = False
    ) -> Iterator[Entry]:
        """The entry of a response that `principal` asked for, kept while the context lasts. The
        partition must be followed. `keep`: `llm.history` will keep the response."""
        state = self._partitions[partition]
        entry = state.entry(rid)
        if keep and entry.draft is None and entry.fold.owner is None:
            entry.draft = history.Draft()
        entry.holds += 1
        entry.fold.belongs_to(principal)
        try:
            yield entry
        finally:
            state.release(rid)

    def withdrawn(self, partition: int, rid: str) -> bool:
        """Whether the response was withdrawn, up to the tail's position."""
        state = self._partitions.get(partition)
        return state is not None and state.end_reason(rid) == "withdrawn"

    async def complete_entry(self, partition: int, rid: str) -> Entry:
        """The entry, once its fold is complete. The caller holds it.

        The tail must have reached the partition's target, and the fold must begin at or below the
        response's lower bound.

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

    async def draft(self, partition: int, rid: str, principal: records.Owner) -> history.Draft:
        """What `llm.history` keeps of a response that has ended. The caller holds it.

        Raises:
            HistoryLost: the log no longer holds it.
            LogUnavailable: it could not be read back.
        """
        entry = self._partitions[partition].entry(rid)
        ended = entry.fold.ended
        assert ended is not None
        history_lost = ended.reason == fold.HISTORY_LOST  # whatever this worker has of it
        if entry.fold.owner is None or history_lost:
            cancelled = history.Draft()
            cancelled.add(records.Cancel(rid, principal, failed=ended.failure), ended.timestamp)
            return cancelled
        if entry.draft is not None:
            return entry.draft
        # Nothing before the first claim took effect.
        again = Entry(max(entry.first, ids.parse(rid).offset), draft=history.Draft())
        end = entry.fold.last_offset + 1
        await _replay(self._replays, again, partition, rid, again.complete, end)
        assert again.draft is not None
        if again.draft.end is None:
            raise log.HistoryLost(f"{rid} has no end in the log any more")
        return again.draft

    async def barrier(
        self, partition: int, rid: str, fencing_token: str, append_offset: int
    ) -> bool | None:
        """Wait until this worker's own CLAIM was read. Returns whether it took effect, or None if
        it did not appear in time.

        The CLAIM is found by its fencing token. The acknowledged `append_offset` only bounds a read
        that does not wait for the tail's long poll.
        """
        state = self._partitions[partition]
        entry = state.entry(rid)
        if append_offset >= state.position:
            # If this read fails, the tail alone must bring the claim.
            with contextlib.suppress(log.LogUnavailable, log.HistoryLost):
                await _replay(
                    self._replays, entry, partition, rid, state.position, append_offset + 1
                )
        give_up = time.monotonic() + BARRIER_S
        while fencing_token not in entry.claim_effects and time.monotonic() < give_up:
            await entry.changed(1.0)
        return entry.claim_effects.get(fencing_token)

    async def run(self) -> None:
        """Read until cancelled, then close the connections. Survives a broker that is away.

        Raises:
            LogChanged: the log is another one.
        """
        try:
            await self._replays.start()
            while True:
                await self._poll()
        finally:
            await self._reader.stop()
            await self._replays.stop()

    async def _poll(self) -> None:
        try:
            batch = await retry_until(self._reader.poll, on=log.LogUnavailable, pause_s=RETRY_S)
        except log.HistoryLost:
            await asyncio.sleep(RETRY_S)
            await self._skip_lost()
            return
        now = self._monotonic()
        for record in batch:
            self._apply(record, now)
        share = MAX_BYTES // max(1, len(self._partitions))
        for state in self._partitions.values():
            state.check_caught_up()
            state.forget(share)

    def _apply(self, r: log.Record, now: float) -> None:
        self._clock.observe(r.timestamp, now)
        state = self._partitions.get(r.partition)
        if state is None or not state.expects(r.offset):
            return
        state.fresh = False
        state.position = r.offset + 1
        record = records.token_of(r.key, r.value)
        if record is None:
            telemetry.IGNORED_RECORDS.labels(reason="garbage").inc()
        else:
            state.apply(record, r.offset, r.timestamp)

    async def _skip_lost(self) -> None:
        """Continue where the log begins now: retention passed the position, or storage was lost.
        The lost records are unknown, so `complete_entry` refuses responses that began in them.

        Raises:
            LogChanged: the log is another one, or was rolled back.
        """
        try:
            await self._identity.check()
            beginnings = await self._offsets.beginnings(topics.TOKENS, self.partitions)
            ends = await self._offsets.ends(topics.TOKENS, self.partitions)
        except log.LogUnavailable:
            return
        positions = {number: state.position for number, state in self._partitions.items()}
        require_not_rolled_back(topics.TOKENS, positions, ends)
        for partition, beginning in beginnings.items():
            state = self._partitions.get(partition)
            if state is not None and state.position < beginning:
                state.restart(beginning)
                self._reader.follow(partition, beginning)

    async def _read_back(self, state: Partition, partition: int, rid: str, bound: int) -> None:
        """Fold the response again from its bound, then apply what the tail brought in between."""
        entry = state.entry(rid)
        complete = Entry(bound, draft=None if entry.draft is None else history.Draft())
        entry.pending, end = [], state.position
        try:
            await _replay(self._replays, complete, partition, rid, bound, end)
            for record, offset, timestamp in entry.pending:
                complete.apply(record, offset, timestamp)
            entry.replace(complete)
        finally:
            pending, entry.pending = entry.pending, None
            for record, offset, timestamp in pending:
                entry.apply(record, offset, timestamp)  # no effect if it was applied above
            entry.wake()


async def _replay(
    replays: interfaces.RangeReader, entry: Entry, partition: int, rid: str, start: int, end: int
) -> None:
    """Apply the response's records of [start, end)."""
    # Closed at once, because the read holds a connection.
    async with contextlib.aclosing(replays.read(topics.TOKENS, partition, start, end)) as batches:
        async for batch in batches:
            for r in batch:
                record = records.token_of(r.key, r.value)
                if record is not None and record.rid == rid:
                    entry.apply(record, r.offset, r.timestamp)
