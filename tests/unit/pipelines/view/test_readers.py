"""Results out of a real file, and what is asked of a server and said of its errors. Whether the
engine of ClickHouse answers as a file does is seen in `tests/contract/test_clickhouse.py`."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

pytest.importorskip("duckdb")
from pipelines.analytics import embedded, jobs
from pipelines.view import queries, readers
from pipelines.view.plots import NoStore, Range, StoreBusy, StoreUnavailable, range_of
from pipelines.view.readers import ResultFile
from tests.support.database_server import SECRET, DatabaseServer
from tests.support.view_results import HOUR, MINUTE, T, fill, fold, table


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("results") / "a.duckdb"
    result_store = embedded.Store(path)
    fill(result_store)
    result_store.close()
    return path


@pytest.fixture
def path(filled: Path, tmp_path: Path) -> Path:
    """A copy: to fill one takes a second."""
    return Path(shutil.copy(filled, tmp_path))


def test_the_largest_series_have_names_and_the_others_are_one(path: Path) -> None:
    rows = table(ResultFile(path).read(HOUR), "usage_by_model")
    assert [(r["time"] - T, r["series"]) for r in rows] == [
        (minute * MINUTE, name)
        for minute in (0, 1)
        for name in ("m3", "m4", "m5", "m6", "m7", None)
    ]
    assert rows[0] == {
        "time": T,
        "series": "m3",
        "responses": 2,
        "input_tokens": 60,
        "output_tokens": 6,
        "cached_tokens": 0,
        "cost_nano": 6_000,
        "priced": 2,
    }
    assert rows[5]["input_tokens"] == 2 * (10 + 20)
    by_tenant = table(ResultFile(path).read(HOUR), "usage_by_tenant")
    assert [(r["series"], r["input_tokens"]) for r in by_tenant] == [("", 280), ("shop", 280)] * 2


def test_minutes_of_a_step_are_one_row(path: Path) -> None:
    reader = ResultFile(path).read(Range(T, T + 60 * MINUTE, 2 * MINUTE))
    assert table(reader, "requests") == [
        {"time": T, "responses": 180, "failed": 3, "per_second": 1.5, "peak": 9},
        {
            "time": T + 2 * MINUTE,
            "responses": 7,
            "failed": None,
            "per_second": 7 / 120,
            "peak": None,
        },
    ]
    first = table(reader, "latency")[0]
    assert (first["first_token_p50_ms"], first["first_token_p95_ms"]) == (11.0, 20.0)
    assert table(reader, "latency")[1]["first_token_p95_ms"] is None
    assert len(table(reader, "latency")) == 2
    assert table(reader, "answers") == [
        {"time": T, "series": 'r: b\tä"d', "answers": 2},
        {"time": T, "series": "reviews: good", "answers": 7},
    ]


def test_sessions_are_counted_where_they_began_and_the_newest_are_listed(path: Path) -> None:
    reader = ResultFile(path).read(HOUR)
    assert sum(r["sessions"] for r in table(reader, "sessions")) == 60
    newest = table(reader, "latest_sessions")
    assert [r["subject"] for r in newest] == [f"u{n}" for n in range(59, 9, -1)]
    # One that began before it is listed if it was not over.
    early = ResultFile(path).read(Range(T, T + MINUTE, MINUTE))
    assert [r["subject"] for r in table(early, "latest_sessions")] == ["u0", "u-1", "u-2", "u-3"]


def test_an_empty_range_has_every_result_without_rows(path: Path) -> None:
    reader = ResultFile(path).read(range_of(T - 600 * MINUTE, T - 500 * MINUTE))
    assert list(reader["results"]) == list(queries.RESULTS)
    assert not any(told["rows"] for told in reader["results"].values())


def test_what_is_no_store_is_said_in_words(tmp_path: Path) -> None:
    with pytest.raises(NoStore, match="have not run yet"):
        ResultFile(tmp_path / "none.duckdb").read(HOUR)
    assert not (tmp_path / "none.duckdb").exists()
    (tmp_path / "text.duckdb").write_text("hello")
    with pytest.raises(NoStore, match=r"text.duckdb is not a store"):
        ResultFile(tmp_path / "text.duckdb").read(HOUR)
    import duckdb

    duckdb.connect(str(tmp_path / "other.duckdb")).close()
    with pytest.raises(NoStore, match="no results"):
        ResultFile(tmp_path / "other.duckdb").read(HOUR)


HOLD = """
import duckdb, sys
db = duckdb.connect(sys.argv[1], read_only=sys.argv[2] == "read")
print("open", flush=True)
input()
"""


@pytest.fixture(params=["write"])
def held(path: Path, request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    """Another process that has the file open, until its input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path), request.param],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        yield process
        process.kill()


def test_a_store_that_stays_open_elsewhere_is_busy(
    path: Path, held: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "LOCKED_S", 0.1)
    with pytest.raises(StoreBusy):
        ResultFile(path).read(HOUR)


@pytest.mark.parametrize("held", ["read"], indirect=True)
def test_readers_do_not_shut_each_other_out(path: Path, held: subprocess.Popen[str]) -> None:
    assert held.poll() is None
    assert table(ResultFile(path).read(HOUR), "requests")


def test_reader_and_folder_wait_for_each_other(path: Path, held: subprocess.Popen[str]) -> None:
    found: list[dict[str, Any]] = []
    reading = threading.Thread(target=lambda: found.append(ResultFile(path).read(HOUR)))
    reading.start()
    assert held.stdin is not None
    held.stdin.close()
    reading.join()
    assert table(found[0], "requests")
    # A store that was released is opened again when it is used.
    folder = embedded.Store(path)
    assert folder.positions()
    folder.release()
    assert table(ResultFile(path).read(HOUR), "requests")
    fold(folder, jobs.REQUEST_MINUTES, {(T,): (121, 3, 2.0, 9)})
    folder.close()


