"""Records that the archive cannot fold, on SQLite and on a real PostgreSQL: they are set aside, the
rest goes on, and they are taken up again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from tailrace import log
from tailrace.archive import (
    archived,
    conversation_rows,
    database,
    fold,
    follower,
    retry,
    set_aside,
    sql_reader,
    tables,
)
from tailrace.protocol import conversations, history, records, topics
from tests.support import cases, memory_log, waiting
from tests.support.archive_rows import Fold
from tests.support.histories import ALICE, BOB, INCARNATION, PARTITIONS, history_of, rid

TOO_LARGE = 1 << 70  # no database has a number for it
TALK = rid(1).replace("resp_", conversations.PREFIX)


def put(broker: memory_log.MemoryLog, topic: str, partition: int, key: str, value: Any) -> int:
    return broker.put(topic, partition, key.encode(), value).offset


def put_history(broker: memory_log.MemoryLog, *whole: history.History) -> None:
    for each in whole:
        for key, value in history.parts(each):
            put(broker, topics.HISTORY, history.partition(each.rid, PARTITIONS), key, value)


def put_acts(broker: memory_log.MemoryLog, *acts: conversations.Act) -> list[int]:
    return [
        put(
            broker,
            topics.CONVERSATIONS,
            0,
            conversations.key(act, str(number)),
            conversations.encode(act),
        )
        for number, act in enumerate(acts)
    ]


async def fold_all(broker: memory_log.MemoryLog, engine: AsyncEngine, topic: str) -> Fold:
    """Fold what partition 0 has above the archive's position, as one batch."""
    folding = Fold(engine)
    start = (await folding.positions()).get((topic, 0), 0)
    batch = [r for r in broker.records(topic, 0) if r.offset >= start]
    folded = await folding.apply(batch, {(topic, 0): start})
    assert folded.next == {(topic, 0): batch[-1].offset + 1}
    return folding


async def retried(
    broker: memory_log.MemoryLog, engine: AsyncEngine, erased: list[str] | None = None
) -> dict[int, str]:
    """What became of what was set aside, by offset."""

    async def erase(of: set[conversation_rows.Address]) -> None:
        assert erased is not None
        erased.extend(each.key for each in sorted(of))

    found = retry.retry(engine, INCARNATION, broker.replays(), erase)
    return {row.offset: outcome async for row, outcome in found}


async def listed(engine: AsyncEngine) -> list[str]:
    groups = await sql_reader.SqlReader(engine).list_responses(
        archived.ListQuery(ALICE.key, fold.RESPONSE)
    )
    return [group[0].history.rid for group in groups]


async def aside(engine: AsyncEngine) -> list[int]:
    async with engine.connect() as connection:
        return [row.offset for row in await set_aside.rows(connection, INCARNATION)]


async def test_a_response_that_no_database_can_hold_stops_nobody(engine: AsyncEngine) -> None:
    """Symptom: one statement failed for ever, and nobody's answers were archived any more."""
    broker = memory_log.MemoryLog(INCARNATION)
    bad = history_of(2, created_at=TOO_LARGE)
    put_history(broker, history_of(1), bad, history_of(3))
    await fold_all(broker, engine, topics.HISTORY)
    assert await listed(engine) == [rid(1), rid(3)]
    assert await aside(engine) == [1]
    [error] = set((await retried(broker, engine)).values())
    assert error in ("OverflowError", "DataError")
    assert await aside(engine) == [1]


