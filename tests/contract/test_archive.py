"""The archive on SQLite and on a real PostgreSQL: one class of tests for both."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import alembic.autogenerate
import alembic.migration
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from tailrace import log
from tailrace.archive import (
    archived,
    conversation_rows,
    database,
    fold,
    folding,
    follower,
    migration,
    sql_reader,
    tables,
)
from tailrace.protocol import history, records, topics
from tests.support import memory_log, postgres, waiting
from tests.support.archive_rows import Fold, dump
from tests.support.histories import (
    ALICE,
    BOB,
    INCARNATION,
    PARTITIONS,
    Topics,
    history_of,
    rid,
)


async def test_a_history_is_read_as_it_was_written(engine: AsyncEngine) -> None:
    log_, whole = Topics(), history_of(1, "Some words here.", metadata={"a": "b"})
    folded = await Fold(engine).all(log_.history(whole))
    assert (folded.rows, folded.garbage) == (1, 0)
    found = await sql_reader.SqlReader(engine).find(whole.rid, ALICE.key)
    assert found == archived.ArchivedResponse(whole, {"a": "b"})
    assert await sql_reader.SqlReader(engine).find(whole.rid, BOB.key) is None
    assert await sql_reader.SqlReader(engine).find(rid(2), ALICE.key) is None


async def test_one_of_many_records_is_there_when_all_of_them_are(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "PART_BYTES", 4_000)
    log_, whole = Topics(), history_of(1, "word " * 1_000)
    cut = [log_.put(topics.HISTORY, 0, key, value) for key, value in history.parts(whole)]
    assert len(cut) > 3
    folding_, reading = Fold(engine), sql_reader.SqlReader(engine)
    for record in cut[:-1]:
        await folding_.all([record])
        assert await reading.find(whole.rid, ALICE.key) is None
    await folding_.all(cut[-1:])
    found = await reading.find(whole.rid, ALICE.key)
    assert found is not None
    assert found.history == whole
    # A piece of a copy leaves nothing behind.
    await folding_.all([log_.put(topics.HISTORY, 0, f"{whole.rid}:1", cut[1].value)])
    async with engine.connect() as connection:
        assert (await connection.execute(sa.select(tables.PARTS))).all() == []


def _deleted(log_: Topics, name: str, by: records.Owner) -> log.Record:
    return log_.put(fold.DELETIONS, 0, name, records.encode(records.Deleted(name, by)))


@pytest.mark.parametrize("first", ["history", "deletion"])
async def test_a_deletion_counts_in_either_order_and_only_its_owners(
    engine: AsyncEngine, first: str
) -> None:
    log_ = Topics()
    mine, others = history_of(1), history_of(2)
    histories = log_.history(mine, others)
    deletions = [_deleted(log_, mine.rid, ALICE), _deleted(log_, others.rid, BOB)]
    folding_, reading = Fold(engine), sql_reader.SqlReader(engine)
    for batch in (histories, deletions) if first == "history" else (deletions, histories):
        await folding_.all(batch)
    assert await reading.find(mine.rid, ALICE.key) is None
    assert await reading.find(others.rid, ALICE.key) is not None
    assert folding_.erased == [mine.rid, f"{mine.rid}:metadata"]


async def test_one_that_comes_back_is_erased_again(engine: AsyncEngine) -> None:
    log_, whole = Topics(), history_of(1)
    folding_ = Fold(engine, log_)
    await folding_.all([*log_.history(whole), _deleted(log_, whole.rid, ALICE)])
    await folding_.all(log_.records[-2:])  # the tombstones
    assert await sql_reader.SqlReader(engine).find(whole.rid, ALICE.key) is None
    folding_.erased.clear()
    await folding_.all(log_.history(whole))
    assert await sql_reader.SqlReader(engine).find(whole.rid, ALICE.key) is None
    assert whole.rid in folding_.erased


async def test_a_tombstone_alone_erases_also_what_comes_behind_it(engine: AsyncEngine) -> None:
    log_, whole = Topics(), history_of(1)
    folding_ = Fold(engine)
    await folding_.all([*log_.history(whole), log_.put(topics.HISTORY, 0, whole.rid, None)])
    assert await sql_reader.SqlReader(engine).find(whole.rid, ALICE.key) is None
    await folding_.all(log_.history(whole))
    assert await sql_reader.SqlReader(engine).find(whole.rid, ALICE.key) is None
    assert folding_.erased == [whole.rid]


async def test_metadata_is_its_owners_and_comes_before_or_after(engine: AsyncEngine) -> None:
    log_ = Topics()
    early, late, others = (history_of(n, metadata={"was": "so"}) for n in (1, 2, 3))
    await Fold(engine).all(
        [
            log_.metadata(early.rid, ALICE, now="early"),
            *log_.history(early, late, others),
            log_.metadata(late.rid, ALICE, now="late"),
            log_.metadata(others.rid, BOB, now="mine"),
        ]
    )
    reading = sql_reader.SqlReader(engine)
    found = [await reading.find(each.rid, ALICE.key) for each in (early, late, others)]
    assert [each.metadata for each in found if each] == [
        {"now": "early"},
        {"now": "late"},
        {"was": "so"},
    ]
    assert await reading.metadata([early.rid, others.rid], ALICE.key) == {
        early.rid: {"now": "early"}
    }
    wanted = archived.ListQuery(ALICE.key, fold.RESPONSE, metadata={"now": "late"})
    assert [g[0].history.rid for g in await reading.list_responses(wanted)] == [late.rid]
    wanted = archived.ListQuery(ALICE.key, fold.RESPONSE, metadata={"was": "so"})
    assert [g[0].history.rid for g in await reading.list_responses(wanted)] == [others.rid]


async def test_pieces_of_files_are_kept_until_their_tombstone(engine: AsyncEngine) -> None:
    log_, reading = Topics(), sql_reader.SqlReader(engine)
    key = history.file_key(ALICE.cache_scope, "ab" * 32, 0)
    await Fold(engine).all([log_.put(topics.HISTORY, 0, key, b"\0bytes")])
    assert await reading.file(key) == b"\0bytes"
    await Fold(engine).all([log_.put(topics.HISTORY, 0, key, None)])
    assert await reading.file(key) is None


async def test_garbage_and_forged_records_change_nothing(engine: AsyncEngine) -> None:
    log_, whole = Topics(), history_of(1)
    forged = log_.put(topics.HISTORY, 0, whole.rid, None)._replace(forgery="no tag")
    before = [*log_.history(whole)]
    batch = [
        *before,
        forged._replace(offset=2),
        log_.put(topics.HISTORY, 0, rid(5), b"{}"),
        log_.put(topics.HISTORY, 0, "something", b"{}"),
        log_.put(topics.HISTORY, 0, rid(6), before[0].value),  # under another's key
        log_.put(topics.HISTORY, 0, f"{whole.rid}:metadata", b"["),
    ]
    folded = await Fold(engine).all(batch)
    assert (folded.rows, folded.garbage) == (1, 5)
    assert await sql_reader.SqlReader(engine).find(whole.rid, ALICE.key) is not None
    assert await sql_reader.SqlReader(engine).find(rid(6), ALICE.key) is None


def _chat(number: int, *, of: int = 1, **more: Any) -> list[history.History]:
    """A chat completion with so many choices."""
    return [
        history_of(
            number * 10 + i,
            created_at=1_000 + number,
            choice=records.Choice(f"group{number}", i, of),
            **more,
        )
        for i in range(of)
    ]


async def test_lists_are_pages_in_order_of_whole_completions(engine: AsyncEngine) -> None:
    log_ = Topics()
    chats = [_chat(n, of=1 + n % 2, model="ab"[n % 2]) for n in range(7)]
    half = _chat(8, of=2)[:1]  # its other choice is not finished
    failed = _chat(9, reason="failed")
    others = _chat(10, owner=BOB)
    everything = [h for c in (*chats, half, failed, others) for h in c] + [
        history_of(500),
        history_of(501, reason="failed"),
    ]
    random.Random(1).shuffle(everything)
    await Fold(engine).all(log_.history(*everything))
    reading = sql_reader.SqlReader(engine)
    rids = [[h.rid for h in c] for c in chats]

    async def listed(**wanted: Any) -> list[list[str]]:
        found = await reading.list_responses(archived.ListQuery(ALICE.key, fold.CHAT, **wanted))
        return [[each.history.rid for each in group] for group in found]

    assert await listed() == rids
    assert await listed(newest_first=True) == rids[::-1]
    assert await listed(limit=2) == rids[:3]  # one more says that there is more
    assert await listed(after=rids[2][0]) == rids[3:]
    assert await listed(after=rids[2][0], newest_first=True) == rids[1::-1]
    assert await listed(model="b") == rids[1::2]
    with pytest.raises(archived.UnknownPlace):
        await listed(after=others[0].rid)
    found = await reading.list_responses(archived.ListQuery(ALICE.key, fold.RESPONSE))
    assert [g[0].history.rid for g in found] == [rid(500), rid(501)]


async def test_what_is_deleted_while_a_list_is_read_is_whole_or_not_there(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Symptom: a completion without choices was in the list, and the gateway answered 500."""
    await Fold(engine).all(Topics().history(history_of(1), history_of(2)))
    execute = AsyncConnection.execute
    is_deleted = False

    async def then_deleted(self: AsyncConnection, *args: Any) -> Any:
        nonlocal is_deleted
        result = await execute(self, *args)
        if not is_deleted:
            is_deleted = True
            rows = tables.RESPONSES
            async with engine.begin() as other:
                await execute(other, sa.delete(rows).where(rows.c.rid == rid(1)))
        return result

    monkeypatch.setattr(AsyncConnection, "execute", then_deleted)
    wanted = archived.ListQuery(ALICE.key, fold.RESPONSE)
    found = await sql_reader.SqlReader(engine).list_responses(wanted)
    assert [[each.history.rid for each in group] for group in found] == [[rid(1)], [rid(2)]]
    found = await sql_reader.SqlReader(engine).list_responses(wanted)
    assert [[each.history.rid for each in group] for group in found] == [[rid(2)]]


