"""Larger sizes of some tests in `make nightly`."""

from __future__ import annotations

import os
from typing import Final

import pytest

LONG: Final = os.environ.get("TAILRACE_TEST_LONG") == "1"
# For modules with a larger size: `make nightly` runs them, too.
LARGER: Final = [pytest.mark.nightly] if LONG else []
