"""How long requests wait: what goes before them over how fast the worker drains."""

from __future__ import annotations

import math

import pytest

from tailrace.fair_queue import Flow
from worker.queue.read_ahead import Overflow
from worker.queue.slots import BATCH, STARTED, Slots
from worker.queue.start_forecast import StartForecast
from worker.queue.waits import Drain, Waits, new_request_waits, places
from worker.queue.workload import Totals, Workload

ALICE, BOB = (Flow(name, name) for name in ("alice", "bob"))
NONE = [Overflow({}, 0)] * 2


def measured(*, interactive: float = 0.0) -> Workload:
    """Half of what is asked for is made: 50 tokens of each request, 100 tokens a second."""
    work = Workload()
    for second in range(1, 101):
        totals = Totals(100 * second, 2.0 * second, 200.0 * second)
        work.measure(totals, 1.0, had_queue=True, interactive=interactive)
    return work


def queue(slots: Slots, rank: int, flow: Flow, count: int) -> None:
    for number in range(count):
        slots.acquire(rank, flow, 100.0, f"{flow.principal}-{rank}-{number}")


def new(slots: Slots, work: Workload, unserved: list[Overflow] = NONE) -> Waits:
    waiting = [
        (slots.waiting_cost(rank) + sum(left.aside.values())) * work.part + left.unread * work.each
        for rank, left in enumerate(unserved)
    ]
    waiting[0] += slots.waiting_cost(STARTED) * work.part
    return new_request_waits(slots, work, unserved, waiting)


def etas(slots: Slots, work: Workload) -> dict[str, float | None]:
    positions, _ = places(slots, work, lambda _rank: {}, NONE)
    return {rid: place.eta_s for rid, place in positions.items()}


class TestDrain:
    def test_a_request_waits_until_what_is_ahead_has_begun_and_a_place_comes_free(self) -> None:
        drain = Drain(StartForecast(rate=100.0), each=50.0)
        assert drain.interactive_s(0.0) == 0.5
        assert drain.interactive_s(250.0) == 3.0

    def test_the_wait_follows_the_slots_that_come_free_where_that_is_known(self) -> None:
        drain = Drain(StartForecast((1.0, 9.0), (60.0, 100.0), 10.0), each=50.0)
        assert drain.interactive_s(10.0) == 1.0
        assert drain.interactive_s(50.0) == 9.0

    def test_interactive_requests_begin_in_the_place_of_batch_responses(self) -> None:
        drain = Drain(StartForecast(rate=100.0), each=50.0, pausable=100.0)
        assert drain.interactive_s(50.0) == 0.0
        assert drain.interactive_s(150.0) == 1.0

    def test_batch_requests_have_what_interactive_ones_leave(self) -> None:
        drain = Drain(StartForecast(rate=100.0), each=50.0, batch_part=0.5)
        assert drain.batch_s(150.0, interactive=0.0) == 200 / 50
        assert drain.batch_s(150.0, interactive=100.0) == 300 / 50

    def test_and_at_least_their_share(self) -> None:
        drain = Drain(StartForecast(rate=100.0), each=50.0, batch_share=0.1, batch_part=0.02)
        assert drain.batch_s(150.0, interactive=10_000.0) == 200 / 10

    def test_without_a_share_they_wait_for_long_but_not_for_ever(self) -> None:
        drain = Drain(StartForecast(rate=100.0), each=50.0, batch_part=0.0)
        assert 100.0 < drain.batch_s(150.0, interactive=0.0) < math.inf


