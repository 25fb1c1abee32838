"""What the resolver cannot keep right in the locks by itself (locks/engine-overrides.txt)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

LOCKS = Path(__file__).parents[3] / "locks"


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_torchvision_is_the_one_that_was_built_for_torch(kind: str) -> None:
    lock = (LOCKS / f"requirements-engine-{kind}.lock").read_text()
    [torch] = re.findall(r"^torch==2\.(\d+)\.\d+ \\$", lock, re.MULTILINE)
    [vision] = re.findall(r"^torchvision==0\.(\d+)\.\d+ \\$", lock, re.MULTILINE)
    assert int(vision) == int(torch) + 15
