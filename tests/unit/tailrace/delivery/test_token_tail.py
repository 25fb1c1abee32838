"""Which connection a partition is read on."""

from __future__ import annotations

from tailrace.delivery import token_tail


def both(preferred: list[int]) -> token_tail.TokenTail:
    return token_tail.TokenTail(
        "127.0.0.1:1", preferred, client_id="test"
    )  # nobody connects before the first poll


def test_preferred_partitions_and_on_demand_ones_are_read_on_connections_of_their_own() -> None:
    """An on-demand one would wait for the long fetch of the others."""
    live = both([2, 5])
    long_polled, on_demand = live.readers
    live.follow(2, 10)
    live.follow(3, 7)
    assert (long_polled.follows(2), long_polled.follows(3)) == (True, False)
    assert (on_demand.follows(2), on_demand.follows(3)) == (False, True)
    assert token_tail.ON_DEMAND_WAIT_MS < token_tail.LONG_POLL_WAIT_MS


def test_it_answers_for_either_of_them() -> None:
    live = both([2])
    live.follow(2, 10)
    live.follow(3, 7)
    assert [live.follows(p) for p in (2, 3, 4)] == [True, True, False]
    assert [live.next_offset(p) for p in (2, 3)] == [10, 7]
    for reader in live.readers:
        reader._apply_changes()  # what a poll does first
    assert live.positions == {2: 10, 3: 7}
    live.leave(2)
    live.leave(3)
    assert [live.follows(p) for p in (2, 3)] == [False, False]


def test_without_preferred_partitions_there_is_nothing_to_wait_long_for() -> None:
    live = both([])
    assert len(live.readers) == 1
    live.follow(0, 1)
    assert live.readers[0].follows(0)
