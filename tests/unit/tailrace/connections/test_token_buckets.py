"""Token buckets of one process."""

from __future__ import annotations

from tailrace.connections.token_buckets import TokenBuckets


def test_a_burst_is_there_at_once_and_then_what_the_rate_brings() -> None:
    buckets = TokenBuckets(rate=2.0, burst=3.0)
    assert [buckets.consume("a", 100.0) for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]
    assert buckets.consume("b", 100.0) == 0.0
    assert buckets.consume("a", 100.5) == 0.0
    assert buckets.consume("a", 100.5) == 0.5


def test_asking_takes_nothing() -> None:
    buckets = TokenBuckets(rate=1.0, burst=1.0)
    assert buckets.wait_s("a", 0.0) == 0.0
    assert buckets.consume("a", 0.0) == 0.0
    assert [buckets.wait_s("a", 0.25) for _ in range(2)] == [0.75, 0.75]
    assert buckets.consume("a", 1.0) == 0.0


def test_keys_are_bounded_and_those_that_count_longest_are_kept() -> None:
    buckets = TokenBuckets(rate=1.0, burst=2.0, most=100)
    for number in range(1_000):
        assert buckets.consume(f"key-{number}", 0.0) == 0.0
    assert len(buckets) <= 100
    assert buckets.wait_s("key-999", 0.0, 2.0) == 1.0
    buckets.consume("late", 10.0)
    for number in range(100):
        buckets.consume(f"later-{number}", 10.0)
    assert buckets.wait_s("key-999", 10.0, 2.0) == 0.0


def test_what_is_spent_and_was_not_there_is_waited_for_in_order() -> None:
    buckets = TokenBuckets(rate=10.0, burst=20.0)
    assert [buckets.spend("a", 0.0, 10.0) for _ in range(4)] == [0.0, 0.0, 1.0, 2.0]
    assert buckets.spend("b", 0.0, 20.0) == 0.0
    assert buckets.spend("a", 3.0, 10.0) == 0.0


def test_rounding_is_no_wait() -> None:
    """With a burst of one in a thousand seconds, at one clock value of two, the first request of a
    principal was refused: 1,000 s after `now` was more than `now` and 1,000 s."""
    for tenth in range(1_000):
        buckets, now = TokenBuckets(rate=0.001, burst=1.0), tenth / 10 + 0.07
        assert buckets.wait_s("a", now) == 0.0
        assert buckets.consume("a", now) == 0.0
        assert buckets.consume("a", now) > 0.0
        assert TokenBuckets(rate=0.001, burst=1.0).spend("a", now) == 0.0
