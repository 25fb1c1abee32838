"""The results of a time range, out of a real store."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("duckdb")
from pipelines.analytics import embedded, jobs, results, twins
from pipelines.view import plots, queries
from pipelines.view.plots import NoStore, Plots, Range, StoreBusy, range_of

MINUTE = 60_000
T = 1_795_630_800_000  # 18:20 UTC
HOUR = Range(T, T + 60 * MINUTE, MINUTE)


def fold(made: embedded.Store, result: jobs.Result, rows: twins.Rows) -> None:
    changes = [results.Change(0, at, *row) for at, row in enumerate(rows.items())]
    made.fold(result, f"a.{result.name}", 0, changes, len(changes))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Two tenants and seven models in two minutes, and something outside of the hour."""
    made = embedded.Store(tmp_path / "a.duckdb")
    usage: twins.Rows = {
        (T + minute * MINUTE, f"m{model}", tenant): (1, model * 10, model, 0, model * 1000, 1)
        for minute in (0, 1, 60)
        for model in range(1, 8)
        for tenant in ("", "shop")
    }
    fold(made, jobs.USAGE_MINUTES, usage)
    late = T + 60 * MINUTE
    fold(
        made,
        jobs.REQUEST_MINUTES,
        {
            (T,): (120, 3, 2.0, 9),
            (T + MINUTE,): (60, 0, 1.0, 5),
            (late,): (600, 9, 10.0, 50),
            (T - MINUTE,): (600, 9, 10.0, 50),
        },
    )
    fold(
        made,
        jobs.LATENCY_MINUTES,
        {
            (T, "m1"): (5, 10.0, 20.0, 30.0, 9, 1.0, 2.0, 3.0),
            (T + MINUTE, "m1"): (5, 11.0, 19.0, 31.0, 9, 1.5, 1.0, 3.0),
            (T + MINUTE, "m2"): (5, 50.0, None, 31.0, 9, 1.5, 1.0, 3.0),
            (late, "m9"): (500, 50.0, None, 31.0, 9, 1.5, 1.0, 3.0),
        },
    )
    sessions: twins.Rows = {
        ("i", "shop", f"u{n}", T + n * MINUTE): (T + (n + 5) * MINUTE, n, n, n, n)
        for n in range(-3, 70)
    }
    fold(made, jobs.SESSIONS, sessions)
    fold(
        made,
        jobs.ANSWER_MINUTES,
        {
            (T, "reviews", "good"): (7, 1, 1),
            (T, "r", "bad"): (2, 1, 1),
            (late, "r", "bad"): (9, 1, 1),
        },
    )
    made.close()
    return tmp_path / "a.duckdb"


def table(found: dict[str, Any], name: str) -> list[dict[str, Any]]:
    told = found["results"][name]
    return [dict(zip(told["columns"], row, strict=True)) for row in told["rows"]]


def test_a_step_keeps_a_range_bounded() -> None:
    assert range_of(T, T + 60 * MINUTE) == HOUR
    assert range_of(T + 1, T + 60 * MINUTE - 1) == HOUR
    assert range_of(T, T + 24 * 60 * MINUTE).step == 10 * MINUTE
    for minutes in (1, 180, 181, 1_440, 10_080, plots.MAX_MINUTES):
        asked = range_of(T + 17, T + 17 + minutes * MINUTE)
        assert (asked.until - asked.since) / asked.step <= plots.MAX_POINTS + 1
        assert asked.since <= T + 17 < T + 17 + minutes * MINUTE <= asked.until


@pytest.mark.parametrize(
    ("since", "until"),
    [
        (T, T),
        (T, T - 1),
        (T, T + (plots.MAX_MINUTES + 1) * MINUTE),
        (-MINUTE, 0),
        (1 << 50, (1 << 50) + MINUTE),
    ],
)
def test_ranges_that_are_none(since: int, until: int) -> None:
    with pytest.raises(ValueError, match="it "):
        range_of(since, until)


def test_the_largest_series_have_names_and_the_others_are_one(path: Path) -> None:
    rows = table(plots.read(path, HOUR), "usage_by_model")
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
    by_tenant = table(plots.read(path, HOUR), "usage_by_tenant")
    assert [(r["series"], r["input_tokens"]) for r in by_tenant] == [("", 280), ("shop", 280)] * 2


