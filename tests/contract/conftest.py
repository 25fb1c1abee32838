"""Databases of both kinds for the archive, an engine of each, and models with the real engine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from tailrace.archive import database, migration
from tests.support import postgres
from tests.support.model_engines import model

__all__ = ["model"]

KINDS = ("sqlite", "postgresql")


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
