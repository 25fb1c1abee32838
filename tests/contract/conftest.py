"""Databases of both kinds for the archive, an engine of each, and the real engines."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from tailrace.archive import database, migration
from tests.support import engine_environment, model_engines, postgres
from tests.support.model_engines import engine_to_kill, engines, model

__all__ = ["engine_to_kill", "engines", "model"]
collect_ignore = [] if engine_environment.HERE else [*engine_environment.ONLY_THERE]

KINDS = ("sqlite", "postgresql")


@pytest.hookimpl(trylast=True)  # after pytest's own order, by fixtures
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items[:] = model_engines.in_order(items)


@pytest.fixture(params=KINDS)
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'archive.sqlite3'}"
    return await postgres.new_database(request.getfixturevalue("postgres_url"))


@pytest.fixture
async def engine(url: str) -> AsyncIterator[AsyncEngine]:
    made = database.engine(url, create=True)
    await migration.migrate(made)
    yield made
    await made.dispose()
