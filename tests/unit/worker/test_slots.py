"""Who may use the engine next."""

from __future__ import annotations

import asyncio

import pytest

from worker import slots


async def test_slots_are_given_up_to_the_capacity_and_the_best_class_goes_first() -> None:
    pool = slots.Slots(1)
    first = pool.acquire(0)
    batch, urgent, later = pool.acquire(1), pool.acquire(0), pool.acquire(0)
    assert first.done()
    assert (pool.running, pool.queued) == (1, 3)
    pool.release()
    assert (urgent.done(), later.done(), batch.done()) == (True, False, False)
    pool.release()
    pool.release()
    assert batch.done()
    assert pool.running == 1


async def test_one_that_gives_up_waiting_takes_no_slot() -> None:
    pool = slots.Slots(1)
    pool.acquire(0)
    gone, next_one = pool.acquire(0), pool.acquire(0)
    pool.withdraw(gone)
    pool.release()
    assert next_one.done()
    assert pool.running == 1


async def test_a_slot_granted_before_it_was_withdrawn_is_given_back() -> None:
    pool = slots.Slots(1)
    turn = pool.acquire(0)
    pool.withdraw(turn)
    assert pool.running == 0


async def granted(turn: slots.Turn) -> None:
    """Wait until the slot is granted."""
    await asyncio.wait((turn,))


async def unwanted(_turn: slots.Turn) -> None:
    """The slot is not wanted any more."""


async def test_a_response_holds_one_slot_of_each_pool_and_gives_all_back_at_once() -> None:
    held, pools = slots.HeldSlots(), (slots.Slots(1), slots.Slots(2))
    for pool in pools:
        await held.acquire(pool, 0, granted)
        assert pool in held
    held.release()
    assert [pool.running for pool in pools] == [0, 0]
    assert not any(pool in held for pool in pools)


async def test_a_slot_that_is_no_longer_wanted_is_not_held() -> None:
    held, pool = slots.HeldSlots(), slots.Slots(1)
    pool.acquire(0)
    await held.acquire(pool, 0, unwanted)
    assert pool not in held
    pool.release()
    assert (pool.running, pool.queued) == (0, 0)


async def test_a_response_that_is_cancelled_while_it_waits_leaves_the_queue() -> None:
    held, pool = slots.HeldSlots(), slots.Slots(1)
    pool.acquire(0)
    waiting = asyncio.create_task(held.acquire(pool, 0, granted))
    await asyncio.sleep(0)
    assert pool.queued == 1
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    pool.release()
    assert (pool.running, pool.queued) == (0, 0)
