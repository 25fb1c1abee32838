"""`tailrace archive retry` on a real broker."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tailrace import log
from tailrace.archive import database, fold, follower, set_aside, sql_reader
from tailrace.cli import archive_retry
from tailrace.protocol import history, topics
from tests.support import waiting
from tests.support.histories import ALICE, history_of, rid


async def test_the_command_takes_them_up_again_from_the_log(
    bare: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await log.apply_topics(bare, ["default"], partitions=1, replication=1, min_insync=1)
    layout = await log.layout(bare)
    url, columns = f"sqlite:///{tmp_path / 'archive.sqlite3'}", fold.columns

    def defective(*_: Any) -> dict[str, Any]:
        raise ValueError("a defect of the fold")

    monkeypatch.setattr(fold, "columns", defective)
    engine = database.engine(url, create=True)
    readers = {topic: log.Reader(bare, topic) for topic in fold.TOPICS}
    offsets, replays, writer = log.Offsets(bare), log.Replays(bare, size=1), log.Writer(bare)
    running = follower.Follower(engine, layout.incarnation, readers, offsets, replays, writer)
    tasks = [asyncio.create_task(running.run()), asyncio.create_task(writer.run())]
    try:
        for key, value in history.parts(history_of(1)):
            await writer.append(topics.HISTORY, 0, key, value)

        async def something() -> bool:
            if not running.ready:
                return False
            async with engine.connect() as connection:
                return await set_aside.count(connection) == 1

        await waiting.eventually(something, "it is set aside", within_s=30)
    finally:
        await writer.stop(5)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for reader in readers.values():
            await reader.stop()
        await offsets.stop()
        await replays.stop()
    said: list[str] = []
    assert await asyncio.to_thread(archive_retry.run, bare, url, said.append) == 1
    assert said == ["llm.history[0] offset 0: ValueError", "1 records stay set aside"]
    monkeypatch.setattr(fold, "columns", columns)
    said.clear()
    assert await asyncio.to_thread(archive_retry.run, bare, url, said.append) == 0
    assert said == ["llm.history[0] offset 0: folded", "nothing is set aside"]
    assert await sql_reader.SqlReader(engine).find(rid(1), ALICE.key) is not None
    await engine.dispose()
