"""Waits as clients are told them."""

from __future__ import annotations

import pytest

from tailrace.protocol.wait_times import JITTER, STEPS_S, rounded_up, with_jitter


@pytest.mark.parametrize(
    ("seconds", "shown_s"),
    [
        *((0.0, 1), (0.3, 1), (1.0, 1), (1.01, 2), (2.0, 2), (2.1, 3), (7.0, 7), (11, 15)),
        *((21, 30), (31, 45), (61, 90), (91, 120), (130, 180), (301, 420), (2_000, 2_700)),
        *((3_600, 3_600), (3_601, 7_200), (86_400, 86_400)),
    ],
)
def test_a_wait_is_rounded_up_to_what_a_person_reads(seconds: float, shown_s: float) -> None:
    assert rounded_up(seconds) == shown_s
    assert rounded_up(shown_s) == shown_s


def test_no_wait_becomes_shorter_or_much_longer() -> None:
    for seconds in range(2, 2 * int(STEPS_S[-1])):
        most = 5 / 3 if seconds <= STEPS_S[-1] else 2.0  # then whole hours
        assert seconds <= rounded_up(seconds) <= most * seconds


def test_clients_come_back_within_the_last_part_of_the_wait() -> None:
    found = [with_jitter(10.0, drawn) for drawn in (0.0, 0.25, 1.0)]
    assert found == [10.0, 10.0 * (1 - JITTER / 4), 10.0 * (1 - JITTER)]
    assert 0.0 < JITTER < 0.5
