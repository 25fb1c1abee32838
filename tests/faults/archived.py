"""What happens to the archive in a drill, and whether it has every event that the log had."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from pathlib import Path
from typing import Final

import httpx

from tailrace import log
from tailrace.archive import archived, fold, reader
from tests.faults import drill, stage
from tests.support import archive_parts, waiting

AT_ONCE: Final = 4
FOLDED_S: Final = 60.0
READ_S: Final = 60.0


async def kill(d: drill.Drill) -> None:
    """In the middle of a batch, now and then."""
    for service in d.stage.of("archive"):
        d.kill(service.name)


async def stop(d: drill.Drill) -> None:
    """It holds the write lock, or is behind."""
    for service in d.stage.of("archive"):
        d.pause(service.name)
        await asyncio.sleep(d.rng.uniform(0.5, 4.0))
        d.resume(service.name)


async def drop(d: drill.Drill) -> None:
    """All tables go, while its process runs or after it was killed."""
    for service in d.stage.of("archive"):
        d.fault("drop", service.name)
        if d.rng.random() < 0.5:
            d.kill(service.name)
        await asyncio.to_thread(drop_tables, d.stage.archive_file)


def drop_tables(file: Path) -> None:
    if not file.exists():
        return
    with contextlib.closing(sqlite3.connect(file, timeout=30.0)) as connection, connection:
        connection.execute("BEGIN IMMEDIATE")
        found = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        for (name,) in found.fetchall():
            connection.execute(f'DROP TABLE IF EXISTS "{name}"')


async def compare(d: drill.Drill) -> tuple[int, list[str]]:
    """Read the events of all responses of the drill from a push service, then cut the log and read
    them from a new one, which has only the archive. How many were compared, and the ids of those
    whose bytes differ. Nothing of the drill can be judged afterwards."""
    on = d.stage
    before = await _read(d)
    await folded(on)
    names = {name for pool in on.pools for name in archive_parts.answers(pool)}
    await archive_parts.cut(on.kafka.bootstrap, names)
    push = on.of("push")[0].name
    d.kill(push)
    await d.restart(push)
    after = await _read(d)
    there = {rid for rid, (status, _) in before.items() if status == 200}
    return len(there), sorted(rid for rid in there if after[rid] != before[rid])


async def folded(on: stage.Stage) -> None:
    """Wait until the archive has all that the topics hold."""
    layout, offsets = await log.layout(on.kafka.bootstrap), log.Offsets(on.kafka.bootstrap)
    made = reader.open_reader(on.archive_url)
    assert made is not None

    async def there() -> bool:
        for topic in fold.TOPICS:
            ends = await offsets.ends(topic, range(await offsets.partitions(topic)))
            try:
                await made.wait_until_folded(layout.incarnation, topic, ends)
            except archived.ArchiveUnavailable:
                return False
        return True

    try:
        await waiting.eventually(there, "the archive has everything", within_s=FOLDED_S)
    finally:
        await made.stop()
        await offsets.stop()


async def _read(d: drill.Drill) -> dict[str, tuple[int, bytes]]:
    """Status and body of each response's events."""
    base, turns = d.stage.of("push")[0].url, asyncio.Semaphore(AT_ONCE)
    found: dict[str, tuple[int, bytes]] = {}
    async with httpx.AsyncClient(base_url=base, timeout=READ_S) as client:

        async def one(rid: str, user: str) -> None:
            async with turns:
                headers = {"authorization": f"Bearer {d.stage.token(user)}"}
                got = await client.get(f"/v1/responses/{rid}?stream=true", headers=headers)
                found[rid] = got.status_code, got.content

        async with asyncio.TaskGroup() as tasks:
            for asked in d.crowd.asked:
                tasks.create_task(one(asked.rid, asked.user))
    return found