class TestNewRequests:
    async def test_a_light_principal_does_not_wait_for_a_heavy_one(self) -> None:
        slots, work = Slots(1), measured()
        queue(slots, 0, ALICE, 101)
        new_waits = new(slots, work)
        assert new_waits.by_name["alice"][0] == pytest.approx(101 * 50 / 100)
        assert new_waits.others[0] < 1.1

    async def test_a_new_principal_has_the_place_of_an_answer_of_one_with_more_than_its_share(
        self,
    ) -> None:
        """It was refused for the time until one of those answers ends."""
        slots, work = Slots(4), measured()
        for _ in range(4):
            slots.acquire(0, ALICE, 100.0, pausable=True)
        queue(slots, 0, ALICE, 40)
        new_waits = new(slots, work)
        assert new_waits.others[0] == 0.0
        assert new_waits.by_name["alice"][0] == pytest.approx(41 * 50 / 100)

    async def test_batch_waits_behind_interactive_requests(self) -> None:
        slots, work = Slots(1), measured(interactive=0.5)
        queue(slots, 0, ALICE, 11)
        queue(slots, BATCH, BOB, 4)
        new_waits = new(slots, work)
        assert new_waits.by_name["bob"][1] == pytest.approx(
            (10 + 4 + 1) * 50 / (0.5 * 100), rel=0.02
        )
        assert new_waits.others[1] >= 11 * 50 / (0.5 * 100)
        assert new_waits.others[0] < 1.1, "and not the other way round"

    async def test_batch_requests_get_their_share_whatever_interactive_ones_wait(self) -> None:
        slots, work = Slots(1, batch_share=0.2), measured(interactive=1.0)
        queue(slots, 0, ALICE, 1_000)
        queue(slots, BATCH, BOB, 4)
        assert new(slots, work).by_name["bob"][1] == pytest.approx(5 * 50 / (0.2 * 100), rel=0.02)

    async def test_interactive_requests_wait_for_that_share_while_there_is_batch(self) -> None:
        slots, work = Slots(1, batch_share=0.5), measured()
        queue(slots, 0, ALICE, 11)
        queue(slots, BATCH, BOB, 2)
        assert new(slots, work).by_name["alice"][0] == pytest.approx((10 + 2 + 1) * 50 / 100)

    async def test_what_others_had_begun_goes_before_all(self) -> None:
        slots, work = Slots(1), measured()
        queue(slots, 0, ALICE, 1)
        queue(slots, STARTED, BOB, 4)
        assert new(slots, work).others == (pytest.approx(2.5), pytest.approx(2.5))

    async def test_what_was_set_aside_and_what_was_not_read_waits_too(self) -> None:
        slots, work = Slots(1), measured()
        queue(slots, 0, ALICE, 2)
        plain = new(slots, work)
        aside = new(slots, work, [Overflow({"alice": 400.0}, 0), Overflow({}, 0)])
        assert aside.by_name["alice"][0] == pytest.approx(plain.by_name["alice"][0] + 2.0)
        assert aside.others[0] == plain.others[0]
        unread = new(slots, work, [Overflow({}, 6), Overflow({}, 0)])
        assert unread.others[0] == pytest.approx(plain.others[0] + 3.0)

    async def test_prompts_that_are_charged_make_no_wait_longer(self) -> None:
        """Nine tenths of what a request is charged with is its prompt."""
        slots, work = Slots(1), Workload()
        for _ in range(50):
            slots.release(slots.acquire(0, ALICE, 1_100.0), tokens=1_000.0)
        for _ in range(5):
            slots.acquire(0, ALICE, 1_100.0)
        work.measure(Totals(50 * 100, 50, 50 * 1_100.0), 10.0, had_queue=True)
        assert new(slots, work).by_name["alice"][0] == pytest.approx(5 * 100 / 500, rel=0.02)


class TestPlaces:
    async def test_a_request_waits_for_what_is_before_it(self) -> None:
        slots, work = Slots(1), measured()
        queue(slots, 0, ALICE, 3)
        positions, rest = places(slots, work, lambda _rank: {}, NONE)
        assert list(positions) == ["alice-0-1", "alice-0-2"]
        assert [place.position for place in positions.values()] == [0, 1]
        assert [place.eta_s for place in positions.values()] == [
            pytest.approx(0.5),
            pytest.approx(1),
        ]
        assert rest is None

    async def test_batch_requests_have_what_interactive_ones_leave(self) -> None:
        """At half of the capacity interactive requests come while it waits."""
        slots = Slots(1, batch_share=0.1)
        queue(slots, 0, ALICE, 1)
        queue(slots, BATCH, BOB, 2)
        assert etas(slots, measured())["bob-1-1"] == pytest.approx(1.0)
        assert etas(slots, measured(interactive=0.5))["bob-1-1"] == pytest.approx(2.0, rel=0.02)
        assert etas(slots, measured(interactive=1.0))["bob-1-1"] == pytest.approx(10.0, rel=0.02)

    async def test_before_a_rate_is_known_only_the_position_is_known(self) -> None:
        slots = Slots(1)
        queue(slots, 0, ALICE, 3)
        assert list(etas(slots, Workload()).values()) == [None, None]

    async def test_of_too_many_the_first_have_places_and_the_others_a_bound(self) -> None:
        slots, work = Slots(1), measured()
        queue(slots, 0, ALICE, 4)
        positions, rest = places(slots, work, lambda _rank: {}, NONE, most=2)
        assert list(positions) == ["alice-0-1", "alice-0-2"]
        assert rest is not None
        assert (rest.position, rest.eta_s) == (2, pytest.approx(1.5))
        assert places(slots, work, lambda _rank: {}, NONE, most=3)[1] is None

    async def test_a_request_that_was_not_read_stands_behind_all(self) -> None:
        slots, work = Slots(1), measured()
        queue(slots, 0, ALICE, 3)
        unread = [Overflow({}, 0), Overflow({}, 1)]
        _, rest = places(slots, work, lambda _rank: {}, unread)
        assert rest is not None
        assert (rest.position, rest.eta_s) == (2, pytest.approx(1.5))

    async def test_what_was_set_aside_stands_behind_its_principals_other_requests(self) -> None:
        slots, work = Slots(1), measured()
        queue(slots, 0, ALICE, 2)
        positions, _ = places(
            *(slots, work, lambda rank: {} if rank else {"alice": [("aside", 100.0)]}),
            [Overflow({"alice": 100.0}, 0), Overflow({}, 0)],
        )
        assert [*positions] == ["alice-0-1", "aside"]
        assert positions["aside"].eta_s == pytest.approx(1.0)
