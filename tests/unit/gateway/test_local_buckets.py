"""Token buckets of one process."""

from __future__ import annotations

from gateway import local_buckets


def test_a_bucket_has_a_share_of_the_burst_and_of_the_rate() -> None:
    buckets = local_buckets.LocalBuckets(share=0.5)

    def take(now: float, cost: float = 1.0, who: str = "alice") -> tuple[bool, float]:
        taken = buckets.consume(who, "requests", cost, rate=2.0, burst=4.0, now=now)
        return taken.allowed, taken.retry_after_s

    assert [take(0.0)[0] for _ in range(3)] == [True, True, False]
    assert take(0.0) == (False, 1.0)
    assert take(0.0, who="bob") == (True, 0.0)
    assert take(1.0) == (True, 0.0)
    assert take(100.0, cost=1_000) == (True, 0.0)  # a full bucket pays for anything
    assert take(100.0) == (False, 1.0)


def test_the_number_of_buckets_is_bounded() -> None:
    buckets = local_buckets.LocalBuckets()
    for n in range(local_buckets.MAX_BUCKETS + 5):
        buckets.consume(str(n), "tokens", 1, 1, 1, 0.0)
    assert len(buckets._buckets) == local_buckets.MAX_BUCKETS
