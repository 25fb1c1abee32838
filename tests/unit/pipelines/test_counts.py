"""Counts: they add up, and stand in the metadata of an offset."""

from __future__ import annotations

from pipelines import counts
from pipelines.counts import Counts


def test_counts_add_up_and_the_place_of_a_replay_stays() -> None:
    before = Counts(read=3, answered=2, dead=1, requests=4, input_tokens=10, look_until=7)
    after = before.plus(
        Counts(read=1, skipped=1, output_tokens=5, alerted=1, found=1, look_until=5)
    )
    assert after == Counts(4, 1, 2, 1, 1, 4, 10, 5, 1, 7)


def test_metadata_says_them_again() -> None:
    found = Counts(read=10**9, answered=5, look_until=12)
    assert counts.decode(found.encode()) == found
    most = Counts(**dict.fromkeys(counts.SUMS, 10**15), look_until=10**15)  # type: ignore[arg-type]
    assert len(most.encode()) < 4000  # a broker's bound on metadata


def test_metadata_of_others_is_zeros() -> None:
    for metadata in (None, "", "x", "{}", "[-1]", '["a"]'):
        assert counts.decode(metadata) == Counts()
    assert counts.decode("[5,1]") == Counts(read=5, skipped=1)  # of a version with fewer
