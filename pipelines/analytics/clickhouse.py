"""The results in ClickHouse, over its HTTP interface.

A table for each topic of results, with the same columns and key, and two more: the record's offset
as the version of the row, and whether the record deletes its key. All records of a key are in one
partition, so of a key's rows the one with the highest offset is what the topic says. That is what
ReplacingMergeTree keeps, whatever the order and the number of inserts: rows that are inserted again
change nothing, neither after a kill nor by a second process. Until it has merged them, older rows
are there too; so whoever reads says FINAL.

A position is inserted behind the rows before it, with itself as its version: it never runs back.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

import httpx

from pipelines.analytics import jobs, results, twins

ANSWER_S: Final = 60.0
CONNECT_S: Final = 5.0
# A value of a column that is no part of the key may be missing.
_KEY_TYPES: Final[Mapping[str, str]] = {"text": "String", "time": "DateTime64(3, 'UTC')"}
_TYPES: Final[Mapping[str, str]] = {
    "text": "Nullable(String)",
    "time": "Nullable(DateTime64(3, 'UTC'))",
    "count": "Nullable(Int64)",
    "number": "Nullable(Float64)",
}
_SETTINGS: Final = {
    # The status says whether all of it succeeded: the answer is written when it is over.
    "wait_end_of_query": "1",
    "async_insert": "0",
    # A member that is no column is a defect of ours, and would be left out in silence.
    "input_format_skip_unknown_fields": "0",
    "output_format_json_quote_64bit_integers": "0",
}


class Unavailable(Exception):
    """The server does not answer, or not now. The text has a code and nothing of a row."""


class Refused(Exception):
    """The server will not do it: the credential, a right, the database or a table is wrong."""


class Address(NamedTuple):
    """Where the server is. `user`, `password_file` and `ca_file` may be empty."""

    url: str
    database: str
    user: str
    password_file: str
    ca_file: str


def parse(text: str) -> Address:
    """Read `http(s)://[user@]host:port/database[?password_file=PATH&ca_file=PATH]`.

    Raises:
        ValueError: it is none. The message repeats nothing of it.
    """
    parts = urlsplit(text)
    user, _, host = parts.netloc.rpartition("@")
    options = parse_qs(parts.query, strict_parsing=bool(parts.query))
    database = unquote(parts.path.removeprefix("/"))
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("expected http(s)://user@host:port/database")
    if ":" in user:
        raise ValueError("the password is in the file that password_file names, not in the URL")
    if not database or "/" in database or '"' in database or "\\" in database:
        raise ValueError("expected the name of a database behind the host")
    if options.keys() - {"password_file", "ca_file"}:
        raise ValueError("expected no other options than password_file and ca_file")
    return Address(
        f"{parts.scheme}://{host}/",
        database,
        unquote(user),
        options.get("password_file", [""])[-1],
        options.get("ca_file", [""])[-1],
    )


class ClickHouse:
    """One database on a server. Any number of processes may fold into it.

    Attributes:
        _made: the tables are there; they are made before the first use.
    """

    def __init__(self, address: Address) -> None:
        self._address = address
        self._made = False
        self._http = httpx.Client(
            timeout=httpx.Timeout(ANSWER_S, connect=CONNECT_S),
            verify=_trust(address.ca_file),
            trust_env=False,
        )

    def release(self) -> None:
        """Others can use it at any time."""

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def positions(self) -> dict[tuple[str, int], int]:
        """Topic and partition -> the next offset to be folded. Raises Unavailable, Refused."""
        self._make()
        found = self.ask("SELECT topic, part, next FROM positions FINAL")
        return {(topic, partition): place for topic, partition, place in found}

    def fold(
        self,
        result: jobs.Result,
        topic: str,
        partition: int,
        changes: Sequence[results.Change],
        behind: int,
    ) -> None:
        """Insert the changes of one partition, and then the position behind them. Raises
        Unavailable, Refused: some of them may be there."""
        self._make()
        # Of one key only the last change says what it is.
        last = {change.key: change for change in changes}
        if last:
            self._insert(result.name, [_row(result, change) for change in last.values()])
        place: dict[str, twins.Value] = {"topic": topic, "part": partition, "next": behind}
        self._insert("positions", [place])

    def rows(self, result: jobs.Result) -> twins.Rows:
        """The whole table, as the twins say it. Raises Unavailable, Refused."""
        self._make()
        names = [
            f'toUnixTimestamp64Milli("{name}")' if kind == "time" else f'"{name}"'
            for name, kind in result.columns.items()
        ]
        found = self.ask(f'SELECT {", ".join(names)} FROM "{result.name}" FINAL')  # noqa: S608  # nosec B608
        return {row[: result.keys]: row[result.keys :] for row in found}

    def ask(self, query: str) -> list[tuple[Any, ...]]:
        """The rows of a query. Raises Unavailable, Refused."""
        text = self.run(f"{query} FORMAT JSONCompactEachRow")
        return [tuple(json.loads(line)) for line in text.splitlines() if line]

    def run(self, query: str, body: bytes = b"") -> str:
        """The answer to a statement; `body` is the data of an insert. Raises Unavailable,
        Refused."""
        try:
            answer = self._http.post(
                self._address.url,
                params={"database": self._address.database, "query": query, **_SETTINGS},
                content=body,
                headers=self._login(),
            )
        except httpx.TransportError as error:
            raise Unavailable(f"ClickHouse does not answer: {type(error).__name__}") from error
        if answer.status_code == httpx.codes.OK:
            return answer.text
        # Its text may quote rows.
        code = answer.headers.get("X-ClickHouse-Exception-Code", "none")
        said = f"ClickHouse answered {answer.status_code}, code {code}"
        raise (Refused if answer.status_code in (400, 401, 403, 404) else Unavailable)(said)

    def _make(self) -> None:
        """Make the tables that are missing."""
        if self._made:
            return
        self.run(
            "CREATE TABLE IF NOT EXISTS positions (topic String, part UInt32, next UInt64) "
            "ENGINE = ReplacingMergeTree(next) ORDER BY (topic, part)"
        )
        for result in jobs.RESULTS:
            self.run(definition(result))
        self._made = True

    def _insert(self, table: str, rows: Iterable[Mapping[str, twins.Value]]) -> None:
        body = "\n".join(json.dumps(row) for row in rows)
        self.run(f'INSERT INTO "{table}" FORMAT JSONEachRow', body.encode())

    def _login(self) -> dict[str, str]:
        """Read for each request: whatever mounts the file may renew it."""
        if not self._address.user:
            return {}
        login = {"X-ClickHouse-User": self._address.user}
        if self._address.password_file:
            login["X-ClickHouse-Key"] = Path(self._address.password_file).read_text().strip()
        return login


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
    row = {name: _time(value) if kind == "time" else value for (name, kind), value in columns}
    return {**row, "record": change.offset, "deleted": int(change.values is None)}


def _time(value: twins.Value) -> twins.Value:
    """In the zone of the columns. A number would be read as seconds or as ms, by its size."""
    if not isinstance(value, int):
        return value
    return datetime.fromtimestamp(value / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def _trust(ca_file: str) -> Any:
    if not ca_file:
        return True
    import ssl

    return ssl.create_default_context(cafile=ca_file)
