"""Which requests are offered to idle workers, and which of these one takes."""

from __future__ import annotations

import msgspec
import pytest

from worker.queue.offer_selection import (
    MAX_PLACES,
    Offer,
    Place,
    Speed,
    Waiting,
    select_offers,
    select_places,
)
from worker.queue.start_forecast import StartForecast

# 10 tokens a second, half of what is asked for, 50 tokens each: a request in 5 seconds.
SPEED = Speed(part=0.5, each=50.0, forecast=StartForecast(rate=10.0))


def waiting(*flows: str, rank: int = 0, asked: float = 100.0, first: int = 0) -> list[Waiting]:
    """One request for each name, in this order."""
    return [Waiting(rank, name, asked, 0, first + n) for n, name in enumerate(flows)]


def offsets(places: list[Place]) -> list[int]:
    return [place.offset for place in places]


def test_what_starts_last_is_offered_first_and_what_starts_soon_is_not() -> None:
    places = select_offers(waiting(*"aaaa"), 0.0, SPEED, 11.0)
    assert offsets(places) == [3, 2]
    assert [place.wait_s for place in places] == [20.0, 15.0]
    assert {place.tokens for place in places} == {50.0}


def test_nothing_is_offered_before_anything_was_measured() -> None:
    assert select_offers(waiting(*"aaaa"), 0.0, Speed(1.0, 0.0, None), 0.5) == []


def test_everything_is_offered_of_an_engine_that_makes_nothing() -> None:
    places = select_offers(waiting("a"), 0.0, Speed(1.0, 0.0, StartForecast()), 0.5)
    assert [place.wait_s for place in places] == [1e9]
    assert msgspec.json.decode(msgspec.json.encode(Offer("x", 8, 0.0, places)), type=Offer).places


def test_nothing_is_offered_where_a_slot_is_free_at_once() -> None:
    fast = Speed(part=0.5, each=50.0, forecast=StartForecast(rate=10_000.0))
    assert select_offers(waiting(*"aaaa"), 0.0, fast, 0.5) == []


def test_principals_take_turns_and_one_with_little_waits_less() -> None:
    queue = waiting(*"aaaaaaaab")
    places = select_offers(queue, 0.0, SPEED, 4.0)
    # b waits behind half a request of a and a slot; the last ones of a behind all that is before.
    assert {place.offset: place.wait_s for place in places}[8] == 7.5
    assert offsets(places)[:3] == [7, 8, 6]
    assert len({place.flow for place in places}) == 2


def test_interactive_comes_before_batch_which_waits_for_all_of_it() -> None:
    queue = [*waiting("a", rank=1, first=100), *waiting(*"bb")]
    places = select_offers(queue, 0.0, SPEED, 4.0)
    assert [(place.rank, place.wait_s) for place in places] == [(0, 10.0), (0, 5.0), (1, 15.0)]


def test_what_other_workers_had_begun_is_ahead_of_all() -> None:
    assert [place.wait_s for place in select_offers(waiting("a"), 200.0, SPEED, 4.0)] == [15.0]


def test_an_offer_is_bounded_and_lower_ranks_fill_it_first() -> None:
    queue = [*waiting(*("a" * 100)), *waiting(*("b" * 100), rank=1)]
    places = select_offers(queue, 0.0, SPEED, 0.5)
    assert len(places) == MAX_PLACES
    assert {place.rank for place in places} == {0}
    many = select_offers(waiting(*(str(n) for n in range(100))), 0.0, SPEED, 0.5)
    assert len(many) == MAX_PLACES


# ---- what is taken


def place(offset: int, *, rank: int = 0, flow: int = 0, wait_s: float = 10.0) -> Place:
    return Place(rank, 0, offset, flow, wait_s, 50.0)


def take(
    *places: Place,
    free: int = 9,
    pace: float = 0.0,
    there: float = 0.0,
    tried: object = (),
    length: int = 8,
) -> list[int]:
    taken = select_places(
        {"busy": Offer("x", 8, there, list(places))},
        like="x",
        length=length,
        pace=pace,
        free=free,
        recent=tried,  # type: ignore[arg-type]
        below=lambda n: n - 1,
    )
    return offsets(taken)


def test_no_more_is_taken_than_there_are_free_slots() -> None:
    assert take(place(1), place(2), place(3), free=2) == [3, 2]
    assert take(place(1), free=0) == []


def test_principals_take_turns_at_the_taker_as_well() -> None:
    many = [place(n, flow=1) for n in range(10)]
    assert sorted(take(*many, place(50, flow=2), free=2)) == [9, 50]


def test_interactive_is_taken_before_batch() -> None:
    assert take(place(1, rank=1), place(2, rank=0), free=1) == [2]
    assert sorted(take(place(1, rank=1), place(2, rank=0), free=2)) == [1, 2]


def test_a_place_that_was_tried_is_not_taken_again() -> None:
    assert take(place(1), place(2), tried={(0, 0, 1)}) == [2]


def test_nothing_is_taken_of_a_worker_that_serves_something_else() -> None:
    offers = {"busy": Offer("x", 8, 0.0, [place(1)])}
    places = select_places(
        offers, like="y", length=8, pace=0.0, free=9, recent=(), below=lambda n: 0
    )
    assert places == []


def test_nothing_is_taken_of_a_worker_whose_model_reads_more() -> None:
    assert take(place(1), length=7) == []
    assert take(place(1), length=9) == [1]


@pytest.mark.parametrize(("wait_s", "taken"), [(39.0, []), (41.0, [1])])
def test_a_slow_worker_takes_what_ends_there_sooner(wait_s: float, taken: list[int]) -> None:
    # 50 tokens take 50 s here and 10 s there.
    assert take(place(1, wait_s=wait_s), pace=1.0, there=5.0) == taken


def test_a_worker_that_has_run_nothing_takes_what_it_gets() -> None:
    assert take(place(1, wait_s=1.0), pace=0.0, there=5.0) == [1]
