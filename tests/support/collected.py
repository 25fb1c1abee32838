"""What is freed at once, and what waits for the garbage collector."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def by_hand() -> Iterator[None]:
    """The garbage collector does not run inside: what refers to itself stays."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
