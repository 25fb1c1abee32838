"""What is asked of ClickHouse, and what its answers mean. Whether its engine understands it is seen
in `tests/contract/test_clickhouse.py`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipelines import servers
from pipelines.analytics import clickhouse, jobs
from tailrace.log import Position
from tests.support.database_server import SECRET, DatabaseServer
from tests.support.results_contract import RESULT, TOPIC, T, change


@pytest.fixture
def opened(server: DatabaseServer, tmp_path: Path) -> Iterator[clickhouse.ClickHouse]:
    (tmp_path / "password").write_text("first\n")
    url = f"http://ada@{server.host}/results?password_file={tmp_path / 'password'}"
    database = clickhouse.ClickHouse(servers.parse(url))
    yield database
    database.close()


def test_tables_come_first_then_rows_and_last_the_position_behind_them(
    opened: clickhouse.ClickHouse, server: DatabaseServer
) -> None:
    """A kill between rows and position folds the rows again; the other way round it loses them."""
    opened.fold(RESULT, TOPIC, 2, [change(5, 1), change(7, None, "n"), change(8, 2)], Position(9))
    assert server.asked.pop(1).query["query"] == (
        "ALTER TABLE positions ADD COLUMN IF NOT EXISTS mark String"
    )
    made = [each.query["query"].split(" (")[0] for each in server.asked[: 1 + len(jobs.RESULTS)]]
    tables = ["positions", *(f'"{result.name}"' for result in jobs.RESULTS)]
    assert made == [f"CREATE TABLE IF NOT EXISTS {table}" for table in tables]
    rows, position = server.asked[1 + len(jobs.RESULTS) :]
    assert rows.query["query"] == 'INSERT INTO "latency_minutes" FORMAT JSONEachRow'
    assert [json.loads(line) for line in rows.body.splitlines()] == [
        {
            "minute": "2026-11-25 18:21:00.000",
            "model": "m",
            "first_tokens": 2,
            "first_token_p50_ms": 1.5,
            "first_token_p95_ms": 2.0,
            "first_token_p99_ms": None,
            "inter_tokens": 2,
            "inter_token_p50_ms": None,
            "inter_token_p95_ms": 0.25,
            "inter_token_p99_ms": 3.0,
            "record": 8,
            "deleted": 0,
        },
        {"minute": "2026-11-25 18:21:00.000", "model": "n", "record": 7, "deleted": 1},
    ]
    assert T == 1_795_630_860_000
    assert json.loads(position.body) == {"topic": TOPIC, "part": 2, "next": 9, "mark": ""}
    assert {each.query["database"] for each in server.asked} == {"results"}
    # Tables are made once; a batch may be all garbage.
    opened.fold(RESULT, TOPIC, 2, [], Position(12))
    assert [json.loads(each.body)["next"] for each in server.asked[-1:]] == [12]
    assert len(server.asked) == 1 + len(jobs.RESULTS) + 3


def test_the_password_is_read_for_each_request(
    opened: clickhouse.ClickHouse, server: DatabaseServer, tmp_path: Path
) -> None:
    opened.positions()
    (tmp_path / "password").write_text("second")
    opened.positions()
    assert {each.headers["X-ClickHouse-User"] for each in server.asked} == {"ada"}
    passwords = [each.headers["X-ClickHouse-Key"] for each in server.asked]
    assert set(passwords[:-1]) == {"first"}
    assert passwords[-1] == "second"


@pytest.mark.parametrize(
    ("status", "wanted"),
    [
        (400, servers.Refused),
        (403, servers.Refused),
        (404, servers.Refused),
        (429, servers.Unavailable),
        (500, servers.Unavailable),
        (503, servers.Unavailable),
    ],
)
def test_an_answer_that_is_no_success_is_an_error_with_its_code_and_without_rows(
    status: int, wanted: type[Exception], opened: clickhouse.ClickHouse, server: DatabaseServer
) -> None:
    server.statuses = [status]
    with pytest.raises(wanted, match=f"{status}, code 241") as error:
        opened.fold(RESULT, TOPIC, 0, [change(0, 1)], Position(1))
    assert SECRET.decode() not in str(error.value)


def test_a_server_that_is_away_is_unavailable() -> None:
    server = DatabaseServer()
    server.close()
    away = clickhouse.ClickHouse(servers.parse(f"http://{server.host}/d"))
    with pytest.raises(servers.Unavailable, match="does not answer"):
        away.positions()
    away.close()
