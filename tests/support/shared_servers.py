"""The broker, the Redis and the PostgreSQL that all processes of one test run share.

pytest's controller starts them before its workers (`tests/conftest.py`) and hands each worker the
addresses. A run in one process starts each with the first test that asks for it. A test that kills
a server, fills it or reads all of it starts one of its own (`tests/support/local.py`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

from tests.support import local, postgres

REDIS_DATABASES: Final = 16


@contextlib.contextmanager
def started() -> Iterator[dict[str, str]]:
    """All of them, from the main thread: servers end with the thread that started them.

    Gives their addresses. `kafka`: for bootstrap. `redis`, `postgres`: URLs without a database;
    `postgres` is empty where it is not installed.
    """
    with contextlib.ExitStack() as running:
        broker = running.enter_context(local.LocalKafka(heap_mb=512))
        broker.apply_topics()
        redis = running.enter_context(local.LocalRedis())
        database = ""
        if postgres.installed():
            database = running.enter_context(postgres.LocalPostgres()).url
        yield {"kafka": broker.bootstrap, "redis": redis.url, "postgres": database}


def redis_of(url: str, worker: str) -> str:
    """The Redis database of a pytest worker (`gw3`), so that one may empty its own."""
    number = int(worker.removeprefix("gw"))
    assert number < REDIS_DATABASES, "as many processes as Redis has databases"
    return f"{url}/{number}"
