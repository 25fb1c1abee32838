"""Which part of a worker's slots each principal may have while others wait."""

from __future__ import annotations

from tailrace.fair_queue import Flow
from worker.queue.shares import Shares

ALICE, BOB = (Flow(name, name) for name in ("alice", "bob"))
ONE, TWO = (Flow("tenant", name) for name in ("one", "two"))


def of(*flows: Flow, **weights: float) -> Shares:
    shares = Shares(lambda tenant: weights.get(tenant, 1.0))
    for flow in flows:
        shares.add(flow)
    return shares


def test_tenants_have_equal_parts_and_the_principals_of_one_divide_theirs() -> None:
    shares = of(ALICE, ALICE, ONE, TWO)
    assert [shares.slots_for(flow, 8) for flow in (ALICE, ONE, TWO)] == [4, 2, 2]
    assert [shares.slots_for(flow, 9) for flow in (ALICE, ONE, TWO)] == [5, 3, 3], "rounded up"
    assert shares.slots_for(ONE, 0) == 1


def test_parts_go_by_weights() -> None:
    shares = of(ALICE, BOB, alice=3.0)
    assert [shares.slots_for(flow, 8) for flow in (ALICE, BOB)] == [6, 2]
    assert shares.slots_for(ALICE, 8, new=4) == 3


def test_whoever_neither_holds_nor_waits_has_no_part() -> None:
    shares = of(ALICE, ALICE, BOB, ONE, TWO, bob=0.1)
    for flow in (BOB, TWO, ALICE):
        shares.remove(flow)
    assert shares.several
    assert [shares.slots_for(flow, 8) for flow in (ALICE, ONE)] == [4, 4]
    shares.remove(ALICE)
    assert not shares.several
    assert shares.slots_for(ONE, 8) == 8


def test_two_principals_of_one_tenant_are_several() -> None:
    assert of(ONE, TWO).several
    assert not of(ONE, ONE).several
    assert not of().several
