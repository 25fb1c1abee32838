"""Outputs in a table of ClickHouse.

The source is the key and the output's offset the version of a row, so ReplacingMergeTree keeps the
latest output of a source, however often and in which order rows are inserted. Until it has merged
them older rows exist too: readers use FINAL.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from pipelines.clickhouse_client import Client, moment
from pipelines.servers import Address
from pipelines.sinks.outputs import Output
from pipelines.sinks.target import WriteResult


class Table:
    """One table, which is created before the first row is written."""

    def __init__(self, address: Address, name: str) -> None:
        self._client = Client(address)
        self._name = name
        self._table_exists = False

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def write(self, rows: Sequence[Output]) -> WriteResult:
        """See `target.Target`. A server that refuses one row refuses all of them."""
        if not self._table_exists:
            self._client.run(definition(self._name))
            self._table_exists = True
        self._client.insert(self._name, [_columns(row) for row in rows])
        return WriteResult()


def definition(name: str) -> str:
    """The statement that makes the table, unless there is one: on a cluster, an operator makes it
    first, with a replicated engine."""
    return (
        f'CREATE TABLE IF NOT EXISTS "{name}" (source String, answer String, response String, '
        "model String, revision String, reason String, detail String, input String, "
        "timestamp DateTime64(3, 'UTC'), version UInt64) "
        "ENGINE = ReplacingMergeTree(version) ORDER BY source"
    )


def _columns(row: Output) -> dict[str, str | int]:
    """All but the place; `answer` as JSON, empty for a dead letter."""
    answer = "" if row.answer is None else msgspec.json.encode(row.answer).decode()
    columns = row._asdict() | {"answer": answer, "timestamp": moment(row.timestamp)}
    del columns["place"]
    return columns
