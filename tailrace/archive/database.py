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
# After how long a connection to a SQLite file is replaced. An open one goes on with the pages that
# it has read, and with a file that was moved away: damage and a restored file stay unnoticed.
REOPEN_S: Final = 5
_READ_ONLY: Final = "25006"  # SQLSTATE of a write that a standby refuses
_LOCK: Final = 7_245_101_904  # of PostgreSQL: a number that stands for the archive

# Errors of a database that is away, locked for too long or without its tables. SQLAlchemy does not
# translate a server's errors while a connection opens: it is starting, or has too many connections.
ERRORS: Final = (
    *(sa.exc.SQLAlchemyError, asyncpg.PostgresError, asyncpg.InterfaceError),
    *(OSError, TimeoutError),
)

# SQLSTATE classes of values that the database cannot hold.
_DATA_ERRORS: Final = ("21", "22", "23", "54")
_REFUSALS: Final = (sqlite3.DataError, sqlite3.IntegrityError, asyncpg.exceptions.DataError)


def is_data_error(error: Exception) -> bool:
    """Whether an error is caused by the folded records, so that it would occur again: the database
    cannot hold a value, or the fold has a defect. Else the database (or the log) is away, busy,
    full or without its tables, and a retry may succeed."""
    if isinstance(error, sa.exc.DBAPIError):
        state = getattr(error.orig, "sqlstate", None)
        if state:
            return str(state)[:2] in _DATA_ERRORS
        # asyncpg itself refuses some values, by its own error under that of SQLAlchemy.
        causes = (error.orig, getattr(error.orig, "__cause__", None))
        return any(isinstance(cause, _REFUSALS) for cause in causes)
    if isinstance(error, sa.exc.StatementError):  # a value has a wrong type
        return True
    return not isinstance(error, (*ERRORS, log_words.LogUnavailable))


def address(url: str) -> sa.URL:
    """The URL for SQLAlchemy: `sqlite:///PATH`, or
    `postgresql://user:password@host:port/name`, with `?ca_file=PATH` for TLS.

    Raises:
        ValueError: it is neither.
    """
    try:
        parsed = sa.make_url(url)
    except sa.exc.ArgumentError:
        raise ValueError("not a URL") from None
    if parsed.drivername == "sqlite" and parsed.database:
        return parsed.set(drivername="sqlite+aiosqlite")
    if parsed.drivername == "postgresql" and parsed.host and parsed.database:
        if set(parsed.query) - {"ca_file"}:
            raise ValueError("only ca_file may follow the name")
        return parsed.set(drivername="postgresql+asyncpg")
    raise ValueError("neither sqlite:///PATH nor postgresql://user:password@host:port/name")


def engine(url: str, *, create: bool = False) -> AsyncEngine:
    """An engine. It connects at its first use.

    Args:
        create: create the file of a SQLite archive if it is missing. A reader must not: an empty
            archive would look like one that has lost everything.
    """
    parsed = address(url)
    if parsed.get_backend_name() == "sqlite":
        mode = "rwc" if create else "rw"
        sqlite = create_async_engine(
            sa.URL.create(
                "sqlite+aiosqlite",
                database=f"file:{parsed.database}",
                query={"mode": mode, "uri": "true"},
            ),
            connect_args={"timeout": BUSY_S},
            # SQLAlchemy's default pool for files would give every thread a connection.
            poolclass=sa.pool.AsyncAdaptedQueuePool,
            pool_size=4,
            pool_recycle=REOPEN_S,
        )
        _begin_explicitly(sqlite)
        return sqlite
    ca_file = parsed.query.get("ca_file")
    arguments: dict[str, Any] = {"timeout": ANSWER_S, "command_timeout": 60.0}
    if ca_file:
        arguments["ssl"] = ssl.create_default_context(cafile=str(ca_file))
    postgres = create_async_engine(
        parsed.difference_update_query(["ca_file"]),
        connect_args=arguments,
        pool_size=4,
        pool_pre_ping=True,
    )
    sa.event.listen(postgres.sync_engine, "handle_error", _leave_replica)
    return postgres


def _leave_replica(context: sa.engine.ExceptionContext) -> None:
    """Close the connections to a server that may only be read: after a failover the address leads
    to another one."""
    if getattr(context.original_exception, "sqlstate", None) == _READ_ONLY:
        context.is_disconnect = True


def searches(engine: AsyncEngine) -> bool:
    """Whether SQLite was built with FTS5, which an archive needs; True for other databases."""
    if engine.dialect.name != "sqlite":
        return True
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        return any("FTS5" in name for (name,) in connection.execute("PRAGMA compile_options"))


def is_there(engine: AsyncEngine) -> bool:
    """Whether a SQLite archive's file exists; True for other databases. A connection that fails
    leaves a thread for a moment, so readers check first."""
    if engine.dialect.name != "sqlite":
        return True
    return Path((engine.url.database or "").removeprefix("file:")).exists()


def _begin_explicitly(engine_: AsyncEngine) -> None:
    """Make SQLite begin transactions where SQLAlchemy does. Python's module begins them late, at
    the first statement that writes, so earlier reads could be stale."""

    @sa.event.listens_for(engine_.sync_engine, "connect")
    def on_connect(raw: Any, _: Any) -> None:
        raw.isolation_level = None
        cursor = raw.cursor()
        # If power loss reverts a commit, it reverts its positions too.
        for pragma in ("journal_mode=WAL", "synchronous=NORMAL"):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    @sa.event.listens_for(engine_.sync_engine, "begin")
    def on_begin(connection: sa.Connection) -> None:
        writes = connection.get_execution_options().get("writes")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


@contextlib.asynccontextmanager
async def writing(engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    """A transaction that writes. Only one runs at a time: the state of a response, its deletion and
    its conversation follows from the rows of all of them, in any order."""
    async with engine.connect() as connection:
        await connection.execution_options(writes=True)
        async with connection.begin():
            if engine.dialect.name == "postgresql":  # SQLite's file has a lock of its own
                await connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
            yield connection
