"""The whole path beside vLLM's own server with the worker's arrangement of engine processes.

By default vLLM runs the model in a process of its own on a CPU, and `whole_path` includes that
cost. Here only the path differs. Measured only when named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import msgspec.structs

from bench import measure, stacks, whole_path

NAME: Final = "whole_path_alike"
OVER, UNDER = stacks.OURS, stacks.THEIRS
PLOTS: Final = whole_path.PLOTS


def run(plan: measure.Plan, _shared: Callable[[], stacks.Side]) -> Iterator[measure.Row]:
    """Measure like `whole_path`."""
    for row in whole_path.compared(plan, alike=True):
        yield msgspec.structs.replace(row, suite=NAME)
