"""What could be told of waits at best."""

from __future__ import annotations

import statistics

import pytest

from bench.waits_ideal import Queue, ratios


def test_a_queue_serves_in_order_and_tells_when_the_next_one_begins() -> None:
    queue = Queue([0.0, 0.0])
    assert [queue.serve(0.0, each) for each in (4.0, 6.0, 1.0)] == [0.0, 0.0, 4.0]
    assert Queue([0.0]).told_s(0.0, [1.0]) == 0.0
    assert queue.told_s(1.0, [5.0] * 50) == pytest.approx(4.0, abs=0.7)


def test_one_queue_is_told_better_than_two() -> None:
    def off(queues: int) -> float:
        return statistics.mean(
            abs(ratio - 1) for seed in range(2) for ratio in ratios(queues, seed)
        )

    assert off(1) < off(2) < 0.4
