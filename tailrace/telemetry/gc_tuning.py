"""Short pauses of Python's garbage collector.

A full collection walks every container object: some 100,000 after the imports of a service (45 to
120 ms on a small machine), and many more with an inference engine. Nothing else runs in that time.
Objects that exist when a service begins to serve live as long as the process, so later collections
skip them.
"""

from __future__ import annotations

import gc
from typing import Final

# Allocations between two collections of the youngest generation; CPython's 700 suits short
# programs.
YOUNGEST: Final = 5_000


def freeze() -> None:
    """Take all objects of now out of later collections. Called once, before a service serves."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNGEST, *gc.get_threshold()[1:])
