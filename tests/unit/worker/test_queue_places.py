"""Where requests stand, and when their turn comes."""

from __future__ import annotations

import pytest

from tailrace.fair_queue import Flow
from tailrace.protocol.queue_place import Place
from worker.queue_places import Waiting, places
from worker.read_ahead import Unserved
from worker.slots import BATCH, STARTED, Slots
from worker.told_waits import places_at
from worker.workload import Totals, Workload

ORDER = [
    Waiting("a", STARTED, 0.0, 50.0),
    Waiting("b", 0, 10.0, 150.0),
    Waiting("c", BATCH, 20.0, 50.0),
]
ALICE, BOB = (Flow(name, name) for name in ("alice", "bob"))
NONE = [Unserved({}, 0)] * 2


def measured() -> Workload:
    """Half of what is asked for is made: 50 tokens of each request, 100 tokens a second."""
    work = Workload()
    work.measure(Totals(100, 2, 200), 1.0, waited=True)
    return work


def never(_rank: int, _turn: float) -> float:
    """Nothing comes later."""
    return 0.0


def test_a_request_waits_for_what_those_before_it_will_make_and_for_a_place() -> None:
    assert places(ORDER, measured(), never, more=False) == (
        {"a": Place(0, 0.5), "b": Place(1, 1.0), "c": Place(2, 2.5)},
        None,
    )


def test_and_for_what_comes_later_and_goes_first() -> None:
    later = {(STARTED, 0.0): 0.0, (0, 10.0): 2.0, (BATCH, 20.0): 9.0}
    found, rest = places(ORDER, measured(), lambda *at: later[at], more=True)
    assert found == {"a": Place(0, 0.5), "b": Place(1, 3.0), "c": Place(2, 11.5)}
    assert rest == Place(3, 12.0)


def test_the_wait_is_that_of_the_slots_that_come_free_where_that_is_known() -> None:
    work = Workload()
    # One slot, held for a second by one half of the requests and for three by the other.
    work.measure(Totals(2_000, 40, 4_000), 40.0, waited=True, holds=[1.0, 3.0] * 10)
    work.look_ahead(200.0, [2.9])
    found, _ = places(ORDER, work, never, more=False)
    eta_s = found["a"].eta_s
    assert eta_s is not None
    assert eta_s < 0.6  # by the rate alone it is 1 s


def test_before_a_rate_is_known_only_the_position_is_told() -> None:
    found, rest = places(ORDER, Workload(), never, more=True)
    assert list(found.values()) == [Place(0, None), Place(1, None), Place(2, None)]
    assert rest == Place(3, None)


def test_of_too_many_the_first_are_told_and_a_bound_for_the_others() -> None:
    assert places(iter(ORDER), measured(), never, more=False, most=2) == (
        {"a": Place(0, 0.5), "b": Place(1, 1.0)},
        Place(2, 2.5),
    )
    assert places(ORDER, measured(), never, more=False, most=3)[1] is None


def test_a_request_that_was_not_read_stands_behind_all() -> None:
    assert places(ORDER, measured(), never, more=True)[1] == Place(3, 3.0)


def wait_of(slots: Slots, work: Workload, rid: str) -> float:
    found, _ = places_at(slots, work, lambda _rank: {}, NONE)
    eta_s = found[rid].eta_s
    assert eta_s is not None
    return eta_s


async def test_interactive_requests_that_come_later_go_before_batch_requests() -> None:
    """A batch request was told the time that the whole rate would take, and with interactive
    requests at half of the capacity it waited for twice as long."""
    slots, work = Slots(1, batch_share=0.1), measured()
    slots.acquire(0, ALICE, 100.0, "runs")
    for name in ("first", "second"):
        slots.acquire(BATCH, BOB, 100.0, name)
    alone = wait_of(slots, work, "second")
    assert alone == pytest.approx((50 + 50) / 100, rel=0.05)
    for _ in range(60):  # half of the capacity
        slots.demand.came("alice", 0, 100.0)
        slots.demand.measure(1.0)
        slots.demand.came("bob", 0, 0.0)
    # Charges are what was asked for, of which a half will be taken.
    slots.acquire(0, ALICE, 100.0, "urgent", again=True)
    assert wait_of(slots, work, "urgent") == pytest.approx(0.5, rel=0.1)
    assert wait_of(slots, work, "second") == pytest.approx(2 * (50 + 50 + 50) / 100, rel=0.2)


async def test_batch_requests_get_their_share_whatever_comes() -> None:
    slots, work = Slots(1, batch_share=0.5), measured()
    for rank, name in ((0, "runs"), (BATCH, "batch")):
        slots.acquire(rank, BOB, 100.0, name)
    for _ in range(60):
        slots.demand.came("alice", 0, 1e6)
        slots.demand.measure(1.0)
    assert wait_of(slots, work, "batch") == pytest.approx(0.5 + 0.5 / 0.5, rel=0.2)


async def test_others_who_were_given_less_go_before_a_request_that_waits() -> None:
    slots, work = Slots(1), measured()
    slots.acquire(0, ALICE, 100.0, "runs")
    for n in range(10):
        slots.acquire(0, ALICE, 100.0, f"{n}")
    alone = wait_of(slots, work, "9")
    slots.acquire(0, BOB, 100.0, "bob", again=True)
    for _ in range(60):
        slots.demand.came("bob", 0, 50.0)
        slots.demand.measure(1.0)
    assert wait_of(slots, work, "9") > 1.2 * (alone + 0.5)
    assert wait_of(slots, work, "0") < 1.5


async def test_what_was_set_aside_stands_behind_its_principals_other_requests() -> None:
    slots, work = Slots(1), measured()
    for name in ("runs", "first"):
        slots.acquire(0, ALICE, 100.0, name)
    found, _ = places_at(
        *(slots, work, lambda rank: {} if rank else {"alice": [("aside", 100.0)]}),
        [Unserved({"alice": 100.0}, 0), Unserved({}, 0)],
    )
    assert [*found] == ["first", "aside"]
    assert found["aside"].eta_s == pytest.approx(1.0, rel=0.1)