async def test_what_follows_of_the_same_response_waits_too_and_is_taken_up_in_order(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, columns = memory_log.MemoryLog(INCARNATION), fold.columns

    def defective(whole: history.History, changes: Any) -> dict[str, Any]:
        if whole.rid == rid(2):
            raise ValueError("a defect of the fold")
        return columns(whole, changes)

    monkeypatch.setattr(fold, "columns", defective)
    put_history(broker, history_of(1), history_of(2, metadata={"was": "so"}))
    await fold_all(broker, engine, topics.HISTORY)
    for number in (1, 2):
        changed = records.Metadata(rid(number), ALICE, {"now": "else"})
        key = history.metadata_key(rid(number))
        put(broker, topics.HISTORY, 0, key, records.encode(changed))
    await fold_all(broker, engine, topics.HISTORY)
    read = sql_reader.SqlReader(engine)
    assert await read.metadata([rid(1), rid(2)], ALICE.key) == {rid(1): {"now": "else"}}
    assert await aside(engine) == [1, 3]
    monkeypatch.setattr(fold, "columns", columns)
    assert await retried(broker, engine) == {1: retry.FOLDED, 3: retry.FOLDED}
    found = await read.find(rid(2), ALICE.key)
    assert found is not None
    assert found.metadata == {"now": "else"}
    assert await aside(engine) == []


async def test_a_deletion_counts_although_the_response_is_set_aside(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, columns = memory_log.MemoryLog(INCARNATION), fold.columns

    def defective(*_: Any) -> dict[str, Any]:
        raise ValueError("a defect of the fold")

    monkeypatch.setattr(fold, "columns", defective)
    put_history(broker, history_of(1))
    await fold_all(broker, engine, topics.HISTORY)
    put(broker, fold.DELETIONS, 0, rid(1), records.encode(records.Deleted(rid(1), ALICE)))
    await fold_all(broker, engine, fold.DELETIONS)
    monkeypatch.setattr(fold, "columns", columns)
    erased: list[str] = []
    assert await retried(broker, engine, erased) == {0: retry.FOLDED}
    assert await listed(engine) == []
    assert erased == [rid(1), history.metadata_key(rid(1))]


async def test_a_conversation_of_which_something_is_set_aside_is_read_from_there_on(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows are those before the first record that was set aside, and so is the position that
    readers are given: what follows they fold from the log. Nothing that follows is taken for the
    record of a conversation that is not there, which would be erased from the log."""
    broker, save = memory_log.MemoryLog(INCARNATION), sa.insert
    acts: list[conversations.Act] = [
        conversations.Created(TALK, ALICE, 5, title="first"),
        conversations.Changed(TALK, ALICE, title="second"),
    ]
    put_acts(broker, *acts)
    await fold_all(broker, engine, topics.CONVERSATIONS)

    def defective(table: sa.Table) -> Any:
        if table is tables.NODES:
            raise ValueError("a defect of the fold")
        return save(table)

    monkeypatch.setattr(sa, "insert", defective)
    put_acts(broker, conversations.Turn(TALK, ALICE, "r1"))
    await fold_all(broker, engine, topics.CONVERSATIONS)
    monkeypatch.setattr(sa, "insert", save)
    put_acts(
        broker,
        conversations.Changed(TALK, ALICE, title="third"),
        conversations.Turn(TALK, ALICE, "r2", "r1"),
    )
    folding = await fold_all(broker, engine, topics.CONVERSATIONS)
    assert folding.erased == []
    read = sql_reader.SqlReader(engine)
    found, below = await read.conversation(TALK, INCARNATION, 0)
    assert (found.title, below) == ("second", 2)
    for record in broker.records(topics.CONVERSATIONS, 0)[2:]:
        act = conversations.decode(record.key, record.value)
        assert act is not None
        assert found.apply(act, record.timestamp)
    assert await retried(broker, engine) == dict.fromkeys((2, 3, 4), retry.FOLDED)
    now, below = await read.conversation(TALK, INCARNATION, 0)
    assert (now, below) == (found, 5)
    assert now.head == "r2"


async def test_what_the_log_has_no_longer_is_named_and_forgotten(engine: AsyncEngine) -> None:
    broker = memory_log.MemoryLog(INCARNATION)
    for number in (1, 2, 3):
        put_history(broker, history_of(number, created_at=TOO_LARGE))
    await fold_all(broker, engine, topics.HISTORY)
    broker.delete_below(topics.HISTORY, 0, 1)
    broker.roll_back(topics.HISTORY, 0, 2)
    put_history(broker, history_of(4))  # another record with the offset of the third
    outcomes = await retried(broker, engine)
    assert outcomes.pop(1) in ("OverflowError", "DataError")
    assert outcomes == {0: retry.LOST, 2: retry.LOST}
    assert await aside(engine) == [1]
    assert rid(4) not in await listed(engine)


async def test_a_follower_goes_on_and_says_what_it_set_aside(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(follower, "CHECK_S", 0.05)
    broker = memory_log.MemoryLog(INCARNATION)
    put_history(broker, history_of(1, created_at=TOO_LARGE))
    put(broker, topics.HISTORY, 0, "garbage\0\ud7ff", b"\xff" * 100)
    put(broker, topics.HISTORY, 1, "x" * 5_000, b"[" * 100_000)
    put(broker, topics.CONVERSATIONS, 1, "conv_\0", b"{}")
    put(broker, fold.DELETIONS, 1, "\0", b"{}")
    put_history(broker, history_of(2))
    readers = {topic: broker.reader(topic, wait_ms=20) for topic in fold.TOPICS}
    running = follower.Follower(
        engine, INCARNATION, readers, broker.offsets(), broker.replays(), broker.writer()
    )
    task = asyncio.create_task(running.run())
    try:
        await waiting.eventually(lambda: running.ready, "everything is folded", within_s=20)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert await listed(engine) == [rid(2)]
    assert await aside(engine) == [0]
    assert "set_aside" in caplog.text


@cases.each(
    "error",
    [
        sa.exc.OperationalError("", {}, Exception("database is locked")),
        sa.exc.InterfaceError("", {}, Exception("connection is closed")),
        sa.exc.ProgrammingError("", {}, Exception("no such table")),
        sa.exc.TimeoutError("no connection is free"),
        OSError("no route"),
        TimeoutError(),
        log.AppendFailed("a tombstone was not written"),
    ],
)
def test_a_database_that_is_away_is_no_fault_of_a_record(error: Exception) -> None:
    assert not database.is_data_error(error)


async def test_a_database_without_its_tables_is_no_fault_of_a_record(engine: AsyncEngine) -> None:
    broker = memory_log.MemoryLog(INCARNATION)
    put_history(broker, history_of(1))
    async with engine.begin() as connection:
        await connection.execute(sa.text("DROP TABLE labels"))
    put_history(broker, history_of(2, metadata={"a": "b"}))
    with pytest.raises(database.ERRORS):
        await fold_all(broker, engine, topics.HISTORY)
    assert await aside(engine) == []


async def test_another_owners_records_are_no_reason_to_wait(engine: AsyncEngine) -> None:
    """Names are compared as a whole: that of a response is no beginning of another."""
    broker = memory_log.MemoryLog(INCARNATION)
    put_history(broker, history_of(1, created_at=TOO_LARGE), history_of(2, owner=BOB))
    await fold_all(broker, engine, topics.HISTORY)
    assert await sql_reader.SqlReader(engine).find(rid(2), BOB.key) is not None
