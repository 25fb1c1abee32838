"""The whole path beside vLLM's own server, whose engine has its processes arranged as our worker
arranges them. By itself vLLM gives the model a process of its own on a CPU, and what that costs is
in `whole_path`; here only the path differs. Measured when asked for by name.
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
    """As `whole_path`."""
    for row in whole_path.compared(plan, alike=True):
        yield msgspec.structs.replace(row, suite=NAME)
