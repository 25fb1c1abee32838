"""The trial of pipelines (`make pipelines`), small: a runner and a gateway are killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pipelines import trial


@pytest.mark.timeout(300)
def test_each_record_has_one_output_and_one_paid_request(tmp_path: Path) -> None:
    assert trial.run(tmp_path, 240, seed=5, every_s=1.0, rounds=2) == []
