"""From a URL to an engine: SQLite in a file, or PostgreSQL."""

from __future__ import annotations

import contextlib
import sqlite3
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import asyncpg
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from tailrace.protocol import log_words

BUSY_S: Final = 10.0  # how long SQLite waits for another process that writes
ANSWER_S: Final = 5.0
_LOCK: Final = 7_245_101_904  # of PostgreSQL: a number that stands for the archive

# What a database that is away, locked for too long or without its tables raises. SQLAlchemy does
# not translate what a server says while a connection is made: it starts, or has too many.
ERRORS: Final = (
    *(sa.exc.SQLAlchemyError, asyncpg.PostgresError, asyncpg.InterfaceError),
    *(OSError, TimeoutError),
)

# SQLSTATE classes of what a statement was to write: it holds what the database cannot.
_OF_DATA: Final = ("21", "22", "23", "54")
_REFUSALS: Final = (sqlite3.DataError, sqlite3.IntegrityError, asyncpg.exceptions.DataError)


def refused(error: Exception) -> bool:
    """Whether an error is of the records that were folded, so that it would come again: the
    database cannot hold a value, or the fold has a defect. Else the database (or the log) is away,
    busy, full or without its tables, and the same may succeed later."""
    if isinstance(error, sa.exc.DBAPIError):
        state = getattr(error.orig, "sqlstate", None)
        if state:
            return str(state)[:2] in _OF_DATA
        # asyncpg itself refuses some values, by its own error under that of SQLAlchemy.
        causes = (error.orig, getattr(error.orig, "__cause__", None))
        return any(isinstance(cause, _REFUSALS) for cause in causes)
    if isinstance(error, sa.exc.StatementError):  # a value is of a wrong type
        return True
    return not isinstance(error, (*ERRORS, log_words.LogUnavailable))


def address(url: str) -> sa.URL:
    """The URL as SQLAlchemy takes it: `sqlite:///PATH`, or
    `postgresql://user:password@host:port/name`, with `?ca_file=PATH` for TLS.

    Raises:
        ValueError: it is neither.
    """
    try:
        found = sa.make_url(url)
    except sa.exc.ArgumentError:
        raise ValueError("not a URL") from None
    if found.drivername == "sqlite" and found.database:
        return found.set(drivername="sqlite+aiosqlite")
    if found.drivername == "postgresql" and found.host and found.database:
        if set(found.query) - {"ca_file"}:
            raise ValueError("only ca_file may follow the name")
        return found.set(drivername="postgresql+asyncpg")
    raise ValueError("neither sqlite:///PATH nor postgresql://user:password@host:port/name")


def engine(url: str, *, create: bool = False) -> AsyncEngine:
    """An engine. It connects at its first use.

    Args:
        create: make the file of a SQLite archive that is not there. A reader must not: an empty
            archive would look like one that has lost everything.
    """
    chosen = address(url)
    if chosen.get_backend_name() == "sqlite":
        mode = "rwc" if create else "rw"
        made = create_async_engine(
            sa.URL.create(
                "sqlite+aiosqlite",
                database=f"file:{chosen.database}",
                query={"mode": mode, "uri": "true"},
            ),
            connect_args={"timeout": BUSY_S},
            # A pool of its own kind would give a file's every thread a connection.
            poolclass=sa.pool.AsyncAdaptedQueuePool,
            pool_size=4,
        )
        _as_transactions(made)
        return made
    ca_file = chosen.query.get("ca_file")
    given: dict[str, Any] = {"timeout": ANSWER_S, "command_timeout": 60.0}
    if ca_file:
        given["ssl"] = ssl.create_default_context(cafile=str(ca_file))
    return create_async_engine(
        chosen.difference_update_query(["ca_file"]),
        connect_args=given,
        pool_size=4,
        pool_pre_ping=True,
    )


def searches(engine: AsyncEngine) -> bool:
    """Whether SQLite was built with FTS5, which an archive needs; True for other databases."""
    if engine.dialect.name != "sqlite":
        return True
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        return any("FTS5" in name for (name,) in connection.execute("PRAGMA compile_options"))


def is_there(engine: AsyncEngine) -> bool:
    """Whether a SQLite archive's file exists; True for other databases. A connection that fails
    leaves a thread behind for a moment, so readers ask first."""
    if engine.dialect.name != "sqlite":
        return True
    return Path((engine.url.database or "").removeprefix("file:")).exists()


def _as_transactions(made: AsyncEngine) -> None:
    """Have SQLite begin transactions where SQLAlchemy does. Python's module begins them late, at
    the first statement that writes, so that what was read before could be old."""

    @sa.event.listens_for(made.sync_engine, "connect")
    def connected(raw: Any, _: Any) -> None:
        raw.isolation_level = None
        cursor = raw.cursor()
        # A commit that power loss takes back takes its positions with it.
        for pragma in ("journal_mode=WAL", "synchronous=NORMAL"):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    @sa.event.listens_for(made.sync_engine, "begin")
    def begun(connection: sa.Connection) -> None:
        writes = connection.get_execution_options().get("writes")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


@contextlib.asynccontextmanager
async def writing(engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    """A transaction that writes. There is one at a time: what a response, its deletion and its
    conversation are together follows from the rows of all of them, in whichever order they come."""
    async with engine.connect() as connection:
        await connection.execution_options(writes=True)
        async with connection.begin():
            if engine.dialect.name == "postgresql":  # SQLite's file has a lock of its own
                await connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
            yield connection
