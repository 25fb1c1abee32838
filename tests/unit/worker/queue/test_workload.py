"""What a worker has measured of its work."""

from __future__ import annotations

import math

import pytest

from worker.queue.workload import RATE_MEMORY_S, Totals, Workload


def after(*steps: tuple[int, float, float, bool]) -> Workload:
    """Seconds in each of which so much was made, begun and asked for; whether requests waited."""
    work, made, begun, asked = Workload(), 0, 0.0, 0.0
    for more, newly, newly_asked, waited in steps:
        made, begun, asked = made + more, begun + newly, asked + newly_asked
        work.measure(Totals(made, begun, asked), 1.0, had_queue=waited)
    return work


def test_nothing_is_known_at_first_and_a_request_counts_as_all_it_asks_for() -> None:
    work = Workload()
    assert (work.rate, work.part, work.each) == (0.0, 1.0, 0.0)


def test_the_rate_counts_only_seconds_in_which_requests_waited() -> None:
    assert after(*[(5, 0.1, 100.0, False)] * 50).rate == 0.0
    assert after(*[(5, 0.1, 100.0, False)] * 50, *[(400, 8, 8_000.0, True)] * 3).rate == (
        pytest.approx(400)
    )


def test_a_new_rate_replaces_the_old_one_within_its_memory() -> None:
    seconds = round(3 * RATE_MEMORY_S)
    work = after(*[(400, 8, 8_000.0, True)] * seconds, *[(100, 2, 2_000.0, True)] * seconds)
    assert work.rate == pytest.approx(100, rel=0.2)


def test_the_pace_is_that_of_one_response_whether_requests_wait_or_not() -> None:
    work = Workload()
    assert (work.pace, work.measured, work.starts_per_s) == (0.0, False, 0.0)
    for second in range(1, 5):
        work.measure(Totals(80 * second, 2.0 * second, 1.0), 1.0, had_queue=False, running=4)
    assert (work.pace, work.measured) == (pytest.approx(20), False)
    work.measure(Totals(400, 10.0, 1.0), 1.0, had_queue=True, running=4)
    assert (work.measured, work.starts_per_s) == (True, pytest.approx(2, rel=0.01))


def test_requests_make_a_part_of_what_they_ask_for() -> None:
    work = after(*[(50, 1, 1_000.0, True)] * 20)
    assert work.part == pytest.approx(0.05)
    assert work.each == pytest.approx(50)


def test_long_answers_count_with_their_share_and_before_they_end() -> None:
    """Of 100 requests 3 make 2,000 tokens, the others 20; all ask for 2,000."""
    work = after(*[(97 * 20 + 3 * 2_000, 100, 200_000.0, True)] * 10)
    assert work.each == pytest.approx(79.4)
    assert work.part == pytest.approx(0.0397)
    half_done = after((1_000, 0.5, 1_000.0, True))
    assert half_done.part == 1.0


@pytest.mark.parametrize("made", [10, 10_000])
def test_the_part_is_at_most_all(made: int) -> None:
    assert after((made, 1, 5.0, True)).part == 1.0


def test_it_looks_ahead_as_far_as_the_queue_reaches_and_half_as_far_again() -> None:
    work = Workload()
    assert work.update_forecast(500.0, [1.0]).seconds(500.0) == math.inf
    for second in range(1, 61):  # four slots, ten tokens a second each, in answers of five seconds
        holds = [5.0] * 4 if second % 5 == 0 else []
        totals = Totals(40 * second, 0.8 * second, 80.0 * second)
        work.measure(totals, 1.0, had_queue=True, running=4, holds=holds)
    starts = work.update_forecast(4_000.0, [4.0, 4.0, 4.0, 4.0])
    assert starts is work.forecast
    assert starts.times[-1] == pytest.approx(1.5 * 4_000 / 40)
    # Four at once after a second, and then after every five seconds; 50 tokens each.
    for requests, seconds in ((2, 1), (6, 6), (38, 46)):
        assert starts.seconds(50.0 * requests) == pytest.approx(seconds, abs=1.3)
    # Behind that, as many slots come free as before, whatever was made in a second.
    assert starts.rate == pytest.approx(50 * 4 / 5, rel=0.05)
    longer = work.update_forecast(4_000.0, [4.0] * 4, [6.0] * 60)  # which have made way
    assert longer.rate < 0.8 * starts.rate
    assert longer.tokens[-1] < 0.9 * starts.tokens[-1]
    assert work.update_forecast(0.0, [4.0]).times == ()
    assert work.forecast.seconds(400.0) == pytest.approx(10, rel=0.05)
