"""Which connection a partition is read on."""

from __future__ import annotations

from tailrace.delivery import tails


def both(home: list[int]) -> tails.Tails:
    return tails.Tails(
        "127.0.0.1:1", home, client_id="test"
    )  # nobody connects before the first poll


def test_home_partitions_and_visited_ones_are_read_on_connections_of_their_own() -> None:
    """A visited one would wait for the long fetch of the others."""
    live = both([2, 5])
    settled, visited = live.readers
    live.follow(2, 10)
    live.follow(3, 7)
    assert (settled.follows(2), settled.follows(3)) == (True, False)
    assert (visited.follows(2), visited.follows(3)) == (False, True)
    assert tails.VISITED_WAIT_MS < tails.SETTLED_WAIT_MS


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


def test_without_home_partitions_there_is_nothing_to_wait_long_for() -> None:
    live = both([])
    assert len(live.readers) == 1
    live.follow(0, 1)
    assert live.readers[0].follows(0)
