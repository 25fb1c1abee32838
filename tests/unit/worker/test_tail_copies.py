"""Records that arrive twice: found in a fault run as a worker that stood down because its own claim
came a second time."""

from __future__ import annotations

from tailrace.protocol import records
from worker import tail

OWNER = records.Owner("i", "s")


def claim(own: str, prev: str | None) -> records.Claim:
    return records.Claim("resp_x", own, prev, OWNER, "w/1", "t", 0, "r", "t")


def test_a_second_copy_of_a_claim_does_not_make_it_lost() -> None:
    entry = tail.Entry(0)
    entry.apply(claim("a", None), 0, 1)
    entry.apply(claim("a", None), 1, 2)
    assert entry.seen == {"a": True}
    assert entry.fold.owner == "a"


def test_a_copy_that_takes_effect_after_the_first_did_not_counts() -> None:
    entry = tail.Entry(0)
    entry.apply(claim("c", "b"), 0, 1)
    assert entry.seen == {"c": False}
    entry.apply(claim("a", None), 1, 2)
    entry.apply(claim("b", "a"), 2, 3)
    entry.apply(claim("c", "b"), 3, 4)
    assert entry.seen == {"a": True, "b": True, "c": True}
