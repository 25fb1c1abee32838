"""The back-off of a part that ends."""

from __future__ import annotations

from tailrace.local.restarts import FIRST_S, KEEPS_DYING, LONGEST_S, STEADY_S, Restarts


def test_each_end_in_a_row_waits_twice_as_long_up_to_a_limit() -> None:
    restarts = Restarts()
    pauses = []
    for now in range(10):
        pauses.append(restarts.ended(now))
        assert restarts.due == now + pauses[-1]
        restarts.started()
        assert restarts.due is None
        restarts.ready(now + 0.5)
    assert pauses[:4] == [FIRST_S, 2 * FIRST_S, 4 * FIRST_S, 8 * FIRST_S]
    assert pauses[-1] == LONGEST_S


def test_a_part_that_was_ready_for_long_begins_anew() -> None:
    restarts = Restarts()
    restarts.ended(0)
    restarts.ready(1)
    restarts.ready(STEADY_S)  # asked again, still ready
    assert restarts.ended(1 + STEADY_S) == FIRST_S
    assert restarts.in_a_row == 1


def test_a_long_load_is_no_steady_work() -> None:
    """An engine that dies after it loaded for a minute dies in a row."""
    restarts = Restarts()
    restarts.ended(0)
    assert restarts.ended(10 * STEADY_S) == 2 * FIRST_S


def test_it_is_explained_at_first_and_then_ever_more_rarely() -> None:
    restarts = Restarts()
    explained = []
    for number in range(1, 30):
        restarts.ended(0)
        assert restarts.keeps_dying == (number >= KEEPS_DYING)
        if restarts.explain:
            explained.append(number)
    assert explained == [3, 6, 12, 24]
