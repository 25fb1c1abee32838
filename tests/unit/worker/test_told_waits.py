"""How long a new request of each principal would wait."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import pytest

from tailrace.fair_queue import FairQueue, Flow
from worker import told_waits
from worker.read_ahead import Unserved
from worker.slots import BATCH, STARTED, Slots
from worker.starts import Starts
from worker.told_waits import Queues, Turns
from worker.workload import Totals, Workload

EACH = 10.0
RATE = 100.0


def queue(
    waiting: Mapping[str, int],
    weight: Mapping[str, float] | None = None,
    *,
    tenant: str = "",
    cost: float = EACH,
) -> FairQueue[str]:
    """So many requests of each principal wait, which are of one tenant or of one each."""
    found = FairQueue[str](lambda name: (weight or {}).get(name, 1.0))
    for name, count in waiting.items():
        for _ in range(count):
            found.push(Flow(tenant or name, name), name, cost)
    return found


def turns(
    of: FairQueue[str],
    per_s: Mapping[str, float] | None = None,
    *,
    aside: Mapping[str, float] | None = None,
    times: float = 1.0,
    unread: float = 0.0,
) -> Turns:
    now, tenants = of.standing()
    coming = per_s or {}
    return Turns(now, tenants, aside or {}, lambda p: coming.get(p, 0.0), EACH, times, unread)


def found_for(
    interactive: Turns | None = None,
    batch: Turns | None = None,
    *,
    first: float = 0.0,
    share: float = 0.0,
    per_s: float = 0.0,
    rate: float = RATE,
    makes_way: float = 0.0,
) -> told_waits.Told:
    nothing = turns(queue({}))
    starts = Starts(rate=rate)
    of_both = (interactive or nothing), (batch or nothing)
    return told_waits.told(Queues(first, of_both, share, per_s, EACH, starts, makes_way))


class Waits(NamedTuple):
    """The seconds of a `Told`."""

    of: dict[str, tuple[float, ...]]
    others: tuple[float, ...]


def told(interactive: Turns | None = None, batch: Turns | None = None, **more: float) -> Waits:
    found = found_for(interactive, batch, **more)
    of = {name: tuple(each.seconds for each in both) for name, both in found.of.items()}
    return Waits(of, tuple(each.seconds for each in found.others))


def begins_after(of: FairQueue[str], name: str, tenant: str = "") -> float:
    """Tokens that are taken until a new request of the principal has its turn, and its own."""
    of.push(Flow(tenant or name, name), "new", EACH)
    costs, popped = 0.0, ""
    while popped != "new":
        found = of.pop()
        assert found is not None
        popped = found[1]
        costs += EACH
    return costs


COUNTS = {"alice": 2, "bob": 9, "carol": 5}


@pytest.mark.parametrize("name", [*COUNTS, "dave"])
@pytest.mark.parametrize("tenant", ["", "acme"])
def test_a_wait_is_what_is_taken_before(name: str, tenant: str) -> None:
    """Exactly, also where turns come at the same time."""
    found = told(turns(queue(COUNTS, tenant=tenant)))
    wait_s = (found.of.get(name) or found.of.get(tenant) or found.others)[0]
    true = begins_after(queue(COUNTS, tenant=tenant), name, tenant)
    assert wait_s * RATE == pytest.approx(true)


def test_a_principal_that_was_given_much_waits_longer_than_one_that_was_not() -> None:
    """The number of its requests says nothing of that, and by it all had been told the same."""
    of = queue({"alice": 5, "bob": 5, "carol": 5})
    of.settle(Flow("alice", "alice"), 200.0)
    waits = told(turns(of)).of
    assert waits["alice"][0] > 1.4 * waits["bob"][0]
    assert waits["bob"] == waits["carol"]
    assert waits["alice"][0] == pytest.approx((150 + 10) / RATE)


@pytest.mark.parametrize("tenant", ["", "acme"])
def test_a_second_request_waits_for_one_more_turn_of_those_that_wait(tenant: str) -> None:
    """A gateway told the same wait to all that was asked before the next heartbeat."""
    found = found_for(turns(queue({"alice": 6, "bob": 20, "carol": 20}, tenant=tenant)))
    alice, bob = (found.of[name][0].behind_one for name in ("alice", "bob"))
    assert alice == pytest.approx(2.5 * EACH / RATE, abs=0.5 * EACH / RATE + 0.01)
    assert bob == pytest.approx(EACH / RATE), "nothing else is before it then"
    interactive, batch = turns(queue({"alice": 6, "bob": 9})), turns(queue({"carol": 3}))
    carol = found_for(interactive, batch).of["carol"][0]
    assert carol.behind_one == pytest.approx(2 * EACH / RATE), "she is new among them"


def test_heavier_tenants_wait_less() -> None:
    even = told(turns(queue({"alice": 6, "bob": 20}))).of["alice"][0]
    heavy = told(turns(queue({"alice": 6, "bob": 20}, {"alice": 4.0}))).of["alice"][0]
    assert heavy == pytest.approx(
        begins_after(queue({"alice": 6, "bob": 20}, {"alice": 4.0}), "alice") / RATE, abs=0.1
    )
    assert heavy < 0.75 * even


@pytest.mark.parametrize("tenant", ["", "acme"])
def test_who_was_given_more_than_that_goes_behind(tenant: str) -> None:
    """bob's turn comes after alice's next one, whatever he asks for."""
    of = queue({"alice": 2, "bob": 3}, tenant=tenant)
    of.settle(Flow(tenant or "bob", "bob"), 100.0)
    for coming in (0.0, 50.0):
        wait_s = told(turns(of, {"bob": coming})).of["alice"][0]
        assert wait_s == pytest.approx((20 + 10) / RATE, abs=0.06)


def test_what_others_ask_for_meanwhile_goes_before_as_far_as_their_turns_come_first() -> None:
    of = queue({"alice": 20, "bob": 1})
    alone = told(turns(of)).of["alice"][0]
    joined = told(turns(of, {"bob": 10.0})).of["alice"][0]
    flooded = told(turns(of, {"bob": 1e6})).of["alice"][0]
    # bob: 10 tokens wait and 10 come in a second of a rate of 100.
    assert alone == pytest.approx((200 + 10 + 10) / RATE)
    assert joined == pytest.approx(alone / 0.9, rel=0.01)
    assert flooded == pytest.approx((200 + 200 + 10) / RATE, abs=0.06), "turns are even by then"
    assert told(turns(of, {"alice": 50.0})).of["bob"] == told(turns(of)).of["bob"]


def test_within_a_tenant_too() -> None:
    of = queue({"alice": 20, "bob": 1}, tenant="acme")
    joined = told(turns(of, {"bob": 10.0})).of["alice"][0]
    assert joined > 1.05 * told(turns(of)).of["alice"][0]


def test_what_was_set_aside_and_what_was_not_read_waits_too() -> None:
    of = queue({"alice": 2, "bob": 2})
    plain = told(turns(of))
    aside = told(turns(of, aside={"alice": 100.0}))
    assert aside.of["alice"][0] == pytest.approx(plain.of["alice"][0] + 1.0, abs=0.06)
    assert aside.of["bob"][0] == pytest.approx(plain.of["bob"][0], abs=EACH / RATE + 0.01)
    unread = told(turns(of, unread=300.0))
    assert unread.others[0] == pytest.approx(plain.others[0] + 3.0)


def test_what_is_expected_is_believed_by_a_part() -> None:
    of = queue({"alice": 8})
    assert told(turns(of, times=0.5)).of["alice"][0] == pytest.approx((40 + 10) / RATE)


def test_what_others_had_begun_goes_before_all() -> None:
    found = told(first=50.0)
    assert found == ({}, ((50 + 10) / RATE, (50 + 10) / RATE))


def test_batch_waits_for_interactive_requests_and_for_those_that_come() -> None:
    interactive, batch = turns(queue({"alice": 4})), turns(queue({"bob": 6}))
    assert told(interactive, batch).of["bob"][1] == pytest.approx((40 + 60 + 10) / RATE)
    coming = told(interactive, batch, per_s=50.0).of["bob"][1]
    assert coming == pytest.approx(2 * (40 + 60 + 10) / RATE, rel=0.05)
    # It has its share, whatever comes.
    shared = told(interactive, batch, per_s=1e6, share=0.25).of["bob"][1]
    assert shared == pytest.approx(((60 + 10) / 0.25 + 10) / RATE, rel=0.01)
    # And interactive requests wait for that, as far as there is any.
    assert told(interactive, batch, share=0.5).of["alice"][0] == pytest.approx(
        (40 + 40 + 10) / RATE
    )
    little = turns(queue({"bob": 1}))
    assert told(interactive, little, share=0.5).of["alice"][0] == pytest.approx(
        (40 + 10 + 10) / RATE
    )


@pytest.mark.parametrize("part", [0.5, 0.9, 0.99])
def test_what_comes_while_that_waits_which_came_makes_a_wait_longer(part: float) -> None:
    """So much of the capacity is asked for meanwhile. After some rounds of an approximation half of
    the wait was missing."""
    batch = turns(queue({"bob": 6}))
    wait_s = told(None, batch, per_s=part * RATE).of["bob"][1]
    assert wait_s == pytest.approx((60 + 10) / RATE / (1 - part), rel=0.02)


def test_no_wait_is_looked_for_beyond_an_hour() -> None:
    endless = told(None, turns(queue({"bob": 6})), per_s=2 * RATE).of["bob"][1]
    assert endless == pytest.approx(told_waits.LONGEST_S, rel=1.0)
    assert told(turns(queue({"bob": 1}, cost=1e6))).of["bob"][0] == pytest.approx(1e4, rel=0.01)


def test_interactive_requests_begin_in_the_place_of_batch_responses_that_make_way() -> None:
    """What is told does not wait until a batch response has ended."""
    few, batch = turns(queue({"alice": 2})), turns(queue({"bob": 6}))
    assert told(few, batch, makes_way=3 * EACH).of["alice"][0] == 0.0
    assert told(few, batch, makes_way=EACH).of["alice"][0] == pytest.approx(2 * EACH / RATE)
    assert told(few, batch, makes_way=3 * EACH).of["bob"][1] == pytest.approx(9 * EACH / RATE)


def test_where_nothing_begins_no_wait_ends() -> None:
    found = told(turns(queue({"alice": 3, "bob": 1})), rate=0.0)
    assert found.of["alice"][0] == float("inf")
    assert found.others[0] == float("inf")
    assert found_for(turns(queue({"alice": 3})), rate=0.0).others[0].behind_one == 0.0


def test_of_many_principals_those_with_most_are_told() -> None:
    of = queue({f"p{n}": 1 + (n % 100 == 0) * 5 for n in range(300)})
    found = told(turns(of))
    assert len(found.of) == told_waits.MOST
    assert {"p0", "p100", "p200"} <= found.of.keys()
    for name, wait_s in (("p0", found.of["p0"][0]), ("new", found.others[0])):
        of = queue({f"p{n}": 1 + (n % 100 == 0) * 5 for n in range(300)})
        assert wait_s == pytest.approx(begins_after(of, name) / RATE)


async def test_the_queues_of_a_worker() -> None:
    slots, work = Slots(1, batch_share=0.2), Workload()
    for _ in range(50):
        slots.release(slots.acquire(0, Flow("a", "a"), 100.0), used=20.0)
    work.measure(Totals(1_000, 50, 5_000), 10.0, waited=True)
    slots.acquire(0, Flow("a", "a"), 100.0)
    for rank, count in ((STARTED, 1), (0, 3), (BATCH, 2)):
        for _ in range(count):
            slots.acquire(rank, Flow("b", "b"), 100.0)
    slots.demand.measure(1.0)
    found = told_waits.queues(slots, work, [Unserved({"b": 500.0}, 0), Unserved({}, 7)])
    assert (found.first, found.each, found.batch_share) == (20.0, 20.0, 0.2)
    assert found.turns[0].waiting == pytest.approx((3 * 100 + 500) * 0.2)
    assert found.turns[1].waiting == pytest.approx(2 * 20 + 7 * 20)
    assert found.per_s == pytest.approx(slots.demand.rate_of_all(0))
    assert found.turns[0].per_s("b") > 0
    assert found.starts == Starts(rate=100.0)
    assert found.makes_way == 0.0


async def test_prompts_that_are_charged_make_no_wait_longer() -> None:
    """Interactive requests come of which none waits. Their prompts are nine tenths of what they are
    charged with, and batch requests were told ten times what comes before them."""
    slots, work = Slots(2, batch_share=0.0), Workload()
    for _ in range(50):
        slots.release(slots.acquire(0, Flow("a", "a"), 1_100.0), used=1_000.0)
    slots.acquire(0, Flow("a", "a"), 1_100.0)
    slots.acquire(0, Flow("b", "b"), 1_100.0)
    slots.acquire(BATCH, Flow("b", "b"), 1_100.0)
    work.measure(Totals(50 * 100, 50, 50 * 1_100.0), 10.0, waited=True)
    slots.demand.measure(10.0)
    found = told_waits.queues(slots, work, [Unserved({}, 0)] * 2)
    assert found.each == 100.0
    assert found.per_s == pytest.approx(5.2 * 100, rel=0.05)
    assert found.turns[0].times * found.turns[0].each == pytest.approx(found.each)
    of_one = found.turns[0].turn("a", "a", behind=1) - found.turns[0].turn("a", "a")
    assert of_one == pytest.approx(1_000, rel=0.05), "turns are by what is charged"


async def test_a_batch_response_that_makes_way_is_room_for_an_interactive_request() -> None:
    slots, work = Slots(2), Workload()
    work.measure(Totals(1_000, 50, 5_000), 10.0, waited=True)
    for name in ("pauses", "runs", "waits"):
        slots.acquire(BATCH, Flow("b", "b"), 100.0, name, pausable=name == "pauses")
    found = told_waits.queues(slots, work, [Unserved({}, 0)] * 2)
    assert found.makes_way == found.each == 20.0
    assert told_waits.told(found).others[0].seconds == 0.0
    assert told_waits.told(found).others[1].seconds > 0.0
