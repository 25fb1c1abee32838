"""What the objects of a test hold in memory."""

from __future__ import annotations

import contextlib
import gc
import tracemalloc
from collections.abc import Iterator


class Held:
    """`size`: bytes that were allocated inside and are still there; 0 before the end."""

    size: int = 0


@contextlib.contextmanager
def held() -> Iterator[Held]:
    """Measure what the statements inside leave behind."""
    found = Held()
    gc.collect()
    tracemalloc.start()
    try:
        yield found
        gc.collect()
        found.size = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
