"""Token buckets of one process."""

from __future__ import annotations

import pytest

from gateway.load import local_buckets


def test_a_bucket_has_a_share_of_the_burst_and_of_the_rate() -> None:
    buckets = local_buckets.LocalBuckets(share=0.5)

    def take(now: float, cost: float = 1.0, who: str = "alice") -> tuple[bool, float]:
        consumption = buckets.consume(who, "requests", cost, rate=2.0, burst=4.0, now=now)
        return consumption.allowed, consumption.retry_after_s

    assert [take(0.0)[0] for _ in range(3)] == [True, True, False]
    assert take(0.0) == (False, 1.0)
    assert take(0.0, who="bob") == (True, 0.0)
    assert take(1.0) == (True, 0.0)
    assert take(100.0, cost=1_000) == (True, 0.0)  # a full bucket pays for anything
    assert take(100.0) == (False, 1.0)


def test_requests_and_tokens_have_buckets_of_their_own() -> None:
    buckets = local_buckets.LocalBuckets(share=1.0)
    for kind in ("requests", "tokens"):
        assert buckets.consume("alice", kind, 1, rate=1, burst=1, now=0.0).allowed


def test_a_refusal_tells_when_what_is_missing_has_come() -> None:
    buckets = local_buckets.LocalBuckets(share=1.0)
    assert buckets.consume("alice", "tokens", 7, rate=2, burst=10, now=0.0).remaining == 3
    consumption = buckets.consume("alice", "tokens", 8, rate=2, burst=10, now=0.5)
    assert (consumption.allowed, consumption.retry_after_s, consumption.remaining) == (
        False,
        2.0,
        4.0,
    )
    assert buckets.consume("alice", "tokens", 8, rate=2, burst=10, now=2.5).allowed


def test_the_bucket_that_was_used_longest_ago_is_forgotten_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A forgotten bucket is full again: a flood of new names must not fill those in use."""
    monkeypatch.setattr(local_buckets, "MAX_BUCKETS", 2)
    buckets = local_buckets.LocalBuckets(share=1.0)

    def allowed(who: str) -> bool:
        return buckets.consume(who, "requests", 1, rate=1, burst=1, now=0.0).allowed

    assert allowed("idle")
    assert allowed("busy")
    assert not allowed("busy")
    assert allowed("new")
    assert not allowed("busy")
    assert allowed("idle")
