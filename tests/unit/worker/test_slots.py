"""Who may use the engine next."""

from __future__ import annotations

from worker import slots


async def test_places_are_given_up_to_the_capacity_and_the_best_class_goes_first() -> None:
    places = slots.Slots(1)
    first = places.request(0)
    batch, urgent, later = places.request(1), places.request(0), places.request(0)
    assert first.done()
    assert (places.running, places.queued) == (1, 3)
    places.release()
    assert (urgent.done(), later.done(), batch.done()) == (True, False, False)
    places.release()
    places.release()
    assert batch.done()
    assert places.running == 1


async def test_whoever_gives_up_waiting_takes_no_place() -> None:
    places = slots.Slots(1)
    places.request(0)
    gone, next_one = places.request(0), places.request(0)
    places.withdraw(gone)
    places.release()
    assert next_one.done()
    assert places.running == 1


async def test_a_place_granted_before_it_was_withdrawn_is_given_back() -> None:
    places = slots.Slots(1)
    turn = places.request(0)
    places.withdraw(turn)
    assert places.running == 0
