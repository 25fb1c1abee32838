"""The cursor and its verdict."""

import pytest

from tailrace.delivery import outbox
from tailrace.protocol import events


def event(number: int, size: int = 10, kind: str = "response.output_text.delta") -> events.Event:
    return events.Event(kind, number, b"x" * size)


def box(
    series: list[events.Event], start: int = 0, bound: int = 100
) -> tuple[outbox.Outbox, list[int]]:
    wakes: list[int] = []
    return outbox.Outbox(series, start, lambda: wakes.append(1), bound), wakes


def test_takes_everything_that_piled_up_in_one_batch_and_nothing_twice() -> None:
    series = [event(i) for i in range(5)]
    b, _ = box(series)
    assert [e.sequence_number for e in b.dequeue()] == [0, 1, 2, 3, 4]
    assert b.dequeue() == []
    series.append(event(5))
    b.on_arrival(10, 0.0)
    assert [e.sequence_number for e in b.dequeue()] == [5]


def test_starts_after_the_position_asked_for() -> None:
    b, _ = box([event(i) for i in range(5)], start=3)
    assert [e.sequence_number for e in b.dequeue()] == [3, 4]


def test_a_position_ahead_of_the_series_waits_for_it() -> None:
    series = [event(0)]
    b, _ = box(series, start=2)
    assert not b.ready
    assert b.dequeue() == []
    series += [event(1), event(2)]
    b.on_arrival(20, 0.0)
    assert [e.sequence_number for e in b.dequeue()] == [2]


def test_batches_are_bounded_in_bytes_and_lose_nothing() -> None:
    b, _ = box([event(i, size=30) for i in range(10)])
    seen = []
    while batch := b.dequeue(limit=64):
        assert len(batch) <= 3
        seen += [e.sequence_number for e in batch]
    assert seen == list(range(10))


def test_one_event_larger_than_the_batch_still_goes_out() -> None:
    b, _ = box([event(0, size=1000)])
    assert len(b.dequeue(limit=64)) == 1


def test_a_subscriber_that_stops_taking_is_slow_above_the_bound_and_stays_so() -> None:
    series: list[events.Event] = []
    b, wakes = box(series, bound=100)
    for i in range(11):
        series.append(event(i))
        b.on_arrival(10, float(i))
    assert b.slow
    assert b.ready
    assert len(wakes) == 11
    with pytest.raises(outbox.Slow):
        b.dequeue()


def test_exactly_the_bound_is_not_slow() -> None:
    series = [event(0, size=100)]
    b, _ = box(series, bound=100)
    b.on_arrival(100, 0.0)
    b.on_arrival(0, 100.0)
    assert not b.slow


def test_a_burst_within_one_moment_is_not_slow() -> None:
    """One fetch after an outage brought more than the bound, and every subscriber was closed before
    it could take anything."""
    series = [event(i, size=1000) for i in range(10)]
    b, _ = box(series, bound=1500)
    for _ in series:
        b.on_arrival(1000, 5.0)
    assert not b.slow
    assert len(b.dequeue()) == 10


def test_a_long_replay_is_not_slow_while_it_is_being_taken() -> None:
    series = [event(i, size=1000) for i in range(100)]
    b, _ = box(series, bound=1500)
    taken = 0
    while taken < 100:
        taken += len(b.dequeue(limit=1000))
        series.append(event(len(series), size=1000))
        b.on_arrival(1000, float(len(series)))
    assert not b.slow


def test_ended_only_after_the_last_event_was_taken() -> None:
    series = [event(0), event(1, kind="response.completed")]
    b, wakes = box(series)
    b.finish(1)
    assert wakes
    assert not b.ended
    b.dequeue(limit=1)
    assert not b.ended
    b.dequeue()
    assert b.ended
    assert b.ready


def test_an_event_of_the_moment_comes_behind_all_others_once_and_the_newest_counts() -> None:
    series = [event(0), event(1)]
    b, wakes = box(series)
    old, new = event(1, size=1), event(1, size=2)
    b.publish(old)
    b.publish(new)
    assert (b.ready, len(wakes)) == (True, 2)
    assert b.dequeue(limit=1) == [series[0]]
    assert b.dequeue() == [series[1], new]
    assert not b.ready
    assert b.dequeue() == []


def test_an_event_of_the_moment_is_dropped_when_the_series_went_on() -> None:
    series = [event(0)]
    b, _ = box(series)
    b.publish(event(0, size=1))
    series.append(event(1))
    b.on_arrival(10, 0.0)
    assert b.dequeue() == series
    assert not b.ready


def test_who_asked_for_later_events_is_not_told_of_the_moment() -> None:
    b, wakes = box([event(0)], start=2)
    b.publish(event(0, size=1))
    assert (b.ready, wakes, b.dequeue()) == (False, [], [])
