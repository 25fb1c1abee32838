"""The results in an embedded database (DuckDB), for queries in SQL.

A table for each topic of results, with the same columns and key. A batch of changes and the offset
after it are one transaction of the database. So whenever the process dies, and however often the
topics are read again, a table equals its topic up to an offset.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import duckdb

from pipelines.analytics import jobs, results, twins
from tailrace.log import Mark, Position

LOCKED_S: Final = 20.0  # readers have it for less than a second
PAUSE_S: Final = 0.02

_TYPES: Final[Mapping[str, str]] = {
    "text": "VARCHAR",
    "time": "TIMESTAMP",
    "count": "BIGINT",
    "number": "DOUBLE",
}


class Store:
    """One database file. Only one process at a time may have it open, so it is opened when it is
    needed and `release` closes it.

    Attributes:
        _open: None while it is closed.
    """

    def __init__(self, path: Path | str) -> None:
        """Open it, and make the tables that are missing."""
        self._path = str(path)
        self._open: duckdb.DuckDBPyConnection | None = None
        self._db.execute(
            "CREATE TABLE IF NOT EXISTS positions (topic VARCHAR, part INTEGER, next BIGINT, "
            "PRIMARY KEY (topic, part))"
        )
        self._db.execute("ALTER TABLE positions ADD COLUMN IF NOT EXISTS mark VARCHAR DEFAULT ''")
        for result in jobs.RESULTS:
            columns = ", ".join(f'"{n}" {_TYPES[kind]}' for n, kind in result.columns.items())
            key = ", ".join(f'"{name}"' for name in result.key)
            self._db.execute(
                f'CREATE TABLE IF NOT EXISTS "{result.name}" ({columns}, PRIMARY KEY ({key}))'
            )

    @property
    def _db(self) -> duckdb.DuckDBPyConnection:
        """The open file. Waits for those who read it. Raises duckdb.IOException: for too long."""
        end = time.monotonic() + LOCKED_S
        while self._open is None:
            try:
                self._open = duckdb.connect(self._path)
                self._open.execute("SET TimeZone = 'UTC'")
            except duckdb.IOException as error:
                if "lock" not in str(error) or time.monotonic() > end:
                    raise
                time.sleep(PAUSE_S)
        return self._open

    def release(self) -> None:
        """Close the file, so that others can read it, until it is used again."""
        if self._open is not None:
            self._open.close()
            self._open = None

    def close(self) -> None:
        """Close the file."""
        self.release()

    def positions(self) -> dict[tuple[str, int], Position]:
        """Topic and partition -> where the fold is."""
        rows = self._db.execute("SELECT topic, part, next, mark FROM positions").fetchall()
        return {
            (topic, part): Position(place, Mark.parse(mark)) for topic, part, place, mark in rows
        }

    def forget(self) -> None:
        """Delete all rows and positions."""
        self._db.execute("BEGIN")
        try:
            for table in ("positions", *(result.name for result in jobs.RESULTS)):
                self._db.execute(f'DELETE FROM "{table}"')  # noqa: S608  # nosec B608
            self._db.execute("COMMIT")
        except BaseException:
            self._db.execute("ROLLBACK")
            raise

    def fold(
        self,
        result: jobs.Result,
        topic: str,
        partition: int,
        changes: Sequence[results.Change],
        position: Position,
    ) -> None:
        """Apply the changes of one partition, in order, up to `position`. Changes that were folded
        before have no effect."""
        self._db.execute("BEGIN")
        try:
            row = self._db.execute(
                "SELECT next FROM positions WHERE topic = ? AND part = ?", [topic, partition]
            ).fetchone()
            place = row[0] if row else 0
            if position.next > place:
                # Of one key only the last change counts.
                last = {c.key: c.values for c in changes if c.offset >= place}
                self._apply(result, last)
                self._db.execute(
                    "INSERT OR REPLACE INTO positions (topic, part, next, mark) "
                    "VALUES (?, ?, ?, ?)",
                    [topic, partition, position.next, str(position.mark or "")],
                )
            self._db.execute("COMMIT")
        except BaseException:
            self._db.execute("ROLLBACK")
            raise

    def rows(self, result: jobs.Result) -> twins.Rows:
        """The whole table, in the form of the twins."""
        names = [
            f'epoch_ms("{name}")' if kind == "time" else f'"{name}"'
            for name, kind in result.columns.items()
        ]
        table = self.ask(f'SELECT {", ".join(names)} FROM "{result.name}"')  # noqa: S608  # nosec B608
        return {row[: result.keys]: row[result.keys :] for row in table}

    def ask(self, query: str) -> list[tuple[Any, ...]]:
        """The rows of a query."""
        rows: list[tuple[Any, ...]] = self._db.execute(query).fetchall()
        return rows

    def _apply(
        self,
        result: jobs.Result,
        last: Mapping[tuple[twins.Value, ...], tuple[twins.Value, ...] | None],
    ) -> None:
        upserts = [self._row(result, (*key, *values)) for key, values in last.items() if values]
        deletions = [self._row(result, key) for key, values in last.items() if values is None]
        if upserts:
            marks = ", ".join("?" * len(result.columns))
            statement = f'INSERT OR REPLACE INTO "{result.name}" VALUES ({marks})'  # noqa: S608  # nosec B608
            self._db.executemany(statement, upserts)
        if deletions:
            where = " AND ".join(f'"{name}" = ?' for name in result.key)
            self._db.executemany(f'DELETE FROM "{result.name}" WHERE {where}', deletions)  # noqa: S608  # nosec B608

    def _row(self, result: jobs.Result, values: Sequence[twins.Value]) -> list[Any]:
        kinds = list(result.columns.values())
        return [
            datetime.fromtimestamp(value / 1000, UTC).replace(tzinfo=None)
            if kind == "time" and isinstance(value, int)
            else value
            for kind, value in zip(kinds, values, strict=False)
        ]