def test_minutes_of_a_step_are_one_row(path: Path) -> None:
    found = plots.read(path, Range(T, T + 60 * MINUTE, 2 * MINUTE))
    assert table(found, "requests") == [
        {"time": T, "responses": 180, "failed": 3, "per_second": 1.5, "peak": 9}
    ]
    first = table(found, "latency")[0]
    assert (first["first_token_p50_ms"], first["first_token_p95_ms"]) == (11.0, 20.0)
    assert table(found, "latency")[1]["first_token_p95_ms"] is None
    assert len(table(found, "latency")) == 2
    assert table(found, "answers") == [
        {"time": T, "series": "r: bad", "answers": 2},
        {"time": T, "series": "reviews: good", "answers": 7},
    ]


def test_sessions_are_counted_where_they_began_and_the_newest_are_listed(path: Path) -> None:
    found = plots.read(path, HOUR)
    assert sum(r["sessions"] for r in table(found, "sessions")) == 60
    newest = table(found, "latest_sessions")
    assert [r["subject"] for r in newest] == [f"u{n}" for n in range(59, 9, -1)]
    # One that began before it is listed if it was not over.
    early = plots.read(path, Range(T, T + MINUTE, MINUTE))
    assert [r["subject"] for r in table(early, "latest_sessions")] == ["u0", "u-1", "u-2", "u-3"]


def test_an_empty_range_has_every_result_without_rows(path: Path) -> None:
    found = plots.read(path, range_of(T - 600 * MINUTE, T - 500 * MINUTE))
    assert list(found["results"]) == list(queries.RESULTS)
    assert not any(told["rows"] for told in found["results"].values())


def test_what_is_no_store_is_said_in_words(tmp_path: Path) -> None:
    with pytest.raises(NoStore, match="have not run yet"):
        plots.read(tmp_path / "none.duckdb", HOUR)
    assert not (tmp_path / "none.duckdb").exists()
    (tmp_path / "text.duckdb").write_text("hello")
    with pytest.raises(NoStore, match=r"text.duckdb is not a store"):
        plots.read(tmp_path / "text.duckdb", HOUR)
    import duckdb

    duckdb.connect(str(tmp_path / "other.duckdb")).close()
    with pytest.raises(NoStore, match="no results"):
        plots.read(tmp_path / "other.duckdb", HOUR)


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
    monkeypatch.setattr(plots, "LOCKED_S", 0.1)
    with pytest.raises(StoreBusy):
        plots.read(path, HOUR)


@pytest.mark.parametrize("held", ["read"], indirect=True)
def test_readers_do_not_shut_each_other_out(path: Path, held: subprocess.Popen[str]) -> None:
    assert held.poll() is None
    assert table(plots.read(path, HOUR), "requests")


def test_reader_and_folder_wait_for_each_other(path: Path, held: subprocess.Popen[str]) -> None:
    found: list[dict[str, Any]] = []
    reading = threading.Thread(target=lambda: found.append(plots.read(path, HOUR)))
    reading.start()
    assert held.stdin is not None
    held.stdin.close()
    reading.join()
    assert table(found[0], "requests")
    # A store that was released is opened again when it is used.
    folder = embedded.Store(path)
    assert folder.positions()
    folder.release()
    assert table(plots.read(path, HOUR), "requests")
    fold(folder, jobs.REQUEST_MINUTES, {(T,): (121, 3, 2.0, 9)})
    folder.close()


@pytest.mark.parametrize("held", ["read"], indirect=True)
def test_a_folder_waits_for_a_reader(path: Path, held: subprocess.Popen[str]) -> None:
    positions: list[Any] = []

    def folding() -> None:
        made = embedded.Store(path)
        positions.append(made.positions())
        made.close()

    thread = threading.Thread(target=folding)
    thread.start()
    thread.join(0.3)
    assert positions == []
    assert held.stdin is not None
    held.stdin.close()
    thread.join()
    assert positions[0]


async def test_a_range_is_read_once_for_many(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Range] = []

    def counted(_: Path, asked: Range) -> dict[str, Any]:
        read.append(asked)
        return {"n": len(read)}

    monkeypatch.setattr(plots, "read", counted)
    clock = [0.0]
    of = Plots(path, lambda: clock[0]).of
    assert await asyncio.gather(*(of(HOUR) for _ in range(5))) == [{"n": 1}] * 5
    other = HOUR._replace(step=2 * MINUTE)
    assert await of(other) == {"n": 2}
    clock[0] = plots.KEPT_S
    assert await of(HOUR) == {"n": 3}


async def test_without_a_store_it_is_said_how_to_name_one() -> None:
    with pytest.raises(NoStore, match="--store"):
        await Plots(None).of(HOUR)
