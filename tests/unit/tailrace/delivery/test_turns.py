"""Turns at the replays."""

from __future__ import annotations

import asyncio

import pytest

from tailrace.delivery.turns import Turns
from tailrace.fair_queue import Flow

CROWD, ALICE = Flow("crowd", "crowd|1"), Flow("alice", "alice|1")


async def test_a_newcomer_is_not_behind_a_crowd() -> None:
    turns, order, go = Turns(1), list[str](), asyncio.Event()

    async def one(flow: Flow) -> None:
        async with turns.acquire(flow, 10):
            order.append(flow.tenant)
            await go.wait()

    async with asyncio.TaskGroup() as tasks:
        for _ in range(50):
            tasks.create_task(one(CROWD))
        await asyncio.sleep(0)
        tasks.create_task(one(ALICE))
        await asyncio.sleep(0)
        assert order == ["crowd"]
        go.set()
    assert order[:3] == ["crowd", "alice", "crowd"]
    assert len(order) == 51


@pytest.mark.parametrize("granted", [False, True])
async def test_one_that_gives_up_leaves_its_place_to_the_next(granted: bool) -> None:
    turns = Turns(1)

    async def one() -> None:
        async with turns.acquire(ALICE, 1):
            pass

    async with turns.acquire(ALICE, 1):
        gone = asyncio.create_task(one())
        await asyncio.sleep(0)
        if not granted:
            gone.cancel()
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    async with asyncio.timeout(1), turns.acquire(CROWD, 1):
        pass


async def test_one_that_gives_up_while_it_waits_frees_no_place() -> None:
    turns, inside = Turns(1), asyncio.Event()

    async def one() -> None:
        async with turns.acquire(CROWD, 1):
            inside.set()

    async with turns.acquire(ALICE, 1):
        gone, waiting = asyncio.create_task(one()), asyncio.create_task(one())
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.wait([gone])
        await asyncio.sleep(0)
        assert not inside.is_set()
    await asyncio.wait_for(waiting, 1)
    assert inside.is_set()


async def test_what_was_taken_counts_by_its_cost() -> None:
    """Long look-ups of one principal use up the turns of many short ones."""
    turns, order = Turns(1), list[str]()

    async def one(flow: Flow, cost: float) -> None:
        async with turns.acquire(flow, cost):
            order.append(flow.tenant)

    async with asyncio.TaskGroup() as tasks, turns.acquire(Flow("other", "other|1"), 1):
        for _ in range(3):
            tasks.create_task(one(CROWD, 100))
        for _ in range(3):
            tasks.create_task(one(ALICE, 10))
        await asyncio.sleep(0)
    assert order == ["crowd", "alice", "alice", "alice", "crowd", "crowd"]
