"""Databases of both kinds for the archive, an engine of each, and models with the real engine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from tailrace.archive import database, migration
from tests.support import postgres
from tests.support.model_engines import model

__all__ = ["model"]

KINDS = ("sqlite", "postgresql")


@pytest.fixture(scope="module")
def server() -> Iterator[postgres.LocalPostgres]:
    if not postgres.installed():
        pytest.skip("PostgreSQL is NOT tested: it is not installed (make test)")
    with postgres.LocalPostgres() as running:
        yield running


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'archive.sqlite3'}"
    running: postgres.LocalPostgres = request.getfixturevalue("server")
    return running.new_database()


@pytest.fixture
async def engine(url: str) -> AsyncIterator[AsyncEngine]:
    made = database.engine(url, create=True)
    await migration.migrate(made)
    yield made
    await made.dispose()