def _mixture(seed: int) -> Topics:
    """Responses, copies of them, metadata and deletions, as several processes write them."""
    chance, log_ = random.Random(seed), Topics()
    done: list[history.History] = []
    for number in range(60):
        act = chance.random()
        if act < 0.5 or not done:
            done.append(history_of(number, "word " * chance.randrange(20), partition=number % 4))
            log_.history(done[-1])
        elif act < 0.65:
            log_.history(chance.choice(done))
        elif act < 0.85:
            log_.metadata(chance.choice(done).rid, chance.choice([ALICE, BOB]), n=str(number))
        else:
            _deleted(log_, chance.choice(done).rid, chance.choice([ALICE, BOB]))
    return log_


def _batches(log_: Topics, chance: random.Random) -> Iterator[list[log.Record]]:
    """All records, each partition in its order, in batches and across partitions as it comes."""
    left: dict[tuple[str, int], list[log.Record]] = {}
    for record in log_.records:
        left.setdefault((record.topic, record.partition), []).append(record)
    while left:
        place = chance.choice(sorted(left))
        count = chance.randrange(1, 6)
        yield left[place][:count]
        left[place] = left[place][count:]
        if not left[place]:
            del left[place]


@pytest.mark.parametrize("seed", range(4))
async def test_dropped_and_built_again_in_another_order_it_is_equal(
    engine: AsyncEngine, seed: int
) -> None:
    log_ = _mixture(seed)
    folding_ = Fold(engine)
    for batch in _batches(log_, random.Random(seed)):
        await folding_.all(batch)
    first = await dump(engine)
    await migration.migrate(engine, "base")
    await migration.migrate(engine)
    for batch in _batches(log_, random.Random(seed + 100)):
        await folding_.all(batch)
    assert await dump(engine) == first
    assert b"resp_" in first


