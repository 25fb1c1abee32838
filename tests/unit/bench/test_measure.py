"""Percentiles are values that were seen, ratios are made within a round, and CPU time goes to the
role that used it."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time

import pytest

from bench import measure
from bench.measure import Row


def row(side: str, number: int, **values: float) -> Row:
    return Row("suite", "case", side, number, values)


@pytest.mark.parametrize(
    ("values", "p", "expected"),
    [
        ([1.0], 50, 1.0),
        ([1.0], 99, 1.0),
        ([4.0, 1.0, 3.0, 2.0], 50, 2.0),
        ([3.0, 1.0, 2.0], 50, 2.0),
        (range(1, 101), 99, 99),
        (range(1, 101), 100, 100),
        (range(1, 101), 0, 1),
        (range(1, 1001), 99, 990),
        ([1.0] * 98 + [7.0, 9.0], 99, 7.0),
    ],
)
def test_a_percentile_is_the_nearest_rank(values: list[float], p: float, expected: float) -> None:
    assert measure.percentile(values, p) == expected


def test_nothing_has_no_percentile_and_no_spread() -> None:
    assert math.isnan(measure.percentile([], 50))
    assert measure.spread("gap", []) == {}


def test_a_spread_is_in_milliseconds() -> None:
    assert measure.spread("gap", [0.001, 0.002, 0.009]) == pytest.approx(
        {"gap_p50_ms": 2.0, "gap_p99_ms": 9.0}
    )


def test_a_ratio_pairs_rounds_and_not_medians() -> None:
    """The machine became twice as slow in round 1 for both sides: every pair says 2.0, the medians
    apart would say something else."""
    rows = [
        row("a", 0, x=20),
        row("b", 0, x=10),
        row("b", 1, x=5),
        row("a", 1, x=10),
        row("a", 2, x=40),
        row("b", 2, x=20),
    ]
    assert measure.ratio(rows, "x", "a", "b") == measure.Ratio(2.0, 2.0, 2.0, 3)


def test_a_ratio_tells_its_range() -> None:
    rows = [row("a", n, x=x) for n, x in enumerate((1, 3, 2))] + [
        row("b", n, x=1) for n in range(3)
    ]
    assert measure.ratio(rows, "x", "a", "b") == measure.Ratio(2, 1, 3, 3)


def test_what_has_no_partner_is_no_pair() -> None:
    rows = [
        row("a", 0, x=4),
        row("b", 0, x=2),
        row("a", 1, x=100),
        row("b", 2, x=1),
        row("a", 3, x=1),
        row("b", 3, x=0),
        row("a", 4, y=1),
        row("b", 4, x=1),
    ]
    assert measure.ratio(rows, "x", "a", "b") == measure.Ratio(2, 2, 2, 1)
    assert measure.ratio(rows[:1], "x", "a", "b") is None


def test_the_median_leaves_out_what_was_not_measured() -> None:
    assert (
        measure.median(
            [
                row("a", 0, x=1),
                row("a", 1),
                row("a", 2, x=3),
                row("a", 3, x=math.nan),
                row("a", 4, x=8),
            ],
            "x",
        )
        == 3
    )
    assert math.isnan(measure.median([row("a", 0)], "x"))


def test_neither_side_always_comes_second_and_servers_serve_twice() -> None:
    assert measure.turns(3, "a", "b") == [
        (0, "a"),
        (0, "b"),
        (1, "b"),
        (1, "a"),
        (2, "a"),
        (2, "b"),
    ]


# Burns CPU time when it is told to, and says when it has: nothing here depends on how long that
# took.
BURN = """
import sys, time
sys.stdin.readline()
began = time.process_time()
while time.process_time() - began < {}: pass
print("burnt", flush=True)
sys.stdin.read()
"""


def program(code: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def burn(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.stdout.readline() == "burnt\n"


def end(*processes: subprocess.Popen[str]) -> None:
    for process in processes:
        process.communicate("")


def test_cpu_time_goes_to_the_role_that_used_it() -> None:
    idle, busy = program(BURN.format(0)), program(BURN.format(0.5))
    burn(idle)
    with measure.Meter({"idle": [idle.pid], "busy": [busy.pid]}) as meter:
        before = measure.own_cpu()
        while measure.own_cpu() - before < 0.2:
            pass
        burn(busy)
    end(idle, busy)
    assert 0.45 < meter.cpu_by_role["busy"] < 0.9
    assert meter.cpu_by_role["idle"] < 0.1
    assert 0.2 <= meter.cpu_by_role["client"] < 0.4
    assert meter.servers == pytest.approx(meter.cpu_by_role["busy"] + meter.cpu_by_role["idle"])
    assert meter.per(100, "us_per_event")["cpu_busy_us_per_event"] == pytest.approx(
        1e4 * meter.cpu_by_role["busy"]
    )
    assert meter.per(0, "us_per_event") == {}
    assert meter.wall > 0


def test_what_a_process_starts_is_its_engine() -> None:
    """A child that is born while it is measured counts from its birth, and does not count as its
    parent."""
    parent = program(
        f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {BURN.format(0.4)!r}])"
    )
    with measure.Meter({"worker": [parent.pid]}) as meter:
        burn(parent)
    end(parent)
    assert 0.35 < meter.cpu_by_role["engine"] < 0.8
    assert meter.cpu_by_role["worker"] < 0.3


def test_a_process_that_is_gone_costs_nothing() -> None:
    gone = program("")
    end(gone)
    with measure.Meter({"gone": [gone.pid]}) as meter:
        time.sleep(0.01)
    assert meter.cpu_by_role["gone"] == 0


def test_resident_memory_is_in_bytes() -> None:
    assert 2**20 < measure.resident([os.getpid()]) < 2**33
