"""When a client counts as one that takes nothing."""

from __future__ import annotations

import asyncio

import prometheus_client
import pytest

from tailrace.web import write_deadline

LONG = write_deadline.WRITE_DEADLINE_S


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_write_that_waits_is_overdue_after_the_deadline_and_not_before() -> None:
    clock = Clock()
    deadline = write_deadline.WriteDeadline(clock)
    with deadline:
        assert not deadline.overdue(100 + LONG - 1)
        assert deadline.overdue(100 + LONG)
    assert not deadline.overdue(100 + 10 * LONG)


def test_of_several_writers_one_that_gets_through_is_progress_for_all() -> None:
    clock = Clock()
    deadline = write_deadline.WriteDeadline(clock)
    with deadline:
        clock.now += LONG - 1
        with deadline:  # a second task, whose write gets through
            pass
        assert not deadline.overdue(100 + LONG)
        assert deadline.overdue(clock.now + LONG)


def test_a_client_is_idle_from_its_last_write_on() -> None:
    clock = Clock()
    deadline = write_deadline.WriteDeadline(clock)
    with deadline:
        clock.now += 5
        assert deadline.idle_s(clock.now) == 0
    assert deadline.idle_s(clock.now + 3) == 3


class Open:
    def __init__(self) -> None:
        self.checked: asyncio.Queue[float] = asyncio.Queue()

    def check_deadlines(self, now: float) -> None:
        self.checked.put_nowait(now)


async def test_every_open_connection_is_checked_again_and_again_until_it_closes() -> None:
    clock = Clock()
    checks = write_deadline.DeadlineChecks(clock, interval_s=0.001)
    first, second = Open(), Open()
    checks.add(first)
    checks.add(second)
    async with asyncio.timeout(5):
        assert [await first.checked.get() for _ in range(2)] == [100, 100]
        checks.discard(first)
        while not first.checked.empty():
            first.checked.get_nowait()
        for _ in range(second.checked.qsize() + 2):
            await second.checked.get()
    assert first.checked.empty()
    checks.discard(second)


async def test_checks_begin_again_when_a_connection_opens_after_all_have_closed() -> None:
    checks = write_deadline.DeadlineChecks(interval_s=0.001)
    for _ in range(2):
        connection = Open()
        checks.add(connection)
        async with asyncio.timeout(5):
            await connection.checked.get()
        checks.discard(connection)
        await asyncio.sleep(0.005)


def egress_seconds() -> float:
    total = prometheus_client.REGISTRY.get_sample_value(
        "tailrace_stage_seconds_sum", {"stage": "egress"}
    )
    assert total is not None
    return total


def test_one_write_of_sixteen_is_observed_as_the_stage_egress() -> None:
    clock = Clock()
    deadline = write_deadline.WriteDeadline(clock)
    before = egress_seconds()
    for seconds in (0.25, *[8.0] * (write_deadline.OBSERVED_EACH - 1), 0.5):
        with deadline:
            clock.now += seconds
        clock.now += 7  # nothing waits to be written
    assert egress_seconds() - before == pytest.approx(0.75)
