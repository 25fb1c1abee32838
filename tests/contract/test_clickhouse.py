"""The store of results in ClickHouse, what the admin page reads of it, and the table of a sink:
statements, on its own engine.

On a server that runs (`TAILRACE_TEST_CLICKHOUSE`, a URL as in TAILRACE_ANALYTICS_STORE, with a
database that may be filled), or on the engine embedded behind a small front
(`tests/support/chdb_front.py`; `TAILRACE_TEST_CHDB_PYTHON`, the path of a Python that has it).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import aiokafka
import msgspec
import pytest

from pipelines import servers
from pipelines.analytics import clickhouse, jobs, results, twins
from pipelines.sinks import clickhouse as sink_tables
from pipelines.sinks.outputs import Output, of_record
from pipelines.view import plots, readers
from tailrace.log import Position
from tests.support import chdb_front_process, odd_values, view_results, waiting
from tests.support.results_contract import RESULT, TOPIC, ResultStoreContract, change, row

URL: Final = os.environ.get("TAILRACE_TEST_CLICKHOUSE", "")
KILLS: Final = 3
MINUTES: Final = 30

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(
        not URL and not chdb_front_process.PYTHON,
        reason="ClickHouse is NOT tested: neither TAILRACE_TEST_CLICKHOUSE nor "
        "TAILRACE_TEST_CHDB_PYTHON is set",
    ),
]


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[chdb_front_process.ChdbFront]:
    if not chdb_front_process.PYTHON:
        pytest.skip("needs TAILRACE_TEST_CHDB_PYTHON")
    made = chdb_front_process.ChdbFront(tmp_path_factory.mktemp("chdb"))
    made.start()
    yield made
    made.kill()


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    return URL or str(request.getfixturevalue("front").url)


@pytest.fixture
def opened(url: str) -> Iterator[clickhouse.ClickHouse]:
    made = clickhouse.ClickHouse(servers.parse(url))
    for table in ("positions", *(result.name for result in jobs.RESULTS)):
        made.run(f"DROP TABLE IF EXISTS {table}")
    yield made
    made.close()


class TestClickHouse(ResultStoreContract):
    """The contract of both stores."""

    def test_two_processes_fold_the_same_topic_and_the_slow_one_changes_nothing(
        self, opened: clickhouse.ClickHouse, url: str
    ) -> None:
        second = clickhouse.ClickHouse(servers.parse(url))
        topic = [change(0, 1), change(1, 2), change(2, None), change(3, 4, "n")]
        opened.fold(RESULT, TOPIC, 0, topic, Position(4))
        for offset in range(3):
            second.fold(RESULT, TOPIC, 0, topic[offset : offset + 1], Position(offset + 1))
            assert opened.rows(RESULT) == second.rows(RESULT) == results.rows(topic)
            assert opened.positions() == {(TOPIC, 0): Position(4)}
        second.close()

    def test_what_was_merged_away_does_not_come_back(self, opened: clickhouse.ClickHouse) -> None:
        """OPTIMIZE does at once what the server does some time: only the newest row is left."""
        topic = [change(0, 1), change(1, 2, "n"), change(2, None), change(3, 3, "n")]
        opened.fold(RESULT, TOPIC, 0, topic, Position(4))
        opened.run(f"OPTIMIZE TABLE {RESULT.name} FINAL")
        opened.fold(RESULT, TOPIC, 0, topic[:2], Position(2))
        assert opened.rows(RESULT) == results.rows(topic)

    def test_a_statement_that_is_wrong_says_no_more_than_its_code(
        self, opened: clickhouse.ClickHouse
    ) -> None:
        opened.positions()
        secret = results.Change(0, 0, (0, "m"), ("a secret", *row(1)[1:]))
        with pytest.raises((servers.Refused, servers.Unavailable)) as refused:
            opened.fold(RESULT, TOPIC, 0, [secret], Position(1))
        assert "code" in str(refused.value)
        assert "secret" not in str(refused.value)
        assert opened.positions() == {}


def test_a_table_of_a_sink_keeps_the_latest_output_of_a_row(
    opened: clickhouse.ClickHouse, url: str
) -> None:
    opened.run("DROP TABLE IF EXISTS a_pipeline_output")
    table = sink_tables.Table(servers.parse(url), "a_pipeline_output")
    text = ("resp_1", "m", "1-a", "", "", "", 1_795_632_373_900)
    old, new = (Output("in/0/1/9", {"v": v}, *text, v, f"out/0/{v}") for v in (3, 5))
    dead = Output("in/0/2/9", None, "", "", "1-a", "schema", "$", 'x "\\ é', text[-1], 4, "d/0/4")
    table.write([old, dead])
    table.write([new])
    table.write([old, dead])
    query = (
        "SELECT source, JSONExtractInt(answer, 'v'), input, toUnixTimestamp64Milli(timestamp), "
        "version FROM a_pipeline_output FINAL ORDER BY source"
    )
    wanted = [
        ("in/0/1/9", 5, "", text[-1], 5),
        ("in/0/2/9", 0, dead.input, text[-1], 4),
    ]
    assert opened.ask(query) == wanted
    opened.run("OPTIMIZE TABLE a_pipeline_output FINAL")
    table.write([old])
    assert opened.ask(query) == wanted
    table.close()


def test_a_table_of_a_sink_holds_every_record_that_kafka_takes(
    opened: clickhouse.ClickHouse, url: str
) -> None:
    opened.run("DROP TABLE IF EXISTS odd_output")
    table = sink_tables.Table(servers.parse(url), "odd_output")
    rows = [of_record(each) for each in odd_values.records("out")]
    table.write(rows)
    [[found]] = opened.ask("SELECT count() FROM odd_output FINAL")
    assert found == len({row.source for row in rows})
    table.close()


def test_the_admin_page_reads_the_same_out_of_a_file(
    opened: clickhouse.ClickHouse, url: str, tmp_path: Path
) -> None:
    """Older rows of a key, which the server has not merged away, count in neither."""
    embedded = pytest.importorskip("pipelines.analytics.embedded")
    opened.positions()
    for result in jobs.RESULTS:
        opened.run(f"SYSTEM STOP MERGES {result.name}")
    path = str(tmp_path / "a.duckdb")
    file = embedded.Store(path)
    for store in (file, opened):
        view_results.fill(store)
    file.close()
    [[there]] = opened.ask("SELECT count() FROM usage_minutes")
    [[kept]] = opened.ask("SELECT count() FROM usage_minutes FINAL")
    assert there > kept
    with contextlib.closing(readers.open_reader(url)) as server:
        for asked in view_results.RANGES:
            wanted, found = readers.open_reader(path).read(asked), server.read(asked)
            for name, result in wanted["results"].items():
                assert found["results"][name] == result, name
                assert result["rows"] or asked is view_results.EMPTY
            assert json.dumps(found) == json.dumps(wanted)


def test_the_admin_page_says_what_is_missing(
    opened: clickhouse.ClickHouse, url: str, front: chdb_front_process.ChdbFront
) -> None:
    """The engine's codes are those that have words."""
    for target, words in (
        (url, "has no results of analytics"),
        (url.replace("/analytics?", "/nowhere?"), "has no database"),
    ):
        with (
            contextlib.closing(readers.open_reader(target)) as server,
            pytest.raises(plots.NoStore, match=words),
        ):
            server.read(view_results.HOUR)


