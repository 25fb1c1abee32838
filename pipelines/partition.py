"""One partition of the input: processes its rows, and commits their outcomes in order."""

from __future__ import annotations

import asyncio
import collections
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from pipelines import definition, metrics
from pipelines.counts import Counts
from pipelines.rows import Answer, Refusal, Row, RowRecords, Rows, Skipped, StoredFile, place_of
from pipelines.templates import Unusable
from tailrace import log

RETRY_S: Final = 1.0
# Two runners may believe for a moment that they own the partition. The one that lost it is notified
# soon and stops; the other one opens it again.
FENCED_S: Final = 2.0
LOG_EVERY_S: Final = 10.0

_logger = logging.getLogger(__name__)

# Read ahead in transactions of rows: the engine must not idle while one of them is written.
READ_AHEAD: Final = 2

# Where an input partition begins. Raises LogUnavailable, HistoryLost.
Begin = Callable[[int], Awaitable["Beginning"]]
Outcome = Callable[[Row], Awaitable[Answer | StoredFile | Refusal]]


@dataclass(frozen=True, slots=True)
class Beginning:
    """Where to begin, after the former owner: the next offset, the counts below it, and the places
    of rows whose output exists. `reset`: the committed offset is another one."""

    offset: int
    counts: Counts = field(default_factory=Counts)
    earlier: frozenset[str] = frozenset()
    reset: bool = False


class _Reset(Exception):
    """The fetched records lie after the offset where the partition must begin."""


@dataclass(slots=True)
class _Slot:
    """A record that was read. `done_at`: time of its outcome (monotonic seconds)."""

    record: log.Record
    work: asyncio.Task[tuple[RowRecords, Counts]]
    done_at: float = 0.0


