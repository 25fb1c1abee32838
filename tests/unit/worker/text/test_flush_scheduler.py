"""When frames are written. Time is the test's own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tailrace import telemetry
from worker.text.flush_scheduler import DELAYS, MAX_LINGER_S, FlushScheduler

ROUND_TRIP_S = 0.002


class Timer:
    def __init__(self, when: float, callback: Callable[[], None]) -> None:
        self.when = when
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Loop:
    """Timers that a test runs by hand."""

    def __init__(self) -> None:
        self.now = 100.0
        self._timers: list[Timer] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        self._timers.append(Timer(when, callback))
        return self._timers[-1]

    def call_soon(self, callback: Callable[[], None]) -> Timer:
        return self.call_at(self.now, callback)

    def advance(self, seconds: float = 0.0) -> None:
        """Let time pass and call what is due."""
        self.now += seconds
        due = [timer for timer in self._timers if timer.when <= self.now]
        self._timers = [timer for timer in self._timers if timer not in due]
        for timer in due:
            if not timer.cancelled:
                timer.callback()


class Calls:
    """A scheduler, and what it called."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.loop = Loop()
        self.scheduler = FlushScheduler(self.loop)

    def first(self) -> None:
        self.made.append("first")

    def second(self) -> None:
        self.made.append("second")


def flushes() -> float:
    return next(
        s.value
        for m in telemetry.FLUSHES.collect()
        for s in m.samples
        if s.name == "tailrace_flushes_total"
    )


def appends(scheduler: FlushScheduler, round_trip_s: float | None, count: int = 200) -> None:
    for _ in range(count):
        scheduler.on_append()
        scheduler.on_appended(round_trip_s)


def test_frames_are_gathered_where_round_trips_take_longer_than_twice_the_least() -> None:
    scheduler = FlushScheduler(Loop())
    assert scheduler.linger_s == 0
    appends(scheduler, 0.001)
    assert scheduler.linger_s == 0
    appends(scheduler, 0.0019)
    assert scheduler.linger_s == 0
    appends(scheduler, 0.003)
    assert scheduler.linger_s == pytest.approx(DELAYS * 0.001, rel=0.2)
    appends(scheduler, None)  # failures say nothing
    assert scheduler.linger_s == pytest.approx(DELAYS * 0.001, rel=0.2)
    appends(scheduler, 0.5)
    assert scheduler.linger_s == MAX_LINGER_S
    appends(scheduler, 0.001)
    assert scheduler.linger_s == 0
    appends(scheduler, 0.01, count=12_000)  # the broker is farther away now
    assert scheduler.linger_s == 0


def test_a_flush_took_as_long_as_its_last_record() -> None:
    scheduler = FlushScheduler(Loop())
    for _ in range(200):
        for _ in range(3):
            scheduler.on_append()
        for round_trip_s in (0.4, 0.6, 0.001):
            scheduler.on_appended(round_trip_s)
    assert scheduler.linger_s == 0


def test_the_linger_begins_with_the_last_flush() -> None:
    calls = Calls()
    appends(calls.scheduler, 0.001)
    appends(calls.scheduler, 0.003)
    linger_s = calls.scheduler.linger_s
    calls.scheduler.schedule(calls.first)
    calls.loop.advance()
    appends(calls.scheduler, 0.003, count=1)
    calls.scheduler.schedule(calls.second)
    calls.loop.advance(linger_s * 0.8)
    assert calls.made == ["first"]
    calls.loop.advance(linger_s * 0.4)
    assert calls.made == ["first", "second"]


def test_after_silence_frames_go_out_in_the_next_turn_of_the_loop_and_together() -> None:
    calls = Calls()
    calls.scheduler.schedule(calls.first)
    calls.scheduler.schedule(calls.second)
    calls.scheduler.schedule(calls.first)
    assert calls.made == []
    before = flushes()
    calls.loop.advance()
    assert calls.made == ["first", "second"]
    assert flushes() - before == 1


def test_what_comes_while_frames_are_on_their_way_goes_out_when_the_broker_has_them() -> None:
    calls = Calls()
    calls.scheduler.schedule(calls.first)
    calls.loop.advance()
    for _ in range(2):  # its records
        calls.scheduler.on_append()
    for flush in (calls.second, calls.first, calls.second):
        calls.scheduler.schedule(flush)
    calls.loop.advance(MAX_LINGER_S * 0.4)
    calls.scheduler.on_appended(ROUND_TRIP_S)
    calls.loop.advance()
    assert calls.made == ["first"]
    calls.scheduler.on_appended(ROUND_TRIP_S)
    assert calls.made == ["first"]
    calls.loop.advance()
    assert calls.made == ["first", "second", "first"]
    calls.loop.advance(MAX_LINGER_S)
    assert calls.made == ["first", "second", "first"]


def test_a_broker_that_is_slow_delays_no_frame_for_longer_than_the_linger() -> None:
    calls = Calls()
    calls.scheduler.schedule(calls.first)
    calls.loop.advance()
    calls.scheduler.on_append()
    calls.scheduler.schedule(calls.second)
    calls.loop.advance(MAX_LINGER_S * 0.9)
    assert calls.made == ["first"]
    calls.loop.advance(MAX_LINGER_S * 0.2)
    assert calls.made == ["first", "second"]
    calls.loop.advance(MAX_LINGER_S * 1.1)
    calls.scheduler.schedule(calls.first)
    calls.loop.advance()
    assert calls.made == ["first", "second", "first"]


def test_an_acknowledgement_adds_no_second_flush() -> None:
    calls = Calls()
    calls.scheduler.on_append()
    calls.loop.advance(MAX_LINGER_S * 2)
    calls.scheduler.schedule(calls.first)  # for the next turn: the last flush is long past
    before = flushes()
    calls.scheduler.on_appended(ROUND_TRIP_S)
    calls.loop.advance()
    assert (calls.made, flushes() - before) == (["first"], 1)
    calls.scheduler.on_append()
    calls.scheduler.on_appended(ROUND_TRIP_S)
    calls.loop.advance()
    assert calls.made == ["first"]


def test_a_cancelled_callback_is_not_called_and_a_later_one_is() -> None:
    calls = Calls()
    calls.scheduler.schedule(calls.first)
    calls.scheduler.cancel(calls.first)
    before = flushes()
    calls.loop.advance()
    assert (calls.made, flushes() - before) == ([], 0)
    calls.scheduler.schedule(calls.second)
    calls.loop.advance()
    assert calls.made == ["second"]


def test_a_cancelled_callback_delays_no_later_one() -> None:
    calls = Calls()
    calls.scheduler.schedule(calls.first)
    calls.loop.advance()
    calls.scheduler.on_append()
    calls.scheduler.schedule(calls.first)
    calls.scheduler.cancel(calls.first)
    calls.scheduler.on_appended(ROUND_TRIP_S)
    calls.scheduler.schedule(calls.second)
    calls.loop.advance()
    assert calls.made == ["first", "second"]


def test_one_outage_does_not_gather_frames_for_long() -> None:
    scheduler = FlushScheduler(Loop())
    appends(scheduler, 0.001)
    appends(scheduler, 30.0, count=1)
    appends(scheduler, 0.001, count=20)
    assert scheduler.linger_s == 0


async def test_by_default_the_running_loop_has_the_timers() -> None:
    called = asyncio.Event()
    FlushScheduler().schedule(called.set)
    await asyncio.wait_for(called.wait(), 10)