def test_a_query_that_takes_too_long_ends(
    opened: clickhouse.ClickHouse, url: str, front: chdb_front_process.ChdbFront
) -> None:
    """With the code that has words, and no row of it."""
    with pytest.raises((servers.Unavailable, servers.Refused)) as ended:
        opened.ask(
            "SELECT sum(cityHash64(number)) FROM numbers({n:Int64})",
            {"n": 1 << 50},
            {"max_execution_time": "1"},
        )
    assert ended.value.code == 159


def test_the_password_is_read_again(
    opened: clickhouse.ClickHouse, front: chdb_front_process.ChdbFront
) -> None:
    front.accept("another")
    with pytest.raises(servers.Refused, match="403"):
        opened.positions()
    front.password_file.write_text("another\n")
    assert opened.positions() == {}


def test_an_engine_that_was_killed_has_what_it_acknowledged(
    opened: clickhouse.ClickHouse, front: chdb_front_process.ChdbFront
) -> None:
    topic = [change(n, n, f"m{n % 7}") for n in range(50)]
    opened.fold(RESULT, TOPIC, 0, topic[:40], Position(40))
    front.kill()
    with pytest.raises(servers.Unavailable, match="ConnectError"):
        opened.fold(RESULT, TOPIC, 0, topic[40:], Position(50))
    front.start()
    assert opened.positions() == {(TOPIC, 0): Position(40)}
    opened.fold(RESULT, TOPIC, 0, topic[40:], Position(50))
    assert opened.rows(RESULT) == results.rows(topic)


async def test_a_process_that_is_killed_folds_the_committed_results_of_kafka(
    opened: clickhouse.ClickHouse, url: str, kafka: str
) -> None:
    """Results are in transactions, some of which are aborted: those are never seen."""
    await results.create_topics(kafka, "chtest")
    drawn = random.Random(3)
    for batch in range(12):
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=kafka, transactional_id="clickhouse-test"
        )
        await producer.start()
        await producer.begin_transaction()
        for result in jobs.RESULTS:
            for _ in range(10):
                said = _said(result, drawn, aborted=batch % 3 == 2)
                await producer.send_and_wait(result.topic("chtest"), key=said[0], value=said[1])
        if batch % 3 == 2:
            await producer.abort_transaction()
        else:
            await producer.commit_transaction()
        await producer.stop()
    command = [sys.executable, "-m", "pipelines.analytics.store", "--kafka", kafka]
    command += ["--prefix", "chtest"]
    environment = {**os.environ, "TAILRACE_ANALYTICS_STORE": url}
    for kill in range(KILLS):
        process = subprocess.Popen(command, env=environment)
        await _until(lambda kill=kill: _folded(opened) > kill)  # type: ignore[misc]
        process.kill()
        process.wait()
    once = await asyncio.create_subprocess_exec(*command, "--once", env=environment)
    assert await once.wait() == 0
    for result in jobs.RESULTS:
        wanted = results.rows(await results.changes(kafka, result, "chtest"))
        assert wanted
        found = opened.rows(result)
        assert twins.differences(wanted, found) == []
        assert all(-1 not in values for values in found.values()), "of an aborted transaction"


def _folded(opened: clickhouse.ClickHouse) -> int:
    return sum(at.next for at in opened.positions().values())


async def _until(condition: Callable[[], bool]) -> None:
    await waiting.eventually(condition, "rows are folded", within_s=60)


def _said(result: jobs.Result, drawn: random.Random, *, aborted: bool) -> tuple[bytes, bytes]:
    """A record as the jobs write it."""
    row: dict[str, object] = {
        name: {
            "text": drawn.choice("abc"),
            "time": f"2026-11-25T10:{drawn.randrange(MINUTES):02}:00Z",
            "count": -1 if aborted else drawn.randrange(1000),
            "number": drawn.choice((None, 0.5, 12.25)),
        }[kind]
        for name, kind in result.columns.items()
    }
    key = {name: row[name] for name in result.key}
    return msgspec.json.encode(key), msgspec.json.encode(row)
