"""Short pauses of Python's garbage collector.

A full collection walks every container object: some 100,000 after the imports of a service (45 to
120 ms on a small machine), and many more with an inference engine. For so long nothing else runs.
What is there when a service begins to serve stays for its lifetime, so it is taken out of every
later collection.
"""

from __future__ import annotations

import gc
from typing import Final

# allocations between collections of the youngest; CPython's 700 is meant for programs, not for
# servers
YOUNGEST: Final = 5_000


def settle() -> None:
    """Once, when everything that lives as long as the process has been made."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNGEST, *gc.get_threshold()[1:])
