"""The trial of pipelines (`make pipelines`), small: a runner and a gateway are killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pipelines import trial

PACE_MS = 25  # an answer takes two seconds, so that kills come while some are made


@pytest.mark.timeout(300)
def test_each_record_has_one_output_and_one_paid_request(tmp_path: Path) -> None:
    found = trial.run(tmp_path, 150, seed=5, every_s=0.5, rounds=2, pace_ms=PACE_MS, again=False)
    assert found == []


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_a_replay_asks_for_nothing_and_a_killed_sink_leaves_nothing_out(tmp_path: Path) -> None:
    assert trial.run(tmp_path, 240, seed=5, every_s=1.0, rounds=2, pace_ms=PACE_MS) == []
