"""A log that was rolled back under the archive, on SQLite and on a real PostgreSQL: what the
archive has stays, and what is new in the log is folded."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from tailrace.archive import archived, fold, follower, sql_reader
from tailrace.protocol import conversations, history, records, topics
from tests.support import memory_log, waiting
from tests.support.histories import ALICE, INCARNATION, PARTITIONS, history_of, rid

TALK = rid(1).replace("resp_", conversations.PREFIX)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a follower does now and then, it does all the time; a log in memory restarts at once."""
    monkeypatch.setattr(follower, "CHECK_S", 0.02)
    monkeypatch.setattr(follower, "RESTART_S", 0.0)


@pytest.fixture
def broker() -> memory_log.MemoryLog:
    seconds: Iterator[int] = itertools.count(1_700_000_000)  # no two records have one time
    return memory_log.MemoryLog(INCARNATION, clock=lambda: next(seconds))


@contextlib.asynccontextmanager
async def following(
    engine: AsyncEngine, broker: memory_log.MemoryLog
) -> AsyncIterator[follower.Follower]:
    readers = {topic: broker.reader(topic, wait_ms=20) for topic in fold.TOPICS}
    clients = broker.offsets(), broker.replays(), broker.writer()
    running = follower.Follower(engine, INCARNATION, readers, *clients)
    task = asyncio.create_task(running.run())
    try:
        yield running
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def put(broker: memory_log.MemoryLog, *numbers: int) -> None:
    for number in numbers:
        whole = history_of(number)
        for key, value in history.parts(whole):
            partition = history.partition(whole.rid, PARTITIONS)
            broker.put(topics.HISTORY, partition, key.encode(), value)


def say(broker: memory_log.MemoryLog, *acts: conversations.Act) -> None:
    for act in acts:
        at = len(broker.appended)
        key = conversations.key(act, str(at)).encode()
        broker.put(topics.CONVERSATIONS, 0, key, conversations.encode(act))


async def until_listed(engine: AsyncEngine, *numbers: int) -> None:
    read, wanted = sql_reader.SqlReader(engine), archived.ListQuery(ALICE.key, fold.RESPONSE)

    async def listed() -> bool:
        with contextlib.suppress(archived.ArchiveUnavailable):
            found = await read.list_responses(wanted)
            return [group[0].history.rid for group in found] == [rid(n) for n in numbers]
        return False

    await waiting.eventually(listed, f"{numbers} are listed", within_s=20)


@pytest.mark.parametrize("grown", [0, 1, 5], ids=["not grown", "grown", "grown past"])
@pytest.mark.parametrize("running", [True, False], ids=["running", "started after it"])
async def test_what_is_written_after_a_rollback_is_archived_and_nothing_is_lost(
    engine: AsyncEngine, broker: memory_log.MemoryLog, running: bool, grown: int
) -> None:
    """Symptom: the process said that it was ready, and skipped what was written afterwards."""
    new = list(range(10, 10 + grown))
    async with contextlib.AsyncExitStack() as stack:
        if running:
            await stack.enter_async_context(following(engine, broker))
            put(broker, 1, 2, 3, 4)
            await until_listed(engine, 1, 2, 3, 4)
        else:
            async with following(engine, broker):
                put(broker, 1, 2, 3, 4)
                await until_listed(engine, 1, 2, 3, 4)
        broker.roll_back(topics.HISTORY, 0, 1)
        put(broker, *new)
        if not running:
            await stack.enter_async_context(following(engine, broker))
        await until_listed(engine, 1, 2, 3, 4, *new)
        put(broker, 30)
        await until_listed(engine, 1, 2, 3, 4, *new, 30)


async def test_it_says_that_the_log_was_rolled_back_and_is_ready_again(
    engine: AsyncEngine, broker: memory_log.MemoryLog, caplog: pytest.LogCaptureFixture
) -> None:
    async with following(engine, broker) as running:
        put(broker, 1, 2)
        await until_listed(engine, 1, 2)
        assert "log_rolled_back" not in caplog.text
        broker.roll_back(topics.HISTORY, 0, 1)
        await waiting.eventually(lambda: "log_rolled_back" in caplog.text, "a log line")
        await waiting.eventually(lambda: running.ready, "it is ready")
        ends = {0: 1}
        await sql_reader.SqlReader(engine).wait_until_folded(INCARNATION, topics.HISTORY, ends)


async def test_what_was_deleted_stays_deleted_though_the_log_has_forgotten_that(
    engine: AsyncEngine, broker: memory_log.MemoryLog
) -> None:
    async with following(engine, broker):
        put(broker, 1, 2)
        await until_listed(engine, 1, 2)
        deleted = records.encode(records.Deleted(rid(1), ALICE))
        broker.put(fold.DELETIONS, 0, rid(1).encode(), deleted)
        await until_listed(engine, 2)
        broker.roll_back(fold.DELETIONS, 0, 0)
        broker.roll_back(topics.HISTORY, 0, 2)  # without the tombstones, and what follows
        put(broker, 3)
        await until_listed(engine, 2, 3)
        # The text came back with the old disk. It is erased there again.

        def erased() -> bool:
            keys = {r.key for r in broker.records(topics.HISTORY, 0) if r.value is None}
            return rid(1).encode() in keys

        await waiting.eventually(erased, "it is erased in the log again")


async def test_a_conversation_goes_on_after_the_nodes_that_only_the_archive_has(
    engine: AsyncEngine, broker: memory_log.MemoryLog
) -> None:
    read = sql_reader.SqlReader(engine)

    async def talk() -> conversations.Conversation:
        found, _ = await read.conversation(TALK, INCARNATION, 0)
        return found

    async def reads(**wanted: Any) -> None:
        async def is_so() -> bool:
            found = await talk()
            return all(getattr(found, name) == value for name, value in wanted.items())

        await waiting.eventually(is_so, f"{wanted}", within_s=20)

    async with following(engine, broker):
        say(
            broker,
            conversations.Created(TALK, ALICE, 5, title="first", attempt="a"),
            conversations.Turn(TALK, ALICE, "r1"),
            conversations.Turn(TALK, ALICE, "r2", "r1"),
            conversations.Chosen(TALK, ALICE, "r1"),
            conversations.Turn(TALK, ALICE, "r3", "r1"),
            conversations.Turn(TALK, ALICE, "lost", "r3"),
            conversations.Changed(TALK, ALICE, title="lost, too"),
        )
        await reads(head="lost", title="lost, too")
        before = await talk()
        broker.roll_back(topics.CONVERSATIONS, 0, 5)
        say(broker, conversations.Turn(TALK, ALICE, "r4", "lost"))
        await reads(head="r4")
        found = await talk()
        assert [*found.nodes] == ["r1", "r2", "r3", "lost", "r4"]
        assert found.title == before.title
    assert not [r for r in broker.records(topics.CONVERSATIONS, 0) if r.value is None]


async def test_acts_that_come_twice_erase_nothing(
    engine: AsyncEngine, broker: memory_log.MemoryLog
) -> None:
    """Symptom: the record that made a conversation, read again, was taken for that of another
    gateway that came too late, and was erased from the log."""
    created = conversations.Created(TALK, ALICE, 5, title="first", attempt="a")
    async with following(engine, broker):
        say(broker, created, created, conversations.Turn(TALK, ALICE, "r1"))
        read = sql_reader.SqlReader(engine)

        async def there() -> bool:
            return (await read.conversation(TALK, INCARNATION, 0))[0].head == "r1"

        await waiting.eventually(there, "the turn", within_s=20)
    assert not [r for r in broker.records(topics.CONVERSATIONS, 0) if r.value is None]