@pytest.mark.parametrize("held", ["read"], indirect=True)
def test_a_folder_waits_for_a_reader(path: Path, held: subprocess.Popen[str]) -> None:
    positions: list[Any] = []

    def folding() -> None:
        result_store = embedded.Store(path)
        positions.append(result_store.positions())
        result_store.close()

    thread = threading.Thread(target=folding)
    thread.start()
    thread.join(0.3)
    assert positions == []
    assert held.stdin is not None
    held.stdin.close()
    thread.join()
    assert positions[0]


@pytest.fixture
def url(server: DatabaseServer, tmp_path: Path) -> str:
    (tmp_path / "password").write_text("hidden\n")
    return f"http://ada@{server.host}/results?password_file={tmp_path / 'password'}"


def asked_of(url: str) -> dict[str, Any]:
    with contextlib.closing(readers.open_reader(url)) as reader:
        return reader.read(HOUR)


def test_a_server_is_asked_with_bound_times_and_bounds(url: str, server: DatabaseServer) -> None:
    """Neither a time nor a step is part of a text, and each table is read without older rows."""
    found = asked_of(url)
    assert list(found["results"]) == list(queries.RESULTS)
    assert (found["from"], found["to"], found["step"]) == HOUR
    assert len(server.asked) == len(queries.RESULTS)
    for each in server.asked:
        told, query = each.query, each.query["query"]
        assert told["database"] == "results"
        assert (each.headers["X-ClickHouse-User"], each.headers["X-ClickHouse-Key"]) == (
            "ada",
            "hidden",
        )
        bound = {name: told[f"param_{name}"] for name in re.findall(r"{(\w+):Int64}", query)}
        assert bound == {
            "since": str(T),
            "until": str(T + 60 * MINUTE),
            "step": str(MINUTE),
        }
        assert not any(value in query for value in bound.values())
        assert told["max_execution_time"] == "5"
        assert told["max_result_rows"] == "5000"
        assert told["result_overflow_mode"] == "throw"
        tables = [result.name for result in jobs.RESULTS]
        read = re.findall(rf"FROM ({'|'.join(tables)})\b(.{{6}})", query)
        assert read
        assert {behind for _, behind in read} <= {" FINAL"}
        assert not re.search(r"\b(ROWS_OF|MS|STEP_OF|STEP|SINCE|UNTIL|NAME)\b", query)


@pytest.mark.parametrize(
    ("status", "code", "error", "words"),
    [
        (403, 516, NoStore, "refuses the login"),
        (401, 194, NoStore, "refuses the login"),
        (404, 60, NoStore, "has no results"),
        (404, 81, NoStore, "has no database"),
        (500, 497, NoStore, "grant it SELECT"),
        (403, 497, NoStore, "grant it SELECT"),
        (500, 164, NoStore, "readonly = 2"),
        (400, 36, NoStore, "answered 400, code 36"),
        (500, 159, StoreUnavailable, "shorter range"),
        (500, 241, StoreUnavailable, "answered 500, code 241"),
        (429, 0, StoreUnavailable, "answered 429"),
        (503, 0, StoreUnavailable, "answered 503"),
    ],
)
def test_an_error_of_a_server_is_said_in_words_without_its_text(
    status: int,
    code: int,
    error: type[Exception],
    words: str,
    url: str,
    server: DatabaseServer,
) -> None:
    server.statuses, server.code = [status], code
    with pytest.raises(error, match=words) as raised:
        asked_of(url)
    for secret in (SECRET.decode(), "hidden", "ada", server.host, "password_file"):
        assert secret not in str(raised.value)
    assert len(server.asked) == 1


def test_a_server_that_is_away_is_unavailable(url: str, server: DatabaseServer) -> None:
    server.close()
    with pytest.raises(StoreUnavailable, match=r"^ClickHouse does not answer: ConnectError\.$"):
        asked_of(url)


def test_another_server_is_not_taken_for_a_store(
    url: str, server: DatabaseServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "done", lambda _: b"<p>hello</p>")
    with pytest.raises(StoreUnavailable, match="is not ClickHouse"):
        asked_of(url)


def test_a_password_that_is_not_there_is_said_without_its_place(
    url: str, server: DatabaseServer, tmp_path: Path
) -> None:
    (tmp_path / "password").unlink()
    with pytest.raises(NoStore, match="password") as error:
        asked_of(url)
    assert str(tmp_path) not in str(error.value)
    assert server.asked == []


def test_whole_numbers_are_written_alike(
    url: str, path: Path, server: DatabaseServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ClickHouse writes the number 2.0 as 2, and DuckDB's sums are decimals."""
    import duckdb

    large = 2**53 + 1  # no double
    row = f'[2, 2.0, 2, 2.5, null, "2", {large}, 1e300]'.encode()
    monkeypatch.setattr(server, "done", lambda _: row)
    file = Mock()
    file.execute().fetchall.return_value = [(2, 2.0, Decimal(2), 2.5, None, "2", large, 1e300)]
    monkeypatch.setattr(duckdb, "connect", lambda *_, **__: file)
    for found in (asked_of(url), ResultFile(path).read(HOUR)):
        for told in found["results"].values():
            assert repr(told["rows"]) == repr([[2, 2, 2, 2.5, None, "2", large, int(1e300)]])


def test_another_target_is_a_file(path: Path) -> None:
    assert table(readers.open_reader(str(path)).read(HOUR), "requests")
    with pytest.raises(ValueError, match="expected"):
        readers.open_reader("clickhouse://h/d")
