"""One partition: what is committed, in which order, and who may commit it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, cast

import pytest
import yaml

from pipelines import definition, partition
from pipelines.counts import Counts, decode
from pipelines.partition import Beginning, Partition
from pipelines.rows import SOURCE, Answer, Refusal, Row, Rows
from tailrace import log
from tests.support import odd_values, waiting

TOLD: dict[str, Any] = {
    "name": "small",
    "input": {"topic": "in"},
    "prompt": {"user": "{{ record.n }}"},
    "output": {"topic": "out"},
    "dead_letters": {"topic": "dead"},
    "batch": {"records": 3, "seconds": 0.05},
}


class Transactions:
    """Remembers what was committed; fails as it is told.

    Attributes:
        failures: raised by the next commits, in turn. `landed`: what failed was written all the
            same.
    """

    def __init__(self) -> None:
        self.started = 0
        self.outputs: list[log.Outgoing] = []
        self.offset, self.metadata = 0, ""
        self.failures: list[Exception] = []
        self.landed = False

    async def start(self) -> None:
        self.started += 1

    async def stop(self) -> None:
        """Nothing is open."""

    async def commit(
        self,
        outgoing: Sequence[log.Outgoing],
        group: str,
        offsets: Mapping[tuple[str, int], tuple[int, str]],
    ) -> None:
        error = self.failures.pop(0) if self.failures else None
        if error is None or self.landed:
            assert group == "tailrace.pipelines.small"
            self.outputs += outgoing
            ((_, (self.offset, self.metadata)),) = offsets.items()
        if error is not None:
            raise error

    @property
    def places(self) -> list[int]:
        """Offsets of the rows that were written, in order."""
        sources = (dict(r.headers)[SOURCE] for r in self.outputs)
        return [int(each.split(b"/")[2]) for each in sources if each]


class Stage:
    """A partition over these, with answers that the test gives."""

    def __init__(self, earlier: frozenset[str] = frozenset(), **changes: Any) -> None:
        pipeline = definition.parse(yaml.safe_dump({**TOLD, **changes}))
        self.transactions = Transactions()
        self.asked: list[int] = []
        self.open = asyncio.Event()
        self.open.set()
        self.held: set[int] = set()  # rows whose answer does not come
        self.earlier = earlier
        self.rejoined = 0
        self.moved_to: int | None = None
        self.partition = Partition(
            0,
            pipeline,
            Rows(pipeline),
            self._outcome,
            self._begin,
            cast(log.Transactions, self.transactions),
            asyncio.Semaphore(4),
            self._rejoin,
        )

    async def _begin(self, number: int) -> Beginning:
        assert number == 0
        known = decode(self.transactions.metadata)
        moved, self.moved_to = self.moved_to, None
        if moved is not None:
            return Beginning(moved, known, self.earlier, reset=True)
        return Beginning(self.transactions.offset, known, self.earlier)

    def _rejoin(self) -> None:
        self.rejoined += 1

    async def _outcome(self, row: Row) -> Answer | Refusal:
        offset = row.source.offset
        self.asked.append(offset)
        await self.until(lambda: offset not in self.held)
        if row.values["record"]["n"] == "bad":
            return Refusal("some_code", "no", requests=1)
        if row.values["record"]["n"] == "broken":
            raise RuntimeError("a defect")
        return Answer("ok", f"resp_{offset}", "m", 2, 1)

    def take(self, *numbers: int, n: Any = "x") -> None:
        """Records with these offsets."""
        value = b'{"n": "%s"}' % str(n).encode()
        self.partition.add([log.Record("in", 0, o, 5, None, value, ()) for o in numbers])

    async def until(self, condition: Callable[[], bool]) -> None:
        async def there() -> bool:
            return condition()

        await waiting.eventually(there, "the partition gets there")


@contextlib.asynccontextmanager
async def running(stage: Stage) -> AsyncIterator[None]:
    task = asyncio.create_task(stage.partition.run())
    try:
        await stage.until(lambda: stage.partition.started)
        yield
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_rows_are_committed_in_order_with_their_counts() -> None:
    stage = Stage()
    async with running(stage):
        stage.take(0, 1)
        stage.take(2, n="bad")
        stage.take(3)
        await stage.until(lambda: stage.transactions.offset == 4)
    assert stage.transactions.places == [0, 1, 2, 3]
    assert [r.topic for r in stage.transactions.outputs] == ["out", "out", "dead", "out"]
    counts = decode(stage.transactions.metadata)
    mark = str(log.Mark.from_record(log.Record("in", 0, 3, 5, None, b'{"n": "x"}', ())))
    assert counts == Counts(
        4, answered=3, dead=1, requests=4, input_tokens=6, output_tokens=3, mark=mark
    )


async def test_nothing_is_committed_before_a_row_that_is_not_done() -> None:
    stage = Stage()
    stage.held = {1}
    async with running(stage):
        stage.take(0, 1, 2, 3)
        await stage.until(lambda: stage.transactions.offset == 1)
        assert stage.transactions.places == [0]
        assert set(stage.asked) == {0, 1, 2, 3}, "later rows are asked meanwhile"
        stage.held.clear()
        await stage.until(lambda: stage.transactions.offset == 4)
    assert stage.transactions.places == [0, 1, 2, 3]


async def test_a_row_that_fails_in_the_runner_holds_no_other_one_back() -> None:
    stage = Stage()
    async with running(stage):
        stage.take(0, n="broken")
        stage.take(1)
        await stage.until(lambda: stage.transactions.offset == 2)
    headers = dict(stage.transactions.outputs[0].headers)
    assert (headers["tailrace-reason"], stage.transactions.outputs[0].topic) == (
        b"internal",
        "dead",
    )


async def test_a_row_with_any_headers_holds_no_other_one_back() -> None:
    """A header without a value ended the runner, with good rows before it that were not committed,
    and again after each restart."""
    stage = Stage(batch={"records": 100, "seconds": 0.05})
    async with running(stage):
        stage.take(0)
        sources = [each._replace(offset=each.offset + 1) for each in odd_values.records()]
        stage.partition.add(sources)
        stage.take(len(sources) + 1)
        await stage.until(lambda: stage.transactions.offset == len(sources) + 2)
    counts = decode(stage.transactions.metadata)
    assert (counts.read, counts.skipped) == (
        len(sources) + 2,
        sum(r.value is None for r in sources),
    )


async def test_what_was_committed_before_is_passed_over() -> None:
    """It was fetched while another runner still had the partition."""
    stage = Stage()
    stage.transactions.offset = 2
    stage.take(0, 1, 2)  # before it knows where to begin
    assert stage.asked == []
    async with running(stage):
        stage.take(1, 2, 3)
        await stage.until(lambda: stage.transactions.offset == 4)
    assert stage.asked == [2, 3]
    assert stage.transactions.places == [2, 3]


async def test_rows_with_an_output_are_not_asked_again_readable_or_not() -> None:
    stage = Stage(frozenset({"in/0/0/5", "in/0/1/5"}))
    async with running(stage):
        stage.take(0)
        stage.partition.add([log.Record("in", 0, 1, 5, None, b"{", ())])
        stage.take(2)
        await stage.until(lambda: stage.transactions.offset == 3)
    assert stage.asked == [2]
    assert stage.transactions.places == [2]
    assert decode(stage.transactions.metadata).found == 2


@pytest.mark.parametrize("landed", [False, True], ids=["lost", "written"])
async def test_after_a_commit_of_unknown_outcome_the_offset_says_what_was_written(
    landed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition, "RETRY_S", 0.0)
    stage = Stage()
    stage.transactions.failures, stage.transactions.landed = [log.LogUnavailable("no")], landed
    async with running(stage):
        stage.take(0, 1, 2)
        await stage.until(lambda: stage.transactions.offset == 3)
        stage.take(3)
        await stage.until(lambda: stage.transactions.offset == 4)
    assert stage.transactions.places == [0, 1, 2, 3]
    assert sorted(stage.asked) == [0, 1, 2, 3]
    assert stage.transactions.started == 2
    assert decode(stage.transactions.metadata).read == 4


async def test_a_runner_that_was_fenced_and_still_has_the_partition_takes_it_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A runner that had lost its partition fenced the new owner, which then did nothing."""
    monkeypatch.setattr(partition, "FENCED_S", 0.0)
    stage = Stage()
    stage.transactions.failures = [log.Fenced("another")]
    async with running(stage):
        stage.take(0, 1)
        await stage.until(lambda: stage.transactions.offset == 2)
    assert stage.transactions.places == [0, 1]
    assert stage.transactions.started == 2


