"""The results in ClickHouse, over its HTTP interface.

A table for each topic of results, with the same columns and key, and two more: the record's offset
as the version of the row, and whether the record deletes its key. All records of a key are in one
partition, so of a key's rows the one with the highest offset is the topic's value.
ReplacingMergeTree retains that row, whatever the order and the number of inserts: rows that are
inserted again change nothing, neither after a kill nor by a second process. Until it has merged
them, older rows exist too, so readers use FINAL.

A position is inserted after its rows, with itself as its version: it never decreases.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from pipelines.analytics import jobs, results, twins
from pipelines.clickhouse_client import Client, moment
from pipelines.servers import Address
from tailrace.log import Mark, Position

# A value of a column outside the key may be missing.
_KEY_TYPES: Final[Mapping[str, str]] = {"text": "String", "time": "DateTime64(3, 'UTC')"}
_TYPES: Final[Mapping[str, str]] = {
    "text": "Nullable(String)",
    "time": "Nullable(DateTime64(3, 'UTC'))",
    "count": "Nullable(Int64)",
    "number": "Nullable(Float64)",
}


class ClickHouse(Client):
    """One database on a server. Any number of processes may fold into it.

    Attributes:
        _tables_exist: the tables were created; this happens before the first use.
    """

    def __init__(self, address: Address) -> None:
        super().__init__(address)
        self._tables_exist = False

    def release(self) -> None:
        """Others can use it at any time."""

    def positions(self) -> dict[tuple[str, int], Position]:
        """Topic and partition -> where the fold is. Raises Unavailable, Refused."""
        self._make()
        rows = self.ask("SELECT topic, part, next, mark FROM positions FINAL")
        return {
            (topic, part): Position(place, Mark.parse(mark)) for topic, part, place, mark in rows
        }

    def forget(self) -> None:
        """Delete all rows, and then the positions. Raises Unavailable, Refused: not all of them."""
        for table in (*(result.name for result in jobs.RESULTS), "positions"):
            self.run(f'TRUNCATE TABLE IF EXISTS "{table}"')

    def fold(
        self,
        result: jobs.Result,
        topic: str,
        partition: int,
        changes: Sequence[results.Change],
        position: Position,
    ) -> None:
        """Insert the changes of one partition, and then the position after them. Raises
        Unavailable, Refused: some of them may be stored."""
        self._make()
        # Of one key only the last change counts.
        last = {change.key: change for change in changes}
        if last:
            self.insert(result.name, [_row(result, change) for change in last.values()])
        place: dict[str, twins.Value] = {"topic": topic, "part": partition, "next": position.next}
        place["mark"] = str(position.mark or "")
        self.insert("positions", [place])

    def rows(self, result: jobs.Result) -> twins.Rows:
        """The whole table, in the form of the twins. Raises Unavailable, Refused."""
        self._make()
        names = [
            f'toUnixTimestamp64Milli("{name}")' if kind == "time" else f'"{name}"'
            for name, kind in result.columns.items()
        ]
        table = self.ask(f'SELECT {", ".join(names)} FROM "{result.name}" FINAL')  # noqa: S608  # nosec B608
        return {row[: result.keys]: row[result.keys :] for row in table}

    def _make(self) -> None:
        """Make the tables that are missing."""
        if self._tables_exist:
            return
        self.run(
            "CREATE TABLE IF NOT EXISTS positions (topic String, part UInt32, next UInt64) "
            "ENGINE = ReplacingMergeTree(next) ORDER BY (topic, part)"
        )
        # Of a table that a version without marks has made.
        self.run("ALTER TABLE positions ADD COLUMN IF NOT EXISTS mark String")
        for result in jobs.RESULTS:
            self.run(definition(result))
        self._tables_exist = True


def definition(result: jobs.Result) -> str:
    """The statement that makes a table, unless there is one: on a cluster, an operator makes it
    first, with a replicated engine."""
    columns = [
        f'"{name}" {(_KEY_TYPES if name in result.key else _TYPES)[kind]}'
        for name, kind in result.columns.items()
    ]
    key = ", ".join(f'"{name}"' for name in result.key)
    return (
        f'CREATE TABLE IF NOT EXISTS "{result.name}" '
        f"({', '.join(columns)}, record UInt64, deleted UInt8) "
        f"ENGINE = ReplacingMergeTree(record, deleted) ORDER BY ({key})"
    )


def _row(result: jobs.Result, change: results.Change) -> dict[str, twins.Value]:
    values = (*change.key, *(change.values or ()))
    columns = zip(result.columns.items(), values, strict=change.values is not None)
    row = {
        name: moment(value) if kind == "time" and isinstance(value, int) else value
        for (name, kind), value in columns
    }
    return {**row, "record": change.offset, "deleted": int(change.values is None)}
