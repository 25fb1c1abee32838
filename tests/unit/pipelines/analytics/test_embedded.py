"""The embedded store: what was folded once has no effect again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipelines.analytics import jobs, programs, results, twins
from tailrace.log import Position
from tests.support.results_contract import RESULT, TOPIC, ResultStoreContract, T, change, row

pytest.importorskip("duckdb")
from pipelines.analytics import embedded


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[embedded.Store]:
    result_store = embedded.Store(tmp_path / "a.duckdb")
    yield result_store
    result_store.close()


class TestEmbedded(ResultStoreContract):
    """The contract of both stores."""


def test_a_batch_that_fails_leaves_neither_rows_nor_position(opened: embedded.Store) -> None:
    opened.fold(RESULT, TOPIC, 0, [change(0, 1)], Position(1))
    bad = results.Change(0, 2, (T, "n"), ("no number", *row(1)[1:]))
    with pytest.raises(Exception, match="no number"):
        opened.fold(RESULT, TOPIC, 0, [change(1, 2), bad], Position(3))
    assert opened.rows(RESULT) == {(T, "m"): row(1)}
    assert opened.positions() == {(TOPIC, 0): Position(1)}


def test_a_file_is_opened_again_with_what_it_had(tmp_path: Path) -> None:
    for folded in range(2):
        result_store = embedded.Store(tmp_path / "a.duckdb")
        assert result_store.positions() == ({(TOPIC, 0): Position(1)} if folded else {})
        result_store.fold(RESULT, TOPIC, 0, [change(0, 1)], Position(1))
        assert result_store.rows(RESULT) == {(T, "m"): row(1)}
        result_store.close()


PANELS = json.loads((programs.HERE / "dashboard.json").read_text())["panels"]


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: str(panel["title"]))
def test_the_dashboard_asks_for_what_the_store_has(
    panel: dict[str, Any], opened: embedded.Store
) -> None:
    """Each query, within and without the time that is shown."""
    for number, result in enumerate(jobs.RESULTS):
        filled: dict[str, twins.Value] = {"text": "x", "time": T, "count": 2, "number": 1.5}
        row = tuple(filled[kind] for kind in result.columns.values())
        one = results.Change(0, 0, row[: result.keys], row[result.keys :])
        opened.fold(result, f"t{number}", 0, [one], Position(1))
    (target,) = panel["targets"]
    for first, last, rows in ((T, T + 1, 1), (T + 60_000, T + 120_000, 0)):
        asked = target["rawSql"].replace("$__timeFrom()", f"epoch_ms({first})")
        asked = asked.replace("$__timeTo()", f"epoch_ms({last})")
        assert len(opened.ask(asked)) == rows