async def test_at_its_end_a_partition_commits_what_is_done_and_no_more() -> None:
    stage = Stage(batch={"records": 100, "seconds": 300})
    stage.held = {2}
    task = asyncio.create_task(stage.partition.run())
    await stage.until(lambda: stage.partition.started)
    stage.take(0, 1, 2, 3)
    await stage.until(lambda: set(stage.asked) == {0, 1, 2, 3})
    await asyncio.sleep(0)
    assert stage.transactions.offset == 0, "the batch is not full"
    stage.partition.end()
    await asyncio.wait_for(task, 5)
    assert stage.transactions.places == [0, 1]


async def test_it_takes_no_more_than_a_few_transactions_of_rows() -> None:
    stage = Stage()
    assert stage.partition.full, "it has not begun"
    stage.held = {0}
    async with running(stage):
        assert not stage.partition.full
        stage.take(*range(partition.READ_AHEAD * 3))
        assert stage.partition.full
        stage.held.clear()
        await stage.until(lambda: not stage.partition.full)


async def test_a_partition_that_a_replay_moved_back_is_read_again_from_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A runner that was paused meanwhile went on after the replayed rows: nobody read them."""
    monkeypatch.setattr(partition, "FENCED_S", 0.0)
    stage = Stage()
    async with running(stage):
        stage.take(0, 1, 2)
        await stage.until(lambda: stage.transactions.offset == 3)
        stage.transactions.failures = [log.Fenced("a replay")]
        stage.transactions.offset, written = 1, list(stage.transactions.outputs)
        stage.take(3, 4, 5)
        await stage.until(lambda: stage.rejoined == 1)
    assert stage.transactions.outputs == written
    assert stage.transactions.offset == 1


async def test_a_position_that_is_moved_is_committed_before_anything_is_read_from_there() -> None:
    stage = Stage()
    stage.moved_to = 7
    task = asyncio.create_task(stage.partition.run())
    stage.take(9)
    await stage.until(lambda: stage.rejoined == 1)
    assert (stage.transactions.offset, stage.asked) == (7, [])
    stage.partition.end()
    await asyncio.wait_for(task, 5)


async def test_the_last_row_is_marked_beside_the_position() -> None:
    stage = Stage()
    assert stage.partition.position is None
    async with running(stage):
        stage.take(0, 1, 2)
        await stage.until(lambda: stage.transactions.offset == 3)
        source = log.Record("in", 0, 2, 5, None, b'{"n": "x"}', ())
        assert stage.partition.position == log.Position(3, log.Mark.from_record(source))
