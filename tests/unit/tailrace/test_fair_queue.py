"""Who is next among many that wait."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.fair_queue import FairQueue, Flow
from tests.support import traced

A, B, C = (Flow(name, name) for name in "abc")


def drain(queue: FairQueue[str], count: int) -> list[str]:
    taken = (queue.pop() for _ in range(count))
    return [each[1] for each in taken if each is not None]


def test_one_flow_keeps_its_order() -> None:
    queue: FairQueue[str] = FairQueue()
    for item in "xyz":
        queue.push(A, item, cost=len(item))
    assert len(queue) == 3
    assert sorted(queue) == ["x", "y", "z"]
    assert drain(queue, 4) == ["x", "y", "z"]
    assert queue.pop() is None


def test_a_newcomer_goes_before_all_that_another_one_has_queued() -> None:
    queue: FairQueue[str] = FairQueue()
    for _ in range(400):
        queue.push(A, "flood", 1500)
    assert drain(queue, 3) == ["flood"] * 3
    assert queue.cost == 397 * 1500
    queue.push(B, "ordinary", 60)
    assert queue.cost == 397 * 1500 + 60
    assert drain(queue, 1) == ["ordinary"]
    assert queue.cost == 397 * 1500


def begins_after(queue: FairQueue[str], flow: Flow) -> float:
    """The cost of what is taken before a new item of the flow."""
    queue.push(flow, "new", 1.0)
    order = list(queue.order(lambda item: item, {}))
    names = [name for name, _ in order]
    return sum(cost for _, cost in order[: names.index("new")])


def crowded() -> FairQueue[str]:
    """Two principals of tenant t, a heavy one of its own, and one that has just had its turn."""
    queue: FairQueue[str] = FairQueue(weight=lambda tenant: 2.0 if tenant == "t" else 1.0)
    for _ in range(3):
        queue.push(A, "x", 4.0)
    drain(queue, 3)
    for flow, count in ((Flow("t", "one"), 9), (Flow("t", "two"), 3), (B, 20)):
        for _ in range(count):
            queue.push(flow, "x", 4.0)
    drain(queue, 5)
    return queue


@pytest.mark.parametrize(
    "flow",
    [A, B, Flow("t", "one"), Flow("t", "two"), Flow("t", "t"), Flow("new", "new")],
    ids=lambda flow: flow.principal,
)
def test_what_goes_before_a_new_item_is_what_is_taken_before_it(flow: Flow) -> None:
    new, known = crowded().ahead(9, {})
    assert known.keys() == {"a", "b", "one", "two", "t"}
    assert known.get(flow.principal, new) == begins_after(crowded(), flow)


def test_a_light_principal_goes_before_what_a_heavy_one_has_queued() -> None:
    queue: FairQueue[str] = FairQueue()
    queue.push(A, "long", 100.0)
    for _ in range(400):
        queue.push(A, "flood", 10.0)
    drain(queue, 1)
    new, known = queue.ahead(9, {})
    assert (new, known) == (0.0, {"a": 4_000.0})


def test_others_that_go_on_asking_go_before_a_second_item_too() -> None:
    queue: FairQueue[str] = FairQueue()
    for _ in range(5):
        queue.push(A, "a", 10.0)
    queue.push(B, "b", 10.0)
    new, known = queue.ahead(9, {}, times=2.0)
    assert known == {"a": 50.0 + 20.0, "b": 10.0 + 20.0}, "b's second one goes before a's sixth"
    assert new == 20.0, "nobody's second one goes before the first of a new principal"


def test_what_waits_elsewhere_goes_before_the_next_item_of_its_principal() -> None:
    queue: FairQueue[str] = FairQueue()
    for flow in (A, B):
        queue.push(flow, "x", 10.0)
    assert queue.ahead(9, {}) == (20.0, {"a": 20.0, "b": 20.0})
    assert queue.ahead(9, {"a": 50.0}) == (20.0, {"a": 70.0, "b": 30.0})


def test_of_many_principals_those_with_most_items_are_known() -> None:
    queue: FairQueue[str] = FairQueue()
    for number in range(50):
        for _ in range(3 if number % 10 == 0 else 1):
            queue.push(Flow(f"{number}", f"{number}"), "x", 10.0)
    assert queue.ahead(5, {})[1].keys() == {"0", "10", "20", "30", "40"}


def test_a_flow_that_rested_has_saved_nothing_up() -> None:
    queue: FairQueue[str] = FairQueue()
    queue.push(B, "b")
    assert drain(queue, 1) == ["b"]
    for _ in range(100):
        queue.push(A, "a")
    drain(queue, 50)
    for _ in range(10):
        queue.push(B, "b")
    assert Counter(drain(queue, 10)) == {"a": 5, "b": 5}


def test_a_tenant_with_many_principals_gets_no_more_than_one_with_one() -> None:
    queue: FairQueue[str] = FairQueue()
    for n in range(10):
        for _ in range(20):
            queue.push(Flow("crowd", f"crowd|{n}"), "crowd")
    for _ in range(200):
        queue.push(Flow("loner", "loner|0"), "loner")
    assert Counter(drain(queue, 100)) == {"crowd": 50, "loner": 50}


def test_the_principals_of_a_tenant_share_its_turns() -> None:
    queue: FairQueue[str] = FairQueue()
    for name, count in (("busy", 300), ("calm", 100)):
        for _ in range(count):
            queue.push(Flow("one", name), name)
    assert Counter(drain(queue, 100)) == {"busy": 50, "calm": 50}


def test_turns_follow_the_weights() -> None:
    queue: FairQueue[str] = FairQueue({"a": 3.0, "b": 1.0}.__getitem__)
    for flow in (A, B):
        for _ in range(100):
            queue.push(flow, flow.principal)
    assert Counter(drain(queue, 80)) == {"a": 60, "b": 20}


def test_a_flow_that_is_not_eligible_is_passed_over_and_loses_nothing() -> None:
    queue: FairQueue[str] = FairQueue()
    for flow in (A, B):
        for _ in range(3):
            queue.push(flow, flow.principal)
    assert queue.pop(lambda flow: flow == B) == (B, "b")
    assert queue.pop(lambda flow: flow == C) is None
    assert drain(queue, 5) == ["a", "a", "b", "a", "b"]


def test_an_item_that_gave_up_costs_nothing() -> None:
    queue: FairQueue[str] = FairQueue()
    queue.push(A, "gone", 1000)
    queue.push(A, "stays")
    queue.push(B, "b")
    assert queue.remove(A, "gone")
    assert not queue.remove(A, "gone")
    assert not queue.remove(C, "never came")
    assert drain(queue, 3) == ["stays", "b"]


def test_settling_gives_back_no_more_than_a_flow_is_ahead() -> None:
    queue: FairQueue[str] = FairQueue()
    for flow in (A, B):
        for _ in range(10):
            queue.push(flow, flow.principal, 10)
    assert drain(queue, 1) == ["a"]
    queue.settle(A, -1_000_000)
    queue.settle(C, 5)  # the queue does not know it
    assert Counter(drain(queue, 10)) == {"a": 5, "b": 5}
    queue.settle(B, 40)
    assert drain(queue, 4) == ["a"] * 4


def test_flows_that_are_over_are_forgotten() -> None:
    queue: FairQueue[int] = FairQueue()
    for flow in (A, Flow("one", "one|stays")):
        for _ in range(2):
            queue.push(flow, 0, 1000)
            queue.pop()
            queue.push(flow, 0, 1000)
    with traced.held() as held:
        for n in range(2_000):
            queue.push(Flow(f"t{n}", f"p{n}"), n)
            queue.push(Flow("one", f"one|{n}"), n)
            queue.pop()
            queue.pop()
    assert held.size < 1_000_000, "a fifth of all flows, at most"


FLOWS = st.sampled_from(
    [Flow("a", "a|1"), Flow("a", "a|2"), Flow("b", "b|1"), Flow("c", "c|1"), Flow("c", "c|2")]
)
COSTS = st.integers(1, 100)
STEPS = st.lists(st.tuples(FLOWS, COSTS) | st.none(), max_size=200)


@given(STEPS)
def test_nothing_is_lost_doubled_or_reordered_within_a_flow(
    steps: list[tuple[Flow, int] | None],
) -> None:
    queue: FairQueue[int] = FairQueue()
    waiting: dict[Flow, list[int]] = {}
    for number, step in enumerate([*steps, *[None] * len(steps)]):
        if step is not None:
            queue.push(step[0], number, step[1])
            waiting.setdefault(step[0], []).append(number)
            continue
        taken = queue.pop()
        if taken is None:
            assert not any(waiting.values())
        else:
            flow, item = taken
            assert waiting[flow].pop(0) == item
        assert len(queue) == sum(map(len, waiting.values()))


@given(st.lists(COSTS, min_size=60, max_size=60), st.lists(COSTS, min_size=60, max_size=60))
def test_two_that_wait_all_the_time_are_served_alike_up_to_one_item_each(
    first: list[int], second: list[int]
) -> None:
    """The bound of start-time fair queueing."""
    queue: FairQueue[tuple[str, int]] = FairQueue()
    for flow, costs in ((A, first), (B, second)):
        for cost in costs:
            queue.push(flow, (flow.principal, cost), cost)
    served = Counter[str]()
    left = {"a": len(first), "b": len(second)}
    while all(left.values()):
        taken = queue.pop()
        assert taken is not None
        name, cost = taken[1]
        served[name] += cost
        left[name] -= 1
        assert abs(served["a"] - served["b"]) <= max(first) + max(second)


@given(STEPS, COSTS)
def test_who_comes_first_waits_for_at_most_one_item_of_each_other_tenant(
    steps: list[tuple[Flow, int] | None], cost: int
) -> None:
    queue: FairQueue[str] = FairQueue()
    for step in steps:
        if step is None:
            queue.pop()
        else:
            queue.push(step[0], step[0].tenant, step[1])
    queue.push(Flow("new", "new|1"), "new", cost)
    before = Counter[str]()
    while (taken := queue.pop()) is not None and taken[1] != "new":
        before[taken[1]] += 1
    assert all(count <= 1 for count in before.values())


WEIGHTS = {"a": 1.0, "b": 3.0, "c": 0.5}


@given(STEPS)
def test_the_order_that_is_told_is_that_in_which_items_are_taken(
    steps: list[tuple[Flow, int] | None],
) -> None:
    queue: FairQueue[int] = FairQueue(WEIGHTS.__getitem__)
    costs: dict[int, int] = {}
    for number, step in enumerate(steps):
        if step is None:
            queue.pop()
        else:
            queue.push(step[0], number, costs.setdefault(number, step[1]))
    told = list(queue.order(str, {}))
    taken = [each[1] for _ in range(len(queue)) if (each := queue.pop()) is not None]
    assert told == [(str(item), costs[item]) for item in taken]


def test_what_waits_elsewhere_stands_behind_the_same_principals_items() -> None:
    queue: FairQueue[str] = FairQueue()
    for flow, cost in ((A, 10), (B, 4), (A, 10)):
        queue.push(flow, flow.principal, cost)
    behind = {"a": [("a+", 1.0)], "b": [("b+", 5.0), ("b++", 2.0)], "c": [("c+", 1.0)]}
    told = [name for name, _ in queue.order(lambda item: item, behind)]
    assert told == ["a", "b", "b+", "b++", "a", "a+"]
    assert len(queue) == 3
