"""Runs the engine modules in the engine environment, all in one process: each engine that they
share (tests/support/model_engines.py) then starts once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support import engine_environment, model_engines

pytestmark = pytest.mark.engine
BY_DAY_S = 1_500  # five minutes alone; two other processes of the run want the cores too
NIGHTLY_S = 5_400
REPORT_S = 30  # of these, for the report of a run that was too slow


def check(report: engine_environment.Report, least: int) -> None:
    """All tests passed, none was skipped, and there were at least so many."""
    print(*report.output.splitlines()[-30:], sep="\n")
    for module, count in sorted(report.passes.items()):
        print(f"{count:4d} passed in {module}")
    assert report.code == 0, report.output[-12_000:]
    assert report.skips == [], "no test of the engine is skipped where the engine is"
    assert report.passes.total() >= least


@pytest.mark.timeout(BY_DAY_S)
def test_vllm_keeps_the_contract(tmp_path: Path) -> None:
    report = engine_environment.run("engine and not nightly", tmp_path, BY_DAY_S - REPORT_S)
    check(report, least=115)
    starts = json.loads(report.properties[model_engines.STARTS])
    assert starts == {str(variant): 1 for variant in model_engines.BY_DAY}


@pytest.mark.nightly
@pytest.mark.timeout(NIGHTLY_S)
def test_vllm_keeps_the_contract_in_every_way(tmp_path: Path) -> None:
    check(engine_environment.run("engine and nightly", tmp_path, NIGHTLY_S - REPORT_S), least=190)
