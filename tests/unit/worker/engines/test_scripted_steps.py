"""The scripted engine's steps."""

from __future__ import annotations

import asyncio

from tailrace.settings import kinds
from worker.engines import scripted_steps


async def test_a_step_gives_each_response_that_waits_a_token() -> None:
    clock = scripted_steps.StepClock([(1, 0.001)], lambda: 3)
    order: list[int] = []

    async def response(number: int) -> None:
        for _ in range(5):
            await clock.next()
            order.append(number)

    await asyncio.gather(*map(response, range(3)))
    steps = [set(order[at : at + 3]) for at in range(0, len(order), 3)]
    assert steps == [{0, 1, 2}] * 5


async def test_a_response_that_leaves_takes_no_step_from_the_others() -> None:
    clock = scripted_steps.StepClock([(1, 0.001)], lambda: 2)
    left = asyncio.create_task(clock.next())
    stays = asyncio.create_task(clock.next())
    await asyncio.sleep(0)
    left.cancel()
    await asyncio.wait_for(stays, 10)


def test_durations_are_read_by_number() -> None:
    assert kinds.STEPS.parse("8:6.2, 1:6") == ((1, 0.006), (8, 0.0062))
