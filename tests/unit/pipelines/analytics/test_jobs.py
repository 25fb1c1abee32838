"""The jobs' SQL says the topics and columns that `jobs` says."""

from __future__ import annotations

import re

import pytest

from pipelines.analytics import jobs, programs
from tests.support import cases

SQL = programs.HERE / "sql"
TYPES = {"text": "STRING", "time": "TIMESTAMP_LTZ", "count": "BIGINT", "number": "DOUBLE"}


def columns(text: str, table: str) -> tuple[dict[str, str], list[str]]:
    """Columns with their types, and the key, of a table that a file creates."""
    body = re.search(rf"CREATE TABLE {table} \((.*?)\n\) WITH", text, re.DOTALL)
    assert body is not None
    found, key = {}, []
    for line in re.sub(r"--.*", "", body[1]).splitlines():
        if named := re.match(r"\s*PRIMARY KEY \((.*)\) NOT ENFORCED", line):
            key = [name.strip("` ") for name in named[1].split(",")]
        elif column := re.match(r"\s*`?(\w+)`? ([A-Z_]+)", line):
            found[column[1]] = column[2]
    return found, key


@cases.each(
    ("job", "result"),
    [
        pytest.param(job, result, id=result.name)
        for job, results in jobs.JOBS.items()
        for result in results
    ],
)
def test_a_table_has_the_columns_and_the_key_of_its_result(job: str, result: jobs.Result) -> None:
    text = (SQL / f"{job}.sql").read_text()
    found, key = columns(text, result.name)
    assert found == {name: TYPES[kind] for name, kind in result.columns.items()}
    assert tuple(key) == result.key
    assert f"'topic' = '${{prefix}}.{result.name}'" in text
    assert f"INSERT INTO {result.name}\n" in text


@cases.each("job", jobs.JOBS)
def test_all_sinks_of_a_job_write_transactions_of_their_own(job: str) -> None:
    text = (SQL / f"{job}.sql").read_text()
    sinks = len(jobs.JOBS[job])
    assert text.count("'connector' = 'upsert-kafka'") == sinks
    assert text.count("'sink.delivery-guarantee' = 'exactly-once'") == sinks
    prefixes = re.findall(r"'sink.transactional-id-prefix' = '(.*)'", text)
    assert len(set(prefixes)) == sinks


def test_every_file_is_a_job_or_the_tables() -> None:
    assert {path.stem for path in SQL.glob("*.sql")} == {*jobs.JOBS, jobs.TABLES}


@cases.each(
    ("found", "newest"),
    [
        ([], None),
        (["chk-9", "chk-10", "chk-2"], "chk-10"),
        (["shared", "taskowned", "chk-x"], None),
    ],
)
def test_the_newest_checkpoint_has_the_largest_number(found: list[str], newest: str | None) -> None:
    assert jobs.newest_checkpoint(found) == newest


def test_committed_sums_name_every_jar_once() -> None:
    lines = programs.SUMS.read_text().splitlines()
    sums = programs.locked_sums()
    assert len(sums) == len(lines) > 40
    assert all(re.fullmatch(r"[0-9a-f]{64}", value) for value in sums.values())
    assert f"flink-table-planner-loader-{programs.FLINK}.jar" in sums


def test_sessions_take_a_users_records_in_their_order() -> None:
    """With two tasks they came mixed from the look at copies, and a session began too late. A
    mini-batch gives a group's rows in the order of a hash table."""
    text = (SQL / "sessions.sql").read_text()
    assert "SET 'parallelism.default' = '1';" in text
    assert "mini-batch" not in text + (SQL / "tables.sql").read_text()