async def test_two_processes_at_once_fold_each_record_once(url: str, engine: AsyncEngine) -> None:
    log_ = _mixture(7)
    alone = Fold(engine)
    await alone.all(log_.records)
    wanted = await dump(engine)
    await migration.migrate(engine, "base")
    await migration.migrate(engine)
    second = database.engine(url, create=True)
    partitions: dict[tuple[str, int], list[log.Record]] = {}
    for record in log_.records:
        partitions.setdefault((record.topic, record.partition), []).append(record)
    rows = 0

    async def fold_all(over: AsyncEngine, chance: random.Random) -> None:
        nonlocal rows
        mine, at = Fold(over), dict.fromkeys(partitions, 0)
        while any(at[place] < len(partitions[place]) for place in partitions):
            place = chance.choice([p for p in partitions if at[p] < len(partitions[p])])
            batch = partitions[place][at[place] : at[place] + chance.randrange(1, 8)]
            folded = await mine.apply(batch, {place: at[place]})
            rows += folded.rows
            at[place] = folded.next[place]

    try:
        await asyncio.gather(fold_all(engine, random.Random(1)), fold_all(second, random.Random(2)))
    finally:
        await second.dispose()
    assert await dump(engine) == wanted


async def test_a_batch_behind_a_gap_is_left_alone(engine: AsyncEngine) -> None:
    """The database was dropped while a process ran: it must not go on in the middle."""
    log_ = Topics()
    batch = log_.history(history_of(1), history_of(2))
    folded = await Fold(engine).apply(batch[1:], {(topics.HISTORY, 0): 1})
    assert folded.next == {(topics.HISTORY, 0): 0}
    assert await sql_reader.SqlReader(engine).find(rid(2), ALICE.key) is None


