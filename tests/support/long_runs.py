"""Larger sizes of some tests in `make nightly`."""

from __future__ import annotations

import os
from typing import Final

LONG: Final = os.environ.get("TAILRACE_TEST_LONG") == "1"
