"""The embedded store: what was folded once has no effect again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipelines.analytics import jobs, programs, results, twins

pytest.importorskip("duckdb")
from pipelines.analytics import store

T = 1_795_630_860_000
RESULT, TOPIC = jobs.LATENCY_MINUTES, "analytics.latency_minutes"


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[store.Store]:
    made = store.Store(tmp_path / "a.duckdb")
    yield made
    made.close()


def change(offset: int, count: int | None, model: str = "m", minute: int = T) -> results.Change:
    values = None if count is None else (count, 1.5, 2.0, None, count, None, 0.25, 3.0)
    return results.Change(0, offset, (minute, model), values)


def row(count: int) -> tuple[twins.Value, ...]:
    values = change(0, count).values
    assert values is not None
    return values


def test_a_table_has_the_last_change_of_each_key(opened: store.Store) -> None:
    changes = [change(0, 1), change(1, 2), change(2, 1, "o"), change(3, 3, "gone"), change(4, 4)]
    opened.fold(RESULT, TOPIC, 0, changes, 5)
    opened.fold(RESULT, TOPIC, 0, [change(5, None, "gone"), change(6, 5, minute=T + 60_000)], 9)
    assert opened.rows(RESULT) == {
        (T, "m"): row(4),
        (T, "o"): row(1),
        (T + 60_000, "m"): row(5),
    }
    assert opened.positions() == {(TOPIC, 0): 9}


def test_what_was_folded_before_has_no_effect(opened: store.Store) -> None:
    """Neither a batch that is read again nor the part of one that is."""
    changes = [change(0, 1), change(1, 2), change(2, 3)]
    opened.fold(RESULT, TOPIC, 0, changes, 3)
    opened.fold(RESULT, TOPIC, 0, changes[:2], 2)
    assert opened.rows(RESULT) == {(T, "m"): row(3)}
    assert opened.positions() == {(TOPIC, 0): 3}
    opened.fold(RESULT, TOPIC, 0, [change(1, None), change(3, 7, "n")], 4)
    assert opened.rows(RESULT) == {(T, "m"): row(3), (T, "n"): row(7)}
    assert opened.positions() == {(TOPIC, 0): 4}


def test_a_batch_that_fails_leaves_neither_rows_nor_position(opened: store.Store) -> None:
    opened.fold(RESULT, TOPIC, 0, [change(0, 1)], 1)
    bad = results.Change(0, 2, (T, "n"), ("no number", *row(1)[1:]))
    with pytest.raises(Exception, match="no number"):
        opened.fold(RESULT, TOPIC, 0, [change(1, 2), bad], 3)
    assert opened.rows(RESULT) == {(T, "m"): row(1)}
    assert opened.positions() == {(TOPIC, 0): 1}


def test_a_file_is_opened_again_with_what_it_had(tmp_path: Path) -> None:
    for folded in range(2):
        made = store.Store(tmp_path / "a.duckdb")
        assert made.positions() == ({(TOPIC, 0): 1} if folded else {})
        made.fold(RESULT, TOPIC, 0, [change(0, 1)], 1)
        assert made.rows(RESULT) == {(T, "m"): row(1)}
        made.close()


PANELS = json.loads((programs.HERE / "dashboard.json").read_text())["panels"]


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: str(panel["title"]))
def test_the_dashboard_asks_for_what_the_store_has(
    panel: dict[str, Any], opened: store.Store
) -> None:
    """Each query, within and without the time that is shown."""
    for number, result in enumerate(jobs.RESULTS):
        filled: dict[str, twins.Value] = {"text": "x", "time": T, "count": 2, "number": 1.5}
        row = tuple(filled[kind] for kind in result.columns.values())
        one = results.Change(0, 0, row[: result.keys], row[result.keys :])
        opened.fold(result, f"t{number}", 0, [one], 1)
    (target,) = panel["targets"]
    for first, last, rows in ((T, T + 1, 1), (T + 60_000, T + 120_000, 0)):
        asked = target["rawSql"].replace("$__timeFrom()", f"epoch_ms({first})")
        asked = asked.replace("$__timeTo()", f"epoch_ms({last})")
        assert len(opened.ask(asked)) == rows
