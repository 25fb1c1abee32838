"""When frames are written. Time is the test's own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tailrace import telemetry
from worker.text.flush_scheduler import MAX_LINGER_S, MIN_LINGER_S, FlushScheduler


class Loop:
    """Timers that a test runs by hand."""

    def __init__(self) -> None:
        self.now = 100.0
        self._timers: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[[], None]) -> None:
        self._timers.append((when, callback))

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._timers.append((self.now, callback))

    def advance(self, seconds: float = 0.0) -> None:
        """Let time pass and call what is due."""
        self.now += seconds
        due = [callback for when, callback in self._timers if when <= self.now]
        self._timers = [(when, callback) for when, callback in self._timers if when > self.now]
        for callback in due:
            callback()


class Calls:
    """A scheduler with the longest linger, and what it called."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.loop = Loop()
        self.scheduler = FlushScheduler(lambda: 100, self.loop)
        self.scheduler.observe(10.0)

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


def test_the_linger_follows_the_round_trips_and_the_number_of_streams() -> None:
    running = 16
    scheduler = FlushScheduler(lambda: running, Loop())
    assert scheduler.linger_s == MIN_LINGER_S
    for _ in range(200):
        scheduler.observe(0.002)
    assert scheduler.linger_s == pytest.approx(0.006, rel=0.01)
    running = 17
    assert scheduler.linger_s == pytest.approx(0.012, rel=0.01)
    running = 65
    assert scheduler.linger_s == pytest.approx(0.024, rel=0.01)
    scheduler.observe(0.5)
    assert scheduler.linger_s == MAX_LINGER_S
    for _ in range(200):
        scheduler.observe(0.0001)
    assert scheduler.linger_s == MIN_LINGER_S


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


def test_frames_that_follow_linger_and_go_out_once_and_together() -> None:
    calls = Calls()
    calls.scheduler.schedule(calls.first)
    calls.loop.advance()
    for flush in (calls.second, calls.first, calls.second):
        calls.scheduler.schedule(flush)
    calls.loop.advance(MAX_LINGER_S * 0.9)
    assert calls.made == ["first"]
    calls.loop.advance(MAX_LINGER_S * 0.2)
    assert calls.made == ["first", "second", "first"]


def test_a_response_that_was_silent_for_a_linger_does_not_wait_for_one() -> None:
    calls = Calls()
    calls.scheduler.schedule(calls.first)
    calls.loop.advance()
    calls.loop.advance(MAX_LINGER_S * 1.1)
    calls.scheduler.schedule(calls.second)
    calls.loop.advance()
    assert calls.made == ["first", "second"]


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


async def test_by_default_the_running_loop_has_the_timers() -> None:
    called = asyncio.Event()
    FlushScheduler(lambda: 1).schedule(called.set)
    await asyncio.wait_for(called.wait(), 10)
