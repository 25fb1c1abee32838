"""When frames go out."""

from __future__ import annotations

import asyncio

import pytest

from tailrace import telemetry
from worker import flush_scheduler


def test_the_window_follows_the_round_trips() -> None:
    running = 16
    scheduler = flush_scheduler.FlushScheduler(lambda: running)
    assert scheduler.linger_s == flush_scheduler.MIN_LINGER_S
    for _ in range(200):
        scheduler.acknowledged(0.002)
    assert scheduler.linger_s == pytest.approx(0.006, rel=0.01)
    running = 17
    assert scheduler.linger_s == pytest.approx(0.012, rel=0.01)
    running = 65
    assert scheduler.linger_s == pytest.approx(0.024, rel=0.01)
    scheduler.acknowledged(0.5)
    assert scheduler.linger_s == flush_scheduler.MAX_LINGER_S
    for _ in range(200):
        scheduler.acknowledged(0.0001)
    assert scheduler.linger_s == flush_scheduler.MIN_LINGER_S


class Calls:
    """A scheduler with the widest window, and what it called."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.scheduler = flush_scheduler.FlushScheduler(lambda: 100)
        self.scheduler.acknowledged(10.0)

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


async def turn() -> None:
    """One turn of the loop, and those it scheduled for the next."""
    for _ in range(3):
        await asyncio.sleep(0)


async def test_what_nothing_went_before_goes_out_in_this_turn_of_the_loop() -> None:
    calls = Calls()
    calls.scheduler.schedule(calls.first)
    calls.scheduler.schedule(calls.second)
    calls.scheduler.schedule(calls.first)
    assert calls.made == []
    before = flushes()
    await turn()
    assert calls.made == ["first", "second"]
    assert flushes() - before == 1, "they share a round trip"


async def test_what_follows_waits_for_the_window_and_goes_out_once_and_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        flush_scheduler, "MAX_LINGER_S", 0.5
    )  # so wide that a machine that stands still for a moment changes nothing
    calls = Calls()
    calls.scheduler.schedule(calls.first)
    await turn()
    began = asyncio.get_running_loop().time()
    calls.scheduler.schedule(calls.second)
    await turn()
    calls.scheduler.schedule(calls.first)
    calls.scheduler.schedule(calls.second)
    assert calls.made == ["first"]
    while len(calls.made) < 3:  # noqa: ASYNC110 - the scheduler tells nobody
        await asyncio.sleep(0.001)
    assert calls.made == ["first", "second", "first"]
    assert asyncio.get_running_loop().time() - began >= flush_scheduler.MAX_LINGER_S / 2
    await asyncio.sleep(flush_scheduler.MAX_LINGER_S)
    calls.scheduler.schedule(calls.second)
    await turn()
    assert calls.made[-1] == "second", "who was silent for a window does not wait for one"
    assert len(calls.made) == 4


async def test_one_who_wrote_by_itself_is_not_called_again() -> None:
    calls: list[int] = []
    scheduler = flush_scheduler.FlushScheduler(lambda: 100)

    def write() -> None:
        calls.append(1)

    scheduler.schedule(write)
    scheduler.cancel(write)
    await asyncio.sleep(0.01)
    assert calls == []