async def test_dropped_under_its_process_it_is_built_again_without_new_records(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Symptom: the process went on where it stood, and only partitions with new records were built
    again, when they came."""
    monkeypatch.setattr(follower, "CHECK_S", 0.05)
    broker = memory_log.MemoryLog(INCARNATION)
    for whole in (history_of(1), history_of(2, partition=1)):
        for key, value in history.parts(whole):
            partition = history.partition(whole.rid, PARTITIONS)
            broker.put(topics.HISTORY, partition, key.encode(), value)
    readers = {topic: broker.reader(topic, wait_ms=20) for topic in fold.TOPICS}
    running = follower.Follower(
        engine, INCARNATION, readers, broker.offsets(), broker.replays(), broker.writer()
    )
    made, wanted = sql_reader.SqlReader(engine), [rid(1), rid(2, 1)]

    async def there() -> bool:
        try:
            found = [await made.find(name, ALICE.key) for name in wanted]
        except archived.ArchiveUnavailable:
            return False
        return None not in found

    task = asyncio.create_task(running.run())
    try:
        for _ in range(2):
            await waiting.eventually(there, "both rows", within_s=20)
            await migration.migrate(engine, "base")
        await migration.migrate(engine)  # another process was faster: the tables are there, empty
        await waiting.eventually(there, "both rows", within_s=20)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_what_cannot_be_erased_in_the_topic_is_not_folded(engine: AsyncEngine) -> None:
    log_, whole = Topics(), history_of(1)

    async def fails(_: set[conversation_rows.Address]) -> None:
        raise log.AppendFailed("away")

    folding_ = folding.Folding(engine, INCARNATION, fails)
    batch = [*log_.history(whole), _deleted(log_, whole.rid, ALICE)]
    starts = {(r.topic, r.partition): 0 for r in batch}
    with pytest.raises(log.AppendFailed):
        await folding_.apply(batch, starts)
    assert await folding_.positions() == {}


KILLED = """
import asyncio, sys
from tailrace.archive import database
from tests.contract.test_archive import _mixture
from tests.support.archive_rows import Fold

async def main(url):
    folding = Fold(database.engine(url, create=True))
    log = _mixture(3)
    print("begun", flush=True)
    known = await folding.positions()
    for record in log.records:
        place = record.topic, record.partition
        if record.offset >= known.get(place, 0):
            await folding.apply([record], {place: record.offset})

asyncio.run(main(sys.argv[1]))
"""


async def test_kill_9_at_any_moment_repeats_nothing_and_loses_nothing(
    url: str, engine: AsyncEngine, tmp_path: Path
) -> None:
    await Fold(engine).all(_mixture(3).records)
    wanted = await dump(engine)
    await migration.migrate(engine, "base")
    await migration.migrate(engine)
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    chance, kills = random.Random(5), 0
    for attempt in range(40):
        process = subprocess.Popen(
            [sys.executable, str(script), url],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        )
        assert process.stdout is not None
        await asyncio.to_thread(process.stdout.readline)
        if attempt < 4:
            await asyncio.sleep(chance.uniform(0.02, 0.15))
            process.send_signal(signal.SIGKILL)
        code = await asyncio.to_thread(process.wait)
        process.stdout.close()
        kills += code == -signal.SIGKILL
        if code == 0:
            break
        assert code == -signal.SIGKILL
    assert kills >= 2
    assert await dump(engine) == wanted


async def test_migrations_make_the_tables_and_unmake_them(engine: AsyncEngine) -> None:
    def differences(connection: sa.Connection) -> list[Any]:
        def compared(name: str | None, kind: str, _: Any) -> bool:
            """FTS5's tables are none that are compared."""
            words = kind == "table" and (name or "").startswith("words")
            return not (words and connection.dialect.name == "sqlite")

        context = alembic.migration.MigrationContext.configure(
            connection,
            opts={
                "version_table": "archive_version",
                "compare_type": True,
                "include_name": compared,
                "include_object": lambda _, name, kind, *__: compared(name, kind, None),
            },
        )
        return list(alembic.autogenerate.compare_metadata(context, tables.metadata))

    def names(connection: sa.Connection) -> list[str]:
        return sorted(sa.inspect(connection).get_table_names())

    async with engine.connect() as connection:
        assert await connection.run_sync(differences) == []
    await migration.migrate(engine, "base")
    async with engine.connect() as connection:
        assert await connection.run_sync(names) == ["archive_version"]
    await asyncio.gather(migration.migrate(engine), migration.migrate(engine))
    async with engine.connect() as connection:
        assert await connection.run_sync(differences) == []


async def test_an_archive_that_is_not_there_says_so(tmp_path: Path) -> None:
    for url in (f"sqlite:///{tmp_path / 'none.sqlite3'}", "postgresql://a@127.0.0.1:1/none"):
        made = database.engine(url)
        with pytest.raises(archived.ArchiveUnavailable):
            await sql_reader.SqlReader(made).find(rid(1), ALICE.key)
        await made.dispose()
    assert not (tmp_path / "none.sqlite3").exists()


async def test_a_standby_is_left_for_the_server_behind_the_address(postgres_url: str) -> None:
    """After a failover an open connection may lead to a server that only reads. The archive wrote
    nothing from then on, until it was started again."""
    url = await postgres.new_database(postgres_url)
    name = sa.make_url(url).database
    writer, other = database.engine(url), database.engine(url)

    async def write(engine: AsyncEngine, statement: str) -> None:
        async with engine.begin() as connection:
            await connection.execute(sa.text(statement))

    await write(other, f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
    with pytest.raises(database.ERRORS, match="read-only"):
        await write(writer, "CREATE TABLE one (number int)")
    await write(other, f'ALTER DATABASE "{name}" RESET default_transaction_read_only')
    await write(writer, "CREATE TABLE one (number int)")
    await writer.dispose()
    await other.dispose()


async def test_one_that_is_behind_says_so(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    log_ = Topics()
    await Fold(engine).all(log_.history(history_of(1)))
    await sql_reader.SqlReader(engine).wait_until_folded(INCARNATION, topics.HISTORY, {0: 1, 1: 0})
    monkeypatch.setattr(sql_reader, "FOLD_WAIT_S", 0.2)
    with pytest.raises(archived.ArchiveUnavailable, match="behind"):
        await sql_reader.SqlReader(engine).wait_until_folded(INCARNATION, topics.HISTORY, {0: 2})
