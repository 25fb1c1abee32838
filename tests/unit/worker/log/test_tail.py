"""The tail of the token partitions, on the in-memory log."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from tailrace import log
from tailrace.log.identity import LogIdentity
from tailrace.protocol import fold, ids, records, topics
from tailrace.protocol.broker_clock import BrokerClock
from tests.support.memory_log import MemoryLog
from tests.support.waiting import eventually
from worker.log import tail
from worker.log.tail import Tail

OWNER = records.Owner("i", "s")


def make(memory: MemoryLog) -> Tail:
    return Tail(
        memory.reader(topics.TOKENS, wait_ms=5),
        memory.replays(),
        memory.offsets(),
        LogIdentity(memory.layout, memory.read_layout),
        BrokerClock(),
    )


@contextlib.asynccontextmanager
async def running(memory: MemoryLog) -> AsyncIterator[Tail]:
    tailing = make(memory)
    task = asyncio.create_task(tailing.run())
    try:
        yield tailing
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def rid(memory: MemoryLog, offset: int, n: int = 0) -> str:
    return ids.mint(ids.Address(memory.layout.tag, 0, offset), n.to_bytes(11, "big"))


def claim(memory: MemoryLog, name: str, own: str, prev: str | None = None) -> int:
    record = records.Claim(name, own, prev, OWNER, "w", "t", 0, "m", "t")
    return memory.put_record(topics.TOKENS, 0, record, name)


async def test_a_decision_waits_until_the_tail_has_read_what_was_there_at_the_assignment() -> None:
    memory = MemoryLog()
    name = rid(memory, 0)
    claim(memory, name, "a")
    memory.lag(topics.TOKENS, 0, 0)
    async with running(memory) as tailing:
        tailing.follow(0, 0, 1)
        with tailing.hold(0, name, OWNER):
            known = asyncio.ensure_future(tailing.complete_entry(0, name))
            await asyncio.sleep(0.02)
            assert not known.done()
            memory.catch_up(topics.TOKENS, 0)
            assert (await known).fold.owner == "a"


async def test_a_response_that_began_below_the_fold_s_start_is_read_back() -> None:
    memory = MemoryLog()
    name = rid(memory, 0)
    claim(memory, name, "a")
    claim(memory, rid(memory, 1, 1), "x")
    async with running(memory) as tailing:
        tailing.follow(0, 1, 2)
        with tailing.hold(0, name, OWNER):
            entry = await tailing.complete_entry(0, name)
            assert (entry.fold.owner, entry.first, entry.complete) == ("a", 0, 0)
            assert memory.reads == [(topics.TOKENS, 0, 0, 2)]
            claim(memory, name, "b", "a")
            await eventually(lambda: entry.fold.owner == "b", "the tail goes on")


async def test_records_that_come_while_a_response_is_read_back_are_applied_after_it() -> None:
    memory = MemoryLog()
    name = rid(memory, 0)
    claim(memory, name, "a")
    claim(memory, rid(memory, 1, 1), "x")
    async with running(memory) as tailing:
        tailing.follow(0, 1, 2)
        await eventually(lambda: tailing.position(0) == 2, "caught up")
        memory.hold_replays()
        with tailing.hold(0, name, OWNER):
            known = asyncio.ensure_future(tailing.complete_entry(0, name))
            await eventually(lambda: memory.reads, "the response is read back")
            claim(memory, name, "b", "a")
            await eventually(lambda: tailing.position(0) == 3, "the tail read on")
            memory.release_replays()
            entry = await known
            assert entry.fold.owner == "b"
            assert entry.claim_effects == {"a": True, "b": True}
            assert entry.fold.ignored == {}


async def test_the_barrier_reads_past_a_tail_that_lags() -> None:
    memory = MemoryLog()
    name = rid(memory, 0)
    claim(memory, name, "a")
    async with running(memory) as tailing:
        tailing.follow(0, 0, 1)
        await eventually(lambda: tailing.position(0) == 1, "caught up")
        memory.lag(topics.TOKENS, 0, 1)
        lost, won = claim(memory, name, "late", "none"), claim(memory, name, "b", "a")
        with tailing.hold(0, name, OWNER) as entry:
            assert await tailing.barrier(0, name, "b", won) is True
            assert await tailing.barrier(0, name, "late", lost) is False
            assert entry.fold.owner == "b"


async def test_a_replay_that_fails_half_way_gives_its_connection_back_at_once() -> None:
    memory = MemoryLog()
    name = rid(memory, 0)
    claim(memory, name, "a")
    async with running(memory) as tailing:
        tailing.follow(0, 0, 1)
        await eventually(lambda: tailing.position(0) == 1, "caught up")
        memory.lag(topics.TOKENS, 0, 1)
        at = claim(memory, name, "b", "a")

        def fail() -> None:
            raise ValueError("a defect")

        with tailing.hold(0, name, OWNER) as entry:
            entry.listener = fail
            with pytest.raises(ValueError, match="a defect"):
                await tailing.barrier(0, name, "b", at)
            assert memory.replays_wanted == 0
            entry.listener = None


async def test_a_claim_that_never_appears_passes_no_barrier(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tail, "BARRIER_S", 0.0)
    memory = MemoryLog()
    name = rid(memory, 0)
    async with running(memory) as tailing:
        tailing.follow(0, 0, 0)
        with tailing.hold(0, name, OWNER):
            assert await tailing.barrier(0, name, "own", -1) is None


async def test_garbage_moves_the_position_and_nothing_else() -> None:
    memory = MemoryLog()
    memory.put(topics.TOKENS, 0, b"k", b"{not json")
    memory.put(topics.TOKENS, 0, None, None)
    async with running(memory) as tailing:
        tailing.follow(0, 0, 2)
        await eventually(lambda: tailing.position(0) == 2, "read")


async def test_a_response_whose_beginning_retention_deleted_is_lost() -> None:
    memory = MemoryLog()
    name = rid(memory, 0)
    claim(memory, name, "a")
    claim(memory, rid(memory, 1, 1), "x")
    memory.delete_below(topics.TOKENS, 0, 1)
    async with running(memory) as tailing:
        tailing.follow(0, 1, 2)
        with tailing.hold(0, name, OWNER), pytest.raises(log.HistoryLost):
            await tailing.complete_entry(0, name)


async def test_a_tail_that_retention_passed_goes_on_at_the_beginning_and_believes_no_old_fold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tail, "RETRY_S", 0.0)
    memory = MemoryLog()
    old, new = rid(memory, 0), rid(memory, 3, 1)
    claim(memory, old, "a")
    async with running(memory) as tailing:
        tailing.follow(0, 0, 1)
        await eventually(lambda: tailing.position(0) == 1, "caught up")
        memory.lag(topics.TOKENS, 0, 1)
        for own in ("b", "c"):
            claim(memory, old, own, "a")
        memory.delete_below(topics.TOKENS, 0, 3)
        claim(memory, new, "n")
        memory.catch_up(topics.TOKENS, 0)
        await eventually(lambda: tailing.position(0) == 4, "it goes on")
        with tailing.hold(0, new, OWNER):
            assert (await tailing.complete_entry(0, new)).fold.owner == "n"
        with tailing.hold(0, old, OWNER), pytest.raises(log.HistoryLost):
            await tailing.complete_entry(0, old)


async def test_a_log_that_is_away_is_read_on_when_it_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tail, "RETRY_S", 0.001)
    memory = MemoryLog()
    name = rid(memory, 0)
    async with running(memory) as tailing:
        tailing.follow(0, 0, 0)
        memory.go_away()
        claim(memory, name, "a")
        memory.come_back()
        await eventually(lambda: tailing.position(0) == 1, "read")
        with tailing.hold(0, name, OWNER) as entry:
            assert entry.fold.phase is fold.Phase.LIVE


async def test_a_partition_that_was_left_and_followed_again_is_folded_afresh() -> None:
    memory = MemoryLog()
    name = rid(memory, 0)
    claim(memory, name, "a")
    async with running(memory) as tailing:
        tailing.follow(0, 0, 1)
        await eventually(lambda: tailing.position(0) == 1, "read")
        tailing.leave(0)
        assert (tailing.partitions, tailing.position(0)) == ([], -1)
        tailing.follow(0, 0, 1)
        await eventually(lambda: tailing.position(0) == 1, "read again")
        with tailing.hold(0, name, OWNER) as entry:
            assert entry.claim_effects == {"a": True}


async def test_a_partition_that_was_followed_from_later_is_folded_again_from_before() -> None:
    """A worker stole a request and was then assigned the partition: it would have read back
    thousands of responses, one by one."""
    memory = MemoryLog()
    names = [rid(memory, 0, n) for n in range(3)]
    for name in names:
        claim(memory, name, "own-" + name)
    async with running(memory) as tailing:
        held = rid(memory, 3, 9)
        tailing.follow(0, 3, 3)
        with tailing.hold(0, held, OWNER) as entry, tailing.hold(0, names[0], OWNER):
            claim(memory, held, "h")
            await eventually(lambda: entry.fold.owner == "h", "it is read")
            # Of this one the tail has only the last claim.
            claim(memory, names[0], "later", prev="own-" + names[0])
            await eventually(lambda: tailing.position(0) == 5, "that is read, too")
            tailing.follow(0, 0, 5)
            assert tailing.position(0) == 0
            for name in names[1:]:
                with tailing.hold(0, name, OWNER):
                    assert (await tailing.complete_entry(0, name)).fold.owner == "own-" + name
            assert memory.reads == []
            assert (await tailing.complete_entry(0, held)).fold.epoch == 1
            assert entry.fold.owner == "h"
            found = await tailing.complete_entry(0, names[0])
            assert (found.fold.owner, found.fold.epoch) == ("later", 2)


async def test_a_worker_whose_log_was_replaced_ends_instead_of_waiting_for_lost_offsets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It looked again and again for offsets beyond the new log's end, and threw away every request
    of the new log as another log's."""
    monkeypatch.setattr(tail, "RETRY_S", 0.0)
    memory = MemoryLog("one")
    claim(memory, rid(memory, 0), "a")
    tailing = make(memory)
    tailing.follow(0, 0, 1)
    ends = asyncio.create_task(tailing.run())
    await eventually(lambda: tailing.position(0) == 1, "caught up")
    memory.replace("two")
    with pytest.raises(log.LogChanged):
        await asyncio.wait_for(ends, 5)


