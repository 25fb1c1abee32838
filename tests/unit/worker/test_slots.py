"""Who may use the engine next."""

from __future__ import annotations

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
