"""Databases of both kinds for the archive, an engine of each, the real engines, and a broker that
tests kill and whose topics they delete."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiokafka.admin
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from tailrace.archive import database, migration
from tests.support import engine_environment, local, model_engines, postgres, waiting
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


class Mortal:
    """A broker to be killed, from within a running loop. Its one thread lives as long as it does: a
    child whose starting thread is gone gets its parent-death signal."""

    def __init__(self, broker: local.LocalKafka) -> None:
        self.bootstrap = broker.bootstrap
        self._broker = broker
        self._thread = concurrent.futures.ThreadPoolExecutor(1)

    async def kill(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, self._broker.kill)

    async def start(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, self._broker.start)

    def pause(self) -> None:
        self._broker.pause()

    def resume(self) -> None:
        self._broker.resume()


@pytest.fixture(scope="package")
def mortal() -> Iterator[Mortal]:
    """Of this process. The files that ask for it are one group (`tests/support/scheduling.py`)."""
    with local.LocalKafka(local.QUICK_RETURN) as broker:
        yield Mortal(broker)


@pytest.fixture
async def bare(mortal: Mortal) -> str:
    """Bootstrap address of a broker without topics: what it had is deleted."""
    admin = aiokafka.admin.AIOKafkaAdminClient(bootstrap_servers=mortal.bootstrap)
    await admin.start()
    try:

        async def none_left() -> bool:
            left = [name for name in await admin.list_topics() if not name.startswith("__")]
            if left:
                await admin.delete_topics(left)
            return not left

        await waiting.eventually(none_left, "all topics are deleted", within_s=60, every_s=0.2)
    finally:
        await admin.close()
    return mortal.bootstrap
