"""Places at which tests cut an answer: some by day, all of them nightly."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any, Final

import pytest

SOME_OR_ALL: Final[list[Any]] = [
    pytest.param(False, id="some"),
    pytest.param(True, id="all", marks=pytest.mark.nightly),
]
ENDS: Final = 2  # places at each end
BY_CHANCE: Final = 4


def places(
    begin: int, end: int, around: Iterable[int] = (), *, everywhere: bool = False
) -> list[int]:
    """Numbers from `begin` up to `end`, without `end`: both ends, each seam of `around` with its
    neighbours, and some by chance, the same in every run.

    Args:
        around: seams of the answer, where a cut is most likely to break it.
        everywhere: all numbers instead.
    """
    every = range(begin, end)
    if everywhere:
        return list(every)
    seams = {seam + near for seam in around for near in (-1, 0, 1)}
    chosen = {*every[:ENDS], *every[-ENDS:], *(seams & {*every})}
    rest = sorted({*every} - chosen)
    return sorted(chosen | {*random.Random(end).sample(rest, min(BY_CHANCE, len(rest)))})
