"""The stores that results are read from: a file of DuckDB, or a database of ClickHouse.

Both answer the same query with the same rows, so the answer does not say which one it was.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pipelines import servers
from pipelines.clickhouse_client import Client
from pipelines.view import queries
from pipelines.view.plots import NoStore, Range, Reader, StoreBusy, StoreUnavailable

LOCKED_S: Final = 3.0
_PAUSE_S: Final = 0.05
QUERY_S: Final = 5.0
# Seconds to wait for an answer: a server that works ends a query before.
ANSWER_S: Final = 10.0
MAX_ROWS: Final = 5_000  # of a result; `queries` lead to about a thousand at most

# ClickHouse's error codes, and what helps. Which status comes with a code depends on its version.
_LOGIN: Final = (
    "ClickHouse refuses the login. The store's address names the user, and the file with the "
    "password."
)
_ADVICE: Final[Mapping[int, str]] = {
    60: "This database of ClickHouse has no results of analytics: either its name is wrong, or "
    "nothing was folded into it yet.",
    81: "ClickHouse has no database of the name that the store's address says.",
    164: "ClickHouse lets this user change no setting. Its profile has to say `readonly = 2`, or "
    "nothing of it.",
    192: _LOGIN,
    193: _LOGIN,
    194: _LOGIN,
    497: "This user of ClickHouse may not read the results: grant it SELECT on the database.",
    516: _LOGIN,
}
_TOO_SLOW: Final = 159


def open_reader(target: str) -> Reader:
    """The store of `--store`: a URL of ClickHouse (`servers.parse`), or the path of a file. Nothing
    is read yet.

    Raises:
        ValueError: the URL is none, or its `ca_file` holds no certificate.
        OSError: its `ca_file` cannot be read.
    """
    if "://" in target:
        return ResultServer(servers.parse(target))
    return ResultFile(Path(target))


class ResultFile:
    """A file of DuckDB. It is open for as long as queries take, and only to be read."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self, time_range: Range) -> dict[str, Any]:
        """See `Reader`. Raises NoStore, StoreBusy."""
        try:
            import duckdb  # an extra: only analytics need it
        except ImportError:
            raise NoStore(
                "DuckDB is not installed (pip install 'tailrace-pipelines[analytics]')."
            ) from None
        name = self._path.name
        if not self._path.is_file():
            raise NoStore(f"There is no store at {name}: analytics have not run yet.")
        db = self._open(duckdb)
        try:
            return _answer(
                time_range,
                queries.DUCKDB,
                lambda query, parameters: db.execute(query, parameters).fetchall(),
            )
        except duckdb.CatalogException:
            raise NoStore(f"{name} has no results of analytics.") from None
        finally:
            db.close()

    def close(self) -> None:
        """Nothing is open between reads."""

    def _open(self, duckdb: Any) -> Any:
        """The file, once no other process writes it. Raises StoreBusy, NoStore."""
        end = time.monotonic() + LOCKED_S
        while True:
            try:
                return duckdb.connect(str(self._path), read_only=True, config={"threads": 1})
            except duckdb.IOException as error:
                if "lock" not in str(error):
                    raise NoStore(f"{self._path.name} is not a store of analytics.") from error
                if time.monotonic() > end:
                    raise StoreBusy from error
            time.sleep(_PAUSE_S)


class ResultServer:
    """A database of ClickHouse. What is said of its errors has no part of the address."""

    def __init__(self, address: servers.Address) -> None:
        """Raises OSError, ValueError: `ca_file` cannot be used."""
        self._client = Client(address, answer_s=ANSWER_S)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def read(self, time_range: Range) -> dict[str, Any]:
        """See `Reader`. Raises NoStore, StoreUnavailable."""
        settings = {
            "max_execution_time": f"{QUERY_S:g}",
            "max_result_rows": str(MAX_ROWS),
            "result_overflow_mode": "throw",
        }
        try:
            return _answer(
                time_range,
                queries.CLICKHOUSE,
                lambda query, parameters: self._client.ask(query, parameters, settings),
            )
        except (servers.Refused, servers.Unavailable) as error:
            raise _store_error(error) from error
        except json.JSONDecodeError as error:
            raise StoreUnavailable(
                "What answers at the store's address is not ClickHouse."
            ) from error
        except OSError as error:
            raise NoStore(
                f"The file with the password for ClickHouse cannot be read: {error.strerror}."
            ) from error


def _store_error(error: servers.Refused | servers.Unavailable) -> NoStore | StoreUnavailable:
    """What a person is told."""
    if error.code in _ADVICE:
        return NoStore(_ADVICE[error.code])
    if error.code == _TOO_SLOW:
        return StoreUnavailable(
            f"ClickHouse did not answer a query within {QUERY_S:g} s. Ask for a shorter range."
        )
    kind = NoStore if isinstance(error, servers.Refused) else StoreUnavailable
    return kind(f"{error}.")


def _answer(
    time_range: Range,
    dialect: queries.Dialect,
    ask: Callable[[str, Mapping[str, int]], Iterable[Sequence[Any]]],
) -> dict[str, Any]:
    """The answers to all queries, in the shape that `Reader` says."""
    parameters = time_range._asdict()
    results = {}
    for name, (columns, query) in queries.RESULTS.items():
        rows = ask(queries.in_dialect(query, dialect), parameters)
        results[name] = {"columns": columns, "rows": [list(map(_plain, row)) for row in rows]}
    return {
        "from": time_range.since,
        "to": time_range.until,
        "step": time_range.step,
        "results": results,
    }


def _plain(value: Any) -> Any:
    """As JSON has it. Sums are decimals in DuckDB, and ClickHouse writes the number 2.0 as 2."""
    if value is None or isinstance(value, str | int):
        return value
    number = float(value)
    return int(number) if number.is_integer() else number
