"""What `bench.overload` asks, without servers."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

from bench import overload


def test_requests_come_by_chance_and_the_same_for_a_seed() -> None:
    run = overload.RUNS[-1]
    found = overload.arrivals(run, 200.0, 3)
    assert found == overload.arrivals(run, 200.0, 3) != overload.arrivals(run, 200.0, 4)
    assert found == sorted(found)
    pools = [pool for _, _, pool, _ in found]
    shares = Counter(pools)
    assert shares["large"] / shares["small"] == pytest.approx(2.0, rel=0.1)
    same = sum(a == b for a, b in itertools.pairwise(pools)) / len(pools)
    assert same == pytest.approx(5 / 9, abs=0.05), "not in turn, which would be even"
