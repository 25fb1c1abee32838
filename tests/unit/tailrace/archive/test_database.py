"""An archive in a SQLite file that changes under open connections."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from tailrace.archive import database, migration, tables


@pytest.fixture
async def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[AsyncEngine]:
    """An archive whose file has all pages, and whose connections have read them."""
    monkeypatch.setattr(database, "REOPEN_S", 0)
    opened = database.engine(f"sqlite:///{tmp_path}/archive.db", create=True)
    await migration.migrate(opened)
    with sqlite3.connect(tmp_path / "archive.db") as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    await count(opened)
    yield opened
    await opened.dispose()


async def count(engine: AsyncEngine) -> int:
    """How many positions the archive has."""
    async with engine.connect() as connection:
        found = await connection.execute(sa.select(sa.func.count()).select_from(tables.POSITIONS))
        return int(found.scalar_one())


def overwrite(path: Path, first: int) -> None:
    """Write other bytes over the file from this place on."""
    with path.open("r+b") as file:
        file.seek(first)
        file.write(b"x" * (path.stat().st_size - first))


DAMAGES: dict[str, Callable[[Path], object]] = {
    "all": lambda path: overwrite(path, 0),
    "all but the first page": lambda path: overwrite(path, 4096),
    "empty": lambda path: path.write_bytes(b""),
}


@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_damaged_file_is_noticed_by_connections_that_have_read_it(
    engine: AsyncEngine, tmp_path: Path, damage: str
) -> None:
    """Symptom: the archive said that it was ready, and each answer was 503."""
    DAMAGES[damage](tmp_path / "archive.db")
    with pytest.raises(database.ERRORS):
        await count(engine)


async def test_a_file_that_was_put_back_is_read(engine: AsyncEngine, tmp_path: Path) -> None:
    path = tmp_path / "archive.db"
    shutil.copy(path, tmp_path / "backup.db")
    async with engine.begin() as connection:
        row = {"log": "l", "topic": "t", "partition": 0, "next": 5}
        await connection.execute(sa.insert(tables.POSITIONS), row)
    assert await count(engine) == 1
    for name in ("archive.db", "archive.db-wal", "archive.db-shm"):
        (tmp_path / name).unlink(missing_ok=True)
    (tmp_path / "backup.db").rename(path)
    assert await count(engine) == 0
