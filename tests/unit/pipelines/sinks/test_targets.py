"""What is sent to OpenSearch and ClickHouse, and what their answers mean. Both are imitated: no
real server was there to try."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipelines import servers
from pipelines.sinks import clickhouse, opensearch
from pipelines.sinks.outputs import Output, of_record
from pipelines.sinks.target import WriteResult
from tailrace.log import Record
from tests.support import odd_values
from tests.support.database_server import SECRET, DatabaseServer


@pytest.fixture
def index(server: DatabaseServer, tmp_path: Path) -> Iterator[opensearch.Index]:
    (tmp_path / "password").write_text("first\n")
    url = f"opensearch+http://ada@{server.host}/re%2Bviews?password_file={tmp_path / 'password'}"
    made = opensearch.Index(servers.parse(url, schemes=["opensearch+http"]))
    yield made
    made.close()


@pytest.fixture
def table(server: DatabaseServer) -> Iterator[clickhouse.Table]:
    made = clickhouse.Table(servers.parse(f"http://{server.host}/results"), "reviews_output")
    yield made
    made.close()


def row(number: int, version: int = 0, answer: object = "yes") -> Output:
    source = f"in/0/{number}/1795632373843"
    text = ("resp_1", "m", "1-a", "", "", "", 1795632373900)
    return Output(source, answer, *text, version, f"out/0/{version}")


def test_a_document_stands_under_its_source(
    index: opensearch.Index, server: DatabaseServer
) -> None:
    assert index.write([row(1, 5, {"a": False}), row(2, 6, 0)]) == WriteResult()
    [asked] = server.asked
    assert asked.path == "/re%2Bviews/_bulk"
    assert asked.headers["Authorization"] == "Basic " + base64.b64encode(b"ada:first").decode()
    action, document, _, second = (json.loads(line) for line in asked.body.splitlines())
    place = "in/0/1/1795632373843"
    assert action == {"index": {"_id": place, "version": 5, "version_type": "external"}}
    assert document == {
        "source": place,
        "answer": {"a": False},
        "response": "resp_1",
        "model": "m",
        "revision": "1-a",
        "timestamp": 1795632373900,
    }
    assert second["answer"] == 0
    assert asked.body.endswith("\n")


def test_a_repeated_and_a_late_document_change_nothing(
    index: opensearch.Index, server: DatabaseServer
) -> None:
    index.write([row(1, 5, "new")])
    assert index.write([row(1, 5, "new"), row(1, 4, "old")]) == WriteResult()
    assert server.written == 1
    assert server.rows["in/0/1/1795632373843"][1]["answer"] == "new"


def test_each_document_of_an_answer_is_judged_for_itself(
    index: opensearch.Index, server: DatabaseServer
) -> None:
    kinds = [(429, "rejected"), (503, "unavailable"), (400, "mapper_parsing_exception")]
    for number, said in enumerate(kinds, 1):
        server.items[row(number).source] = [said]
    write_result = index.write([row(number) for number in range(5)])
    assert write_result.retries == (row(1), row(2))
    assert write_result.rejections == ((row(3), "mapper_parsing_exception"),)
    assert set(server.rows) == {row(0).source, row(4).source}


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (403, "security_exception"),
        (404, "index_not_found_exception"),
        (400, "index_closed_exception"),
        (403, "mapper_parsing_exception"),
    ],
)
def test_an_error_that_meets_every_document_is_none_of_a_row(
    status: int, kind: str, index: opensearch.Index, server: DatabaseServer
) -> None:
    server.items[row(1).source] = [(status, kind)]
    with pytest.raises(servers.Refused, match=f"{status}, {kind}"):
        index.write([row(1)])


@pytest.mark.parametrize(
    ("status", "wanted"),
    [
        (301, servers.Refused),
        (400, servers.Refused),
        (401, servers.Refused),
        (404, servers.Refused),
        (413, servers.Refused),
        (429, servers.Unavailable),
        (500, servers.Unavailable),
        (503, servers.Unavailable),
    ],
)
def test_an_answer_that_is_no_success_has_its_status_and_no_rows(
    status: int, wanted: type[Exception], index: opensearch.Index, server: DatabaseServer
) -> None:
    server.statuses = [status]
    with pytest.raises(wanted, match=str(status)) as error:
        index.write([row(1)])
    assert SECRET.decode() not in str(error.value)


@pytest.mark.parametrize(
    "answer",
    [
        b"<html>",
        b"{}",
        b'{"items": []}',
        b'{"items": [{"index": {"_id": "other", "status": 201}}]}',
        b'{"items": [{"create": {"_id": "in/0/1/1795632373843", "status": 201}}]}',
        b'{"items": [{"index": {"_id": "in/0/1/1795632373843", "error": {"type": "x"}}}]}',
    ],
)
def test_an_answer_that_does_not_say_it_of_each_document_is_no_success(
    answer: bytes, index: opensearch.Index, server: DatabaseServer
) -> None:
    server.answer = answer
    with pytest.raises(servers.Refused, match="the answer is"):
        index.write([row(1)])


def test_requests_are_bounded_and_the_password_is_read_for_each(
    index: opensearch.Index,
    server: DatabaseServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(opensearch, "BODY_BYTES", 700)
    index.write([row(1), row(2), row(3, answer="x" * 2_000), row(4)])
    sizes = [asked.body.count("\n") // 2 for asked in server.asked]
    assert sizes == [2, 1, 1]
    (tmp_path / "password").write_text("second")
    index.write([row(5)])
    assert base64.b64decode(server.asked[-1].headers["Authorization"][6:]) == b"ada:second"


def test_a_server_that_is_away_is_unavailable() -> None:
    server = DatabaseServer()
    server.close()
    url = f"opensearch+http://{server.host}/i"
    away = opensearch.Index(servers.parse(url, schemes=["opensearch+http"]))
    with pytest.raises(servers.Unavailable, match="ConnectError"):
        away.write([row(1)])
    away.close()


def test_the_table_is_made_once_and_keeps_the_latest_output(
    table: clickhouse.Table, server: DatabaseServer
) -> None:
    assert table.write([row(1, 5, {"a": [1]}), row(2, 6, None)]) == WriteResult()
    table.write([row(1, 4, "old")])
    made, first, _ = (asked.query["query"] for asked in server.asked)
    assert made.startswith('CREATE TABLE IF NOT EXISTS "reviews_output" (source String')
    assert made.endswith("ReplacingMergeTree(version) ORDER BY source")
    assert first == 'INSERT INTO "reviews_output" FORMAT JSONEachRow'
    assert {asked.query["database"] for asked in server.asked} == {"results"}
    place = "in/0/1/1795632373843"
    assert server.rows[place][1] == {
        "source": place,
        "answer": '{"a":[1]}',
        "response": "resp_1",
        "model": "m",
        "revision": "1-a",
        "reason": "",
        "detail": "",
        "input": "",
        "timestamp": "2026-11-25 18:46:13.900",
        "version": 5,
    }
    assert server.rows[row(2).source][1]["answer"] == ""


def test_a_table_that_was_not_made_is_made_at_the_next_write(
    table: clickhouse.Table, server: DatabaseServer
) -> None:
    server.statuses = [503]
    with pytest.raises(servers.Unavailable, match="503"):
        table.write([row(1)])
    table.write([row(1)])
    assert [asked.query["query"][:6] for asked in server.asked] == ["CREATE", "CREATE", "INSERT"]


def test_every_record_that_kafka_takes_is_a_row_that_both_can_hold(
    index: opensearch.Index, table: clickhouse.Table, server: DatabaseServer
) -> None:
    """A time that DateTime64 does not have ended the sink, again after each restart; an id of more
    than 512 bytes has OpenSearch refuse all rows of a request."""
    long = ("tailrace-source", b"x" * 600)
    odd = [*odd_values.records("out"), Record("out", 0, 10_000, 9, None, b"{}", (long,))]
    rows = [of_record(each) for each in odd]
    for each in rows:
        assert table.write([each]) == index.write([each]) == WriteResult()
    for asked in server.asked:
        for line in map(json.loads, asked.body.splitlines()):
            written = line.get("timestamp", "")
            assert isinstance(written, int) or written <= "2299-12-31 23:59:59.999"
            assert not written or isinstance(written, int) or written >= "1900-01-01 00:00:00.000"
            assert len(line.get("index", {}).get("_id", "")) <= 512