class Partition:
    """Owned by one runner at a time: from the start of its `Transactions` on, no other one commits.

    Attributes:
        started: it knows where to begin, and accepts records.
        _early_records: records that arrived before it had started.
        _slots: records that were read and are not committed, by offset.
        _next: the next offset to be committed.
        _counts: as of the last commit.
        _wake: set when a row is done or the runner ends.
        _ending: commit finished rows, and start no more.
        _logged_at: time of the last log line about failed commits (monotonic seconds).
    """

    def __init__(
        self,
        number: int,
        pipeline: definition.Pipeline,
        rows: Rows,
        outcome: Outcome,
        begin: Begin,
        transactions: log.Transactions,
        row_slots: asyncio.Semaphore,
        rejoin: Callable[[], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`row_slots`: how many rows of this process may run at once. `rejoin`: makes the group
        assign the partition again, so that its records are read from the committed offset on."""
        self.number = number
        self._pipeline = pipeline
        self._rows = rows
        self._outcome = outcome
        self._begin = begin
        self._transactions = transactions
        self._row_slots = row_slots
        self._rejoin = rejoin
        self._clock = clock
        self.started = False
        self._earlier: frozenset[str] = frozenset()
        self._early_records: list[log.Record] = []
        self._slots: collections.deque[_Slot] = collections.deque()
        self._next = 0
        self._counts = Counts()
        self._wake = asyncio.Event()
        self._ending = False
        self._logged_at = -LOG_EVERY_S

    @property
    def full(self) -> bool:
        """Whether it accepts no more records now."""
        return not self.started or len(self._slots) >= READ_AHEAD * self._pipeline.batch.records

    @property
    def position(self) -> log.Position | None:
        """The last committed position; None before it has started."""
        if not self.started:
            return None
        return log.Position(self._next, log.Mark.parse(self._counts.mark))

    def __len__(self) -> int:
        return len(self._slots) + len(self._early_records)

    def add(self, records: Sequence[log.Record]) -> None:
        """The next records of the partition. Committed ones are skipped: they may have been fetched
        while another runner still had the partition."""
        if not self.started:
            self._early_records += records
            return
        next_offset = self._slots[-1].record.offset + 1 if self._slots else self._next
        for record in records:
            if record.offset < next_offset:
                continue
            work = asyncio.create_task(self._work(record))
            slot = _Slot(record, work)
            work.add_done_callback(lambda _, slot=slot: self._on_done(slot))  # type: ignore[misc]
            self._slots.append(slot)

    async def run(self) -> None:
        """Begin, then commit until `end`. Cancelled when the partition is another runner's."""
        try:
            while not await self._until_fenced():
                self.started = False
                await asyncio.sleep(FENCED_S)
        finally:
            self.started = False
            for slot in self._slots:
                slot.work.cancel()
            await self._transactions.stop()

    async def _until_fenced(self) -> bool:
        """Start and commit. Returns False when another runner took the partition over, and True
        when this one must end."""
        try:
            await self._start()
            while await self._commit_next():
                pass
        except log.Fenced:
            metrics.TRANSACTIONS.labels(pipeline=self._pipeline.name, outcome="fenced").inc()
            return self._ending
        except _Reset:
            self.started = False
            self._rejoin()
            while not self._ending:
                self._wake.clear()
                await self._wake.wait()
        return True

    def end(self) -> None:
        """Make `run` commit finished rows in order, and return."""
        self._ending = True
        self._wake.set()

    async def _start(self) -> None:
        """Take the partition over; waits without a time limit.

        Raises:
            _Moved: the committed offset is a former one, by a replay or because the log was rolled
                back.
        """
        while True:
            try:
                await self._transactions.start()
                beginning = await self._begin(self.number)
                if beginning.reset:
                    await self._write([], beginning.offset, beginning.counts)
            except (log.LogUnavailable, log.HistoryLost) as error:
                self._log_error(error)
                await asyncio.sleep(RETRY_S)
                continue
            break
        if beginning.reset or beginning.offset < self._next:
            raise _Reset
        self._next, self._counts, self._earlier = (
            beginning.offset,
            beginning.counts,
            beginning.earlier,
        )
        # After a transaction of unknown outcome: committed rows are done.
        while self._slots and self._slots[0].record.offset < self._next:
            self._slots.popleft()
        self.started, records, self._early_records = True, self._early_records, []
        self.add(records)

    async def _work(self, record: log.Record) -> tuple[RowRecords, Counts]:
        """The output of one record. Never fails: a row without an answer becomes a dead letter."""
        try:
            return await self._process(record)
        except Exception as error:  # of this row only, so it must not block the others
            _logger.exception("%s: %s", self._pipeline.name, place_of(record))
            refusal = Refusal("internal", f"{type(error).__name__}: {error}"[:1_000])
            return self._rows.dead(record, refusal), Counts(read=1, dead=1)

    async def _process(self, record: log.Record) -> tuple[RowRecords, Counts]:
        if place_of(record) in self._earlier:
            return RowRecords(), Counts(read=1, found=1)
        try:
            row = self._rows.read(record)
        except Skipped:
            return RowRecords(), Counts(read=1, skipped=1)
        except Unusable as error:
            return self._rows.dead(record, Refusal("unreadable", str(error))), Counts(
                read=1, dead=1
            )
        async with self._row_slots:
            outcome = await self._outcome(row)
        result = self._rows.output_records(row, outcome)
        return result, Counts(
            read=1,
            answered=not result.dead,
            alerted=result.alerted,
            dead=result.dead,
            requests=outcome.requests,
            input_tokens=outcome.input_tokens,
            output_tokens=outcome.output_tokens,
        )

    def _log_error(self, error: Exception) -> None:
        """Log why commits fail; rarely, because they fail for ever without the right to write."""
        if self._clock() >= self._logged_at + LOG_EVERY_S:
            self._logged_at = self._clock()
            _logger.warning("%s, partition %d: %s", self._pipeline.name, self.number, error)

    def _on_done(self, slot: _Slot) -> None:
        slot.done_at = self._clock()
        self._wake.set()

    def _ready(self) -> list[_Slot]:
        """The slots of the next transaction: those that are done before the first that is not."""
        slots: list[_Slot] = []
        for slot in self._slots:
            if not slot.work.done() or len(slots) == self._pipeline.batch.records:
                break
            slots.append(slot)
        return slots

    async def _commit_next(self) -> bool:
        """Wait until a transaction is due, and write it. Returns False when all work is done."""
        self._wake.clear()
        ready = self._ready()
        if not ready and self._ending:
            return False
        batch = self._pipeline.batch
        wait_s = None
        if ready:
            wait_s = min(slot.done_at for slot in ready) + batch.seconds - self._clock()
        if ready and (len(ready) >= batch.records or self._ending or (wait_s or 0.0) <= 0):
            await self._commit(ready)
            return True
        try:
            async with asyncio.timeout(wait_s):
                await self._wake.wait()
        except TimeoutError:
            pass
        return True

    async def _commit(self, ready: list[_Slot]) -> None:
        results = [slot.work.result() for slot in ready]
        counts = self._counts
        for _, each in results:
            counts = counts.plus(each)
        last = ready[-1].record
        after = last.offset + 1
        counts = msgspec.structs.replace(counts, mark=str(log.Mark.from_record(last)))
        name, began = self._pipeline.name, self._clock()
        records = [record for result, _ in results for record in result.records]
        try:
            await self._write(records, after, counts)
        except log.LogUnavailable as error:
            self._log_error(error)
            metrics.TRANSACTIONS.labels(pipeline=name, outcome="failed").inc()
            await self._start()
            return
        metrics.TRANSACTIONS.labels(pipeline=name, outcome="committed").inc()
        metrics.TRANSACTION_SECONDS.labels(pipeline=name).observe(self._clock() - began)
        self._next, self._counts = after, counts
        for _ in ready:
            self._slots.popleft()
        for _, each in results:
            for outcome in ("answered", "skipped", "dead", "found"):
                if many := getattr(each, outcome):
                    metrics.ROWS.labels(pipeline=name, outcome=outcome).inc(many)
            if each.alerted:
                metrics.ALERTS.labels(pipeline=name).inc()

    async def _write(self, records: Sequence[log.Outgoing], offset: int, counts: Counts) -> None:
        """One transaction. Raises LogUnavailable, Fenced."""
        place = self._pipeline.input.topic, self.number
        await self._transactions.commit(
            records, self._pipeline.group, {place: (offset, counts.encode())}
        )
