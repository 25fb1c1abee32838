"""Results that the admin page shows, for any store: each key has several versions, some keys are
deleted again, and values are missing.

Two tenants and seven models in two minutes, and something outside of the hour that begins at T.
"""

from __future__ import annotations

from typing import Any, Final

from pipelines.analytics import jobs, results, twins
from pipelines.analytics.store import ResultStore
from pipelines.view.plots import Range
from tailrace.log import Position

MINUTE = 60_000
T = 1_795_630_800_000  # 18:20 UTC
HOUR = Range(T, T + 60 * MINUTE, MINUTE)
LATE = T + 60 * MINUTE
EMPTY = Range(T - 600 * MINUTE, T - 500 * MINUTE, MINUTE)
RANGES = (
    HOUR,
    Range(T, T + 60 * MINUTE, 2 * MINUTE),
    Range(T, T + MINUTE, MINUTE),
    Range(T - 60 * MINUTE, T + 180 * MINUTE, 30 * MINUTE),
    EMPTY,
)

# Of each result its rows, and the key that is deleted again.
ROWS: Final[tuple[tuple[jobs.Result, twins.Rows, tuple[twins.Value, ...]], ...]] = (
    (
        jobs.USAGE_MINUTES,
        {
            (T + minute * MINUTE, f"m{model}", tenant): (1, model * 10, model, 0, model * 1000, 1)
            for minute in (0, 1, 60)
            for model in range(1, 8)
            for tenant in ("", "shop")
        },
        (T, "gone", ""),
    ),
    (
        jobs.REQUEST_MINUTES,
        {
            (T,): (120, 3, 2.0, 9),
            (T + MINUTE,): (60, 0, 1.0, 5),
            (T + 2 * MINUTE,): (7, None, None, None),
            (LATE,): (600, 9, 10.0, 50),
            (T - MINUTE,): (600, 9, 10.0, 50),
        },
        (T + 5 * MINUTE,),
    ),
    (
        jobs.LATENCY_MINUTES,
        {
            (T, "m1"): (5, 10.0, 20.0, 30.0, 9, 1.0, 2.0, 3.0),
            (T + MINUTE, "m1"): (5, 11.0, 19.0, 31.0, 9, 1.5, 1.0, 3.0),
            (T + MINUTE, "m2"): (5, 50.0, None, 31.25, 9, 0.1, 1.0, 3.0),
            (LATE, "m9"): (500, 50.0, None, 31.0, 9, 1.5, 1.0, 3.0),
        },
        (T, "gone"),
    ),
    (
        jobs.SESSIONS,
        {
            ("i", "shop", f"u{n}", T + n * MINUTE): (T + (n + 5) * MINUTE, n, n, n, n)
            for n in range(-3, 70)
        },
        ("i", "shop", "gone", T),
    ),
    (
        jobs.ANSWER_MINUTES,
        {
            (T, "reviews", "good"): (7, 1, 1),
            (T, "r", 'b\tä"d'): (2, 1, 1),
            (LATE, "r", 'b\tä"d'): (9, 1, 1),
        },
        (T, "r", "gone"),
    ),
)


def fold(store: ResultStore, result: jobs.Result, rows: twins.Rows, at: int = 0) -> None:
    """Rows at the offsets from `at` on."""
    changes = [results.Change(0, n, *row) for n, row in enumerate(rows.items(), at)]
    store.fold(result, f"a.{result.name}", 0, changes, Position(at + len(changes)))


def fill(store: ResultStore) -> None:
    """All rows, each after an older one of its key, and with a key that is deleted again."""
    for result, rows, gone in ROWS:
        older: twins.Rows = {key: _twice(values) for key, values in rows.items()}
        older[gone] = next(iter(older.values()))
        fold(store, result, older)
        fold(store, result, rows, len(older))
        behind = len(older) + len(rows)
        deleted = results.Change(0, behind, gone, None)
        store.fold(result, f"a.{result.name}", 0, [deleted], Position(behind + 1))


def table(found: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """The rows of a result, by the names of their columns."""
    told = found["results"][name]
    return [dict(zip(told["columns"], row, strict=True)) for row in told["rows"]]


def _twice(values: tuple[twins.Value, ...]) -> tuple[twins.Value, ...]:
    return tuple(each and each * 2 if isinstance(each, int | float) else each for each in values)