async def test_a_worker_whose_log_was_rolled_back_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Symptom: it looked again and again for offsets beyond the log's end, and saw no claim of its
    own there any more."""
    monkeypatch.setattr(tail, "RETRY_S", 0.0)
    memory = MemoryLog("one")
    claim(memory, rid(memory, 0), "a")
    claim(memory, rid(memory, 0), "b", "a")
    tailing = make(memory)
    tailing.follow(0, 0, 2)
    ends = asyncio.create_task(tailing.run())
    await eventually(lambda: tailing.position(0) == 2, "caught up")
    memory.roll_back(topics.TOKENS, 0, 1)
    with pytest.raises(log.LogChanged):
        await asyncio.wait_for(ends, 5)


async def test_what_is_read_back_of_a_response_that_is_to_be_kept_is_kept() -> None:
    memory = MemoryLog()
    name = rid(memory, 0)
    claim(memory, name, "a")
    claim(memory, rid(memory, 1, 1), "x")
    async with running(memory) as tailing:
        tailing.follow(0, 1, 2)
        with tailing.hold(0, name, OWNER, keep=True):
            entry = await tailing.complete_entry(0, name)
            claim(memory, name, "b", "a")
            await eventually(lambda: entry.fold.owner == "b", "the tail goes on")
            assert entry.draft is not None
            assert [each.own for each in entry.draft.claims] == ["a", "b"]
        other = rid(memory, 1, 1)
        with tailing.hold(0, other, OWNER, keep=True):
            assert (await tailing.complete_entry(0, other)).draft is None  # its claim was before
