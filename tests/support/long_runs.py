"""What takes too long for `make test`, or is larger in runs of its own."""

from __future__ import annotations

import os
from typing import Final

import pytest

LONG: Final = os.environ.get("TAILRACE_TEST_LONG") == "1"


def only_by(target: str) -> pytest.MarkDecorator:
    """A mark for tests that run with TAILRACE_TEST_LONG=1 only, as this target of make does."""
    return pytest.mark.skipif(not LONG, reason=f"runs with TAILRACE_TEST_LONG=1 (make {target})")
