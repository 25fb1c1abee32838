"""Who may use the engine next."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from tailrace.fair_queue import Flow
from tests.support.waiting import eventually
from worker.queue import slots

FLOOD, ALICE, BOB, CAROL = (Flow(name, name) for name in ("flood", "alice", "bob", "carol"))


async def test_slots_are_given_up_to_the_capacity_and_the_best_class_goes_first() -> None:
    pool = slots.Slots(1)
    first = pool.acquire(0)
    batch, urgent, later = pool.acquire(1), pool.acquire(0), pool.acquire(0)
    begun = pool.acquire(slots.STARTED)
    assert first.done()
    assert (pool.running, pool.queued) == (1, 4)
    for turn, following in ((first, begun), (begun, urgent), (urgent, later), (later, batch)):
        assert not following.done()
        pool.release(turn)
        assert following.done()
    assert pool.running == 1


async def test_one_that_gives_up_waiting_takes_no_slot() -> None:
    pool = slots.Slots(1)
    first = pool.acquire(0)
    gone, next_one = pool.acquire(0), pool.acquire(0)
    pool.withdraw(gone)
    pool.release(first)
    assert next_one.done()
    assert pool.running == 1


async def test_a_slot_granted_before_it_was_withdrawn_is_given_back() -> None:
    pool = slots.Slots(1)
    turn = pool.acquire(0)
    pool.withdraw(turn)
    assert pool.running == 0


async def test_slots_may_be_restricted_for_a_while_and_none_is_taken_away() -> None:
    pool = slots.Slots(4)
    running = [pool.acquire(0) for _ in range(3)]
    pool.restrict(2)
    waiting = pool.acquire(0)
    pool.release(running[0])
    assert not waiting.done()
    pool.release(running[1])
    assert waiting.done()
    pool.restrict(0)
    late = [pool.acquire(0) for _ in range(9)]
    assert not any(turn.done() for turn in late)
    pool.restrict(9)
    assert sum(turn.done() for turn in late) == 2  # never more than the capacity


async def granted(turn: slots.Turn) -> None:
    """Wait until the slot is granted."""
    await asyncio.wait((turn,))


async def unwanted(_turn: slots.Turn) -> None:
    """The slot is not wanted any more."""


async def test_a_response_holds_one_slot_of_each_pool_and_gives_all_back_at_once() -> None:
    holder, pools = slots.HeldSlots(), (slots.Slots(1), slots.Slots(2))
    for pool in pools:
        await holder.acquire(pool, pool.acquire(0), granted)
        assert pool in holder
    holder.release()
    assert [pool.running for pool in pools] == [0, 0]
    assert not any(pool in holder for pool in pools)


async def test_a_slot_that_is_no_longer_wanted_is_not_held() -> None:
    holder, pool = slots.HeldSlots(), slots.Slots(1)
    first = pool.acquire(0)
    await holder.acquire(pool, pool.acquire(0), unwanted)
    assert pool not in holder
    pool.release(first)
    assert (pool.running, pool.queued) == (0, 0)


async def test_a_response_that_is_cancelled_while_it_waits_leaves_the_queue() -> None:
    holder, pool = slots.HeldSlots(), slots.Slots(1)
    first = pool.acquire(0)
    waiting = asyncio.create_task(holder.acquire(pool, pool.acquire(0), granted))
    await asyncio.sleep(0)
    assert pool.queued == 1
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    pool.release(first)
    assert (pool.running, pool.queued) == (0, 0)


async def test_a_newcomer_has_the_next_slot_however_much_another_one_has_queued() -> None:
    pool = slots.Slots(2)
    flood = [pool.acquire(0, FLOOD, 1500) for _ in range(400)]
    alice = pool.acquire(0, ALICE, 60)
    pool.release(flood[0])
    assert alice.done()
    assert sum(turn.done() for turn in flood) == 2


async def test_what_a_response_did_not_use_is_given_back_to_its_principal() -> None:
    """Both ask for 1,000 tokens at a time; one of them uses ten."""
    pool = slots.Slots(1)
    turns = {flow: [pool.acquire(0, flow, 1000) for _ in range(200)] for flow in (ALICE, BOB)}
    for _ in range(100):
        turn = next(t for each in turns.values() for t in each if t.done() and not t.cancelled())
        turns[turn.flow].remove(turn)
        pool.release(turn, tokens=10 if turn.flow == ALICE else 1000)
    assert len(turns[ALICE]) < 110  # it had 90 turns and more, for a hundredth of the work
    assert len(turns[BOB]) > 190


async def test_one_principal_has_its_share_while_another_waits_and_all_while_none_does() -> None:
    pool = slots.Slots(4, share=0.5)
    flood = [pool.acquire(0, FLOOD) for _ in range(8)]
    assert sum(turn.done() for turn in flood) == 4  # no other principal waits
    alice = [pool.acquire(0, ALICE) for _ in range(3)]
    for turn in flood[:2]:
        pool.release(turn)
    assert [turn.done() for turn in alice] == [True, True, False]
    pool.release(flood[2])  # each has two, and both wait
    assert not alice[2].done()
    pool.withdraw(alice[2])
    for turn in alice[:2]:
        pool.release(turn)
    assert [turn.done() for turn in flood] == [True] * 7 + [False]


async def test_slots_above_the_limit_of_one_principal_stay_free_for_others() -> None:
    pool = slots.Slots(4, limit=0.75)
    flood = [pool.acquire(0, FLOOD) for _ in range(8)]
    assert sum(turn.done() for turn in flood) == 3
    assert pool.acquire(0, ALICE).done()
    assert not pool.acquire(0, BOB).done()


async def test_responses_that_had_begun_elsewhere_are_not_held_to_the_share() -> None:
    pool = slots.Slots(4, share=0.25, limit=0.25)
    assert all(pool.acquire(slots.STARTED, FLOOD).done() for _ in range(4))


async def test_what_waits_runs_and_has_ended_is_counted_by_what_it_asks_for() -> None:
    pool = slots.Slots(1)
    first = pool.acquire(0, FLOOD, 100.0)
    gone = pool.acquire(0, FLOOD, 20.0)
    other = pool.acquire(0, ALICE, 3.0)
    pool.acquire(1, BOB, 5.0)
    assert (
        pool.running_cost,
        pool.waiting_cost(0),
        pool.waiting_cost(1),
        pool.waiting_cost(7),
    ) == (100, 23, 5, 0)
    pool.withdraw(gone)
    assert (pool.waiting_cost(0), pool.ended) == (3, 0)
    pool.release(first, tokens=40.0)
    assert (pool.running_cost, pool.waiting_cost(0)) == (3, 0)
    assert (pool.ended, pool.ended_cost) == (1, 100)
    pool.release(other, tokens=0)
    assert (pool.running_cost, pool.ended) == (5, 1), "it did not begin"


async def test_a_response_that_made_way_counts_once() -> None:
    """Each pause counted as one more request: requests seemed to make less of what they ask for,
    and waits were told too short."""
    pool = slots.Slots(1)
    for again in (False, True, True):
        pool.release(pool.acquire(slots.BATCH, BOB, 100.0, again=again), tokens=40.0, paused=True)
        assert (pool.ended, pool.request_totals) == (0, (0.0, 0.0))
    pool.release(pool.acquire(slots.BATCH, BOB, 100.0, again=True), tokens=40.0)
    assert (pool.ended, pool.ended_cost) == (1, 100.0)


async def test_what_has_begun_and_not_ended_counts_by_half_also_where_it_made_way() -> None:
    now = [100.0]
    pool = slots.Slots(1, monotonic=lambda: now[0])
    turn = pool.acquire(slots.BATCH, BOB, 100.0, "r")
    assert pool.request_totals == (0.5, 50.0)
    now[0] = 103.0
    held = pool.acquire(0, ALICE, 10.0)
    pool.release(turn, tokens=40.0, paused=True)
    again, another = (
        pool.acquire(slots.BATCH, BOB, 100.0, rid, again=True) for rid in ("r", "elsewhere")
    )
    assert pool.request_totals == (1.5, 105.0)
    assert sorted(pool.paused_ages) == [0.0, 3.0]
    pool.withdraw(another)
    assert pool.request_totals == (1.0, 55.0)
    pool.release(held, tokens=10.0)
    assert (again.done(), pool.paused_ages) == (True, [])
    assert pool.request_totals == (1.5, 60.0)
    pool.release(again, tokens=5.0)
    assert pool.request_totals == (2.0, 110.0)


class TestBatchShare:
    """One slot, and many requests of both classes."""

    @staticmethod
    def served(
        share: float, interactive: list[float], batch: list[float], until: int
    ) -> tuple[float, float]:
        """Tokens of both classes among the first requests that are served."""
        pool = slots.Slots(1, batch_share=share)
        held = pool.acquire(slots.STARTED)
        turns = [pool.acquire(0, ALICE, cost) for cost in interactive]
        turns += [pool.acquire(slots.BATCH, BOB, cost) for cost in batch]
        tokens = [0.0, 0.0]
        for _ in range(until):
            pool.release(held)
            held = next(turn for turn in turns if turn.done())
            turns.remove(held)
            tokens[held.rank] += held.cost
        return tokens[0], tokens[1]

    async def test_batch_that_waits_gets_its_share_of_the_tokens(self) -> None:
        interactive, batch = self.served(0.1, [50.0] * 1_000, [50.0] * 1_000, 1_000)
        assert batch / (interactive + batch) == pytest.approx(0.1, abs=0.005)

    async def test_a_few_long_batch_requests_take_no_more_than_the_share(self) -> None:
        lengths = [600.0 if n % 33 == 32 else 40.0 for n in range(1_000)]
        interactive, batch = self.served(0.1, [50.0] * 1_000, lengths, 1_000)
        assert batch / (interactive + batch) == pytest.approx(0.1, abs=0.01)

    async def test_without_a_share_batch_waits_for_all_others(self) -> None:
        assert self.served(0.0, [50.0] * 100, [50.0] * 100, 100) == (5_000.0, 0.0)

    async def test_what_batch_got_while_it_was_alone_is_not_held_against_it(self) -> None:
        pool = slots.Slots(1, batch_share=0.5)
        held = pool.acquire(slots.BATCH)
        for _ in range(100):
            following = pool.acquire(slots.BATCH, cost=1_000.0)
            pool.release(held)
            held = following
        first, waits = pool.acquire(0, cost=10.0), pool.acquire(slots.BATCH, cost=10.0)
        second = pool.acquire(0, cost=10.0)
        pool.release(held)
        assert first.done()
        pool.release(first)
        assert waits.done()
        assert not second.done()

    async def test_a_response_that_had_begun_goes_before_the_share(self) -> None:
        pool = slots.Slots(1, batch_share=0.5)
        turn = pool.acquire(0)
        batch, later = pool.acquire(slots.BATCH), pool.acquire(0)
        pool.release(turn)
        assert later.done()
        begun = pool.acquire(slots.STARTED)
        pool.release(later)
        assert begun.done()
        assert not batch.done()


async def test_turns_go_by_what_the_requests_of_a_principal_make_of_what_they_ask_for() -> None:
    """Charged with all that it asked for, a principal went behind others while its answers ran."""
    pool = slots.Slots(1)
    for _ in range(40):
        for flow, used in ((ALICE, 10.0), (FLOOD, 100.0)):
            pool.release(pool.acquire(0, flow, 100.0), tokens=used)
        pool.demand.measure(1.0)
    held = pool.acquire(0, BOB, 100.0)
    turns = [pool.acquire(0, flow, 100.0) for flow in (FLOOD, ALICE)]
    assert turns[1].charge < 40 < 60 < turns[0].charge
    assert held.charge == pytest.approx(55.0, abs=2.0), "of a new one as much as of all"
    assert (pool.waiting_cost(0), pool.waiting_charge(0)) == (
        200.0,
        sum(turn.charge for turn in turns),
    )
    assert pool.charge_ratio(0, {}, 0.55) == pytest.approx(0.55 * 200 / pool.waiting_charge(0))
    pool.withdraw(turns[0])
    assert (pool.waiting_cost(0), pool.waiting_charge(0)) == (100.0, pytest.approx(turns[1].charge))
    pool.release(held)
    assert (pool.waiting_cost(0), pool.waiting_charge(0)) == (0.0, 0.0)
    assert pool.charge_ratio(0, {}, 0.55) == pytest.approx(1.0)
    assert pool.charge_ratio(0, {}, 0.11) == pytest.approx(0.2), (
        "most of what they took were prompts"
    )
    aside = {"alice": 100.0}
    assert pool.charge_ratio(0, aside, 0.5) == pytest.approx(50 / turns[1].charge, rel=0.05)


def used_to(pool: slots.Slots) -> None:
    """Of the answers that both had, one in ten took 100 tokens and the others one."""
    for number in range(40):
        for flow in (ALICE, BOB):
            turn = pool.acquire(0, flow, 100.0)
            pool.release(turn, tokens=100.0 if number % 10 == 5 else 1.0)


async def test_a_long_answer_does_not_change_the_order_of_those_that_wait() -> None:
    """Charged at its end, it put what waited of its principal behind what came later."""
    pool = slots.Slots(1)
    used_to(pool)
    long = pool.acquire(0, ALICE, 100.0)
    waiting = pool.acquire(0, ALICE, 100.0)
    later = [pool.acquire(0, BOB, 100.0) for _ in range(20)]
    pool.release(long, tokens=100.0)
    pool.release(later[0], tokens=1.0)
    assert waiting.done()


async def test_one_whose_answers_are_always_longer_gets_fewer_turns() -> None:
    pool = slots.Slots(1)
    used_to(pool)
    turns = {flow: [pool.acquire(0, flow, 100.0) for _ in range(400)] for flow in (ALICE, BOB)}
    used: Counter[Flow] = Counter()
    for _ in range(300):
        turn = next(t for each in turns.values() for t in each if t.done() and not t.cancelled())
        turns[turn.flow].remove(turn)
        made = 40.0 if turn.flow == ALICE else 4.0
        used[turn.flow] += int(made)
        pool.release(turn, tokens=made)
    assert used[ALICE] < 2 * used[BOB]
    assert len(turns[ALICE]) > 340
    assert len(turns[BOB]) < 160


async def test_whatever_was_expected_what_was_taken_is_charged_where_answers_are_alike() -> None:
    """With ten tokens each, whom they expected to take a hundred, both get every second turn."""
    pool = slots.Slots(1)
    for _ in range(3):
        pool.release(pool.acquire(0, ALICE, 100.0), tokens=10.0)
    held = pool.acquire(0, BOB, 100.0)
    waiting = {flow: [pool.acquire(0, flow, 100.0) for _ in range(9)] for flow in (ALICE, BOB)}
    pool.release(held, tokens=30.0)
    for _ in range(8):
        turn = next(t for each in waiting.values() for t in each if t.done())
        waiting[turn.flow].remove(turn)
        pool.release(turn, tokens=10.0)
    assert {flow.principal: len(each) for flow, each in waiting.items()} == {"alice": 5, "bob": 5}


@pytest.mark.parametrize("paused", [True, False])
async def test_what_one_that_makes_way_has_not_used_yet_is_given_back_at_once(
    paused: bool,
) -> None:
    """That of one that has ended is chance."""
    pool = slots.Slots(1)
    used_to(pool)
    first = pool.acquire(0, ALICE, 100.0)
    pool.release(first, tokens=0.5, paused=paused)
    other = pool.acquire(0, BOB, 50.0)
    later = pool.acquire(0, BOB, 50.0)
    again = pool.acquire(0, ALICE, 100.0)
    pool.release(other, tokens=other.charge)
    assert (again.done(), later.done()) == (paused, not paused)


async def test_what_made_way_counts_as_one_request() -> None:
    pool = slots.Slots(1)
    pool.release(pool.acquire(0, ALICE, 100.0), tokens=20.0, paused=True)
    pool.release(pool.acquire(0, ALICE, 100.0, again=True), tokens=30.0)
    assert pool.demand.estimate("alice", 100.0) == pytest.approx(50.0)


async def test_the_order_in_which_those_that_wait_get_their_slots() -> None:
    pool = slots.Slots(1)
    pool.acquire(0, FLOOD, 10.0, "runs")
    pool.acquire(1, BOB, 1.0, "batch")
    for name in ("flood 1", "flood 2"):
        pool.acquire(0, FLOOD, 10.0, name)
    pool.acquire(0, ALICE, 6.0, "alice")
    pool.acquire(slots.STARTED, FLOOD, 10.0, "begun")
    pool.demand.add("flood", 3_000.0, 1_500.0)
    behind = {0: {"flood": [("flood 3", 20.0)]}}
    assert list(pool.order(lambda rank: behind.get(rank, {}))) == [
        ("begun", FLOOD, 10.0, slots.STARTED),
        ("alice", ALICE, 6.0, 0),
        ("flood 1", FLOOD, 10.0, 0),
        ("flood 2", FLOOD, 10.0, 0),
        ("flood 3", FLOOD, 10.0, 0),
        ("batch", BOB, 1.0, slots.BATCH),
    ]


@pytest.mark.parametrize("before", [20, 21, 22])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.4])
async def test_the_order_that_is_told_is_that_in_which_slots_are_granted(
    share: float, before: int
) -> None:
    pool = slots.Slots(1, batch_share=share)
    held = pool.acquire(slots.STARTED)
    turns = {}
    for number in range(60):
        rank, flow = (slots.BATCH, BOB) if number % 3 == 0 else (0, (ALICE, FLOOD)[number % 2])
        turns[f"{number}"] = pool.acquire(rank, flow, 50.0, f"{number}")
    granted: list[str] = []

    def go_on() -> None:
        nonlocal held
        pool.release(held)
        rid, held = next(each for each in turns.items() if each[1].done())
        del turns[rid]
        granted.append(rid)

    for _ in range(before):
        go_on()
    turns["begun"] = pool.acquire(slots.STARTED, BOB, 50.0, "begun")
    told = [rid for rid, *_ in pool.order(lambda _rank: {})]
    granted.clear()
    while turns:
        go_on()
    assert told == granted


class TestMakingWay:
    """Batch responses that hold slots while interactive requests wait."""

    @staticmethod
    def running(pool: slots.Slots, *names: str) -> tuple[list[slots.Turn], list[str]]:
        """Batch responses that can make way, and the names of those that were asked to."""
        asked: list[str] = []
        turns = [pool.acquire(slots.BATCH, BOB, rid=name, pausable=True) for name in names]
        for turn in turns:
            pool.allow_preemption(turn, lambda rid=turn.rid: asked.append(rid))  # type: ignore[misc]
        return turns, asked

    async def test_as_many_are_asked_as_wait_and_the_oldest_first(self) -> None:
        pool = slots.Slots(3)
        _, asked = self.running(pool, "a", "b", "c")
        pool.acquire(slots.BATCH, ALICE, pausable=True)
        assert asked == []
        pool.acquire(0, ALICE)
        assert asked == ["a"]
        pool.acquire(slots.STARTED, ALICE)
        assert asked == ["a", "b"]

    async def test_none_is_asked_while_a_slot_is_free(self) -> None:
        pool = slots.Slots(3)
        _, asked = self.running(pool, "a", "b")
        assert pool.acquire(0).done()
        assert asked == []

    async def test_who_can_make_way_only_later_is_asked_then(self) -> None:
        pool, asked = slots.Slots(1), list[int]()
        turn = pool.acquire(slots.BATCH, pausable=True)
        urgent = pool.acquire(0)
        pool.allow_preemption(turn, lambda: asked.append(1))
        pool.allow_preemption(turn, lambda: asked.append(2))
        assert asked == [1]
        pool.release(turn)
        assert urgent.done()

    async def test_who_was_asked_counts_until_its_slot_is_free(self) -> None:
        pool = slots.Slots(2)
        turns, asked = self.running(pool, "a", "b")
        first = pool.acquire(0, ALICE)
        pool.release(turns[0])
        assert first.done()
        pool.acquire(0, ALICE)
        assert asked == ["a", "b"]

    async def test_the_share_of_batch_requests_is_not_taken_back(self) -> None:
        pool = slots.Slots(1, batch_share=0.5)
        turns, asked = [pool.acquire(0, ALICE, 10.0) for _ in range(3)], list[str]()
        shared = pool.acquire(slots.BATCH, BOB, 10.0, pausable=True)
        while not shared.done():
            turns.append(pool.acquire(0, ALICE, 10.0))
            pool.release(turns.pop(0))
            assert pool.running == 1
        pool.allow_preemption(shared, lambda: asked.append("shared"))
        assert asked == []

    async def test_nobody_makes_way_for_one_that_may_have_no_more_slots(self) -> None:
        pool = slots.Slots(4, limit=0.5)
        mine = [pool.acquire(0, FLOOD) for _ in range(2)]
        _, asked = self.running(pool, "a", "b")
        pool.acquire(0, FLOOD)
        assert all(turn.done() for turn in mine)
        assert asked == []
        pool.acquire(0, ALICE)
        assert asked == ["a"]

    async def test_interactive_responses_keep_their_slots_from_others_of_their_principal(
        self,
    ) -> None:
        pool, asked = slots.Slots(1), list[str]()
        pool.allow_preemption(pool.acquire(0, pausable=True), lambda: asked.append("interactive"))
        pool.acquire(slots.STARTED)
        assert asked == []

    async def test_one_that_goes_on_makes_way_again(self) -> None:
        """A defect: after its pause it went on with the rank of what had begun, and kept its slot
        to its end."""
        pool, asked = slots.Slots(1), list[int]()
        goes_on = pool.acquire(slots.STARTED, BOB, batch=True, pausable=True)
        pool.allow_preemption(goes_on, lambda: asked.append(1))
        pool.acquire(0, ALICE)
        assert asked == [1]

    async def test_what_would_make_way_is_told(self) -> None:
        pool = slots.Slots(4, batch_share=0.5)
        assert pool.preemptible == (0, 0)
        turns = [pool.acquire(slots.BATCH, BOB, 10.0, pausable=n < 2) for n in range(3)]
        pool.acquire(0, ALICE, 10.0)
        assert pool.preemptible == (2, 20.0)
        turns[0].shared = True
        assert pool.preemptible == (1, 10.0)
        pool.release(turns[1])
        assert pool.preemptible == (0, 0)

    async def test_what_made_way_goes_before_the_others_of_its_principal(self) -> None:
        pool = slots.Slots(1)
        turn = pool.acquire(0)
        later = pool.acquire(slots.BATCH, BOB, pausable=True)
        paused = pool.acquire(slots.BATCH, BOB, first=True, pausable=True)
        pool.release(turn)
        assert paused.done()
        assert not later.done()


class TestShares:
    """Responses of one principal hold more than its share of the slots, and others wait."""

    @pytest.fixture(autouse=True)
    def at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(slots, "MIN_RUN_S", 0.0)

    @staticmethod
    def running(
        pool: slots.Slots, *flows: Flow, rank: int = 0
    ) -> tuple[list[slots.Turn], list[int]]:
        """Responses that can make way, and the numbers of those that were asked to."""
        asked: list[int] = []
        turns = [pool.acquire(rank, flow, pausable=True) for flow in flows]
        for number, turn in enumerate(turns):
            pool.allow_preemption(turn, lambda number=number: asked.append(number))  # type: ignore[misc]
        return turns, asked

    async def test_a_newcomer_gets_the_slot_of_the_longest_running_answer(self) -> None:
        """A user's long answers held every slot, and another one's first token took 30 s."""
        pool = slots.Slots(4)
        turns, asked = self.running(pool, *[FLOOD] * 8)
        newcomer = pool.acquire(0, ALICE)
        assert asked == [0]
        pool.release(turns[0], paused=True)
        assert newcomer.done()
        assert asked == [0]

    async def test_as_many_slots_are_given_back_as_the_share_allows(self) -> None:
        for others, expected in (
            ([ALICE], [0]),
            ([ALICE] * 9, [0, 1]),
            ([ALICE, BOB, CAROL], [0, 1, 2]),
            ([ALICE, BOB, CAROL, Flow("dave", "dave")], [0, 1, 2]),  # it keeps one
        ):
            pool = slots.Slots(4)
            _, asked = self.running(pool, *[FLOOD] * 8)
            for flow in others:
                pool.acquire(0, flow)
            assert asked == expected, others

    async def test_whoever_has_no_more_than_its_share_keeps_it(self) -> None:
        for flows in ((ALICE, BOB), (ALICE, BOB, ALICE, BOB), (ALICE, ALICE, BOB)):
            pool = slots.Slots(len(flows))
            _, asked = self.running(pool, *flows)
            for flow in (ALICE, BOB, ALICE):
                pool.acquire(0, flow)
            assert asked == [], flows

    async def test_each_principal_above_its_share_gives(self) -> None:
        pool = slots.Slots(7)
        _, asked = self.running(pool, *[FLOOD] * 3, *[ALICE] * 3, BOB)
        for _ in range(9):
            pool.acquire(0, BOB)
            pool.acquire(0, FLOOD)
        assert asked == []  # seven slots of three: three at most, two at least
        for _ in range(9):
            pool.acquire(0, CAROL)
        assert asked == [0, 3]

    async def test_the_share_goes_by_the_weights_of_tenants_and_the_setting_is_its_bound(
        self,
    ) -> None:
        for weight, share, expected in (
            (1.0, 1.0, [0, 1]),
            (3.0, 1.0, [0, 1, 2]),
            (3.0, 0.5, [0, 1]),
            (1 / 3, 1.0, [0]),
        ):
            pool = slots.Slots(4, share=share, weight={"flood": 1.0, "alice": weight}.__getitem__)
            _, asked = self.running(pool, *[FLOOD] * 4)
            for _ in range(3):
                pool.acquire(0, ALICE)
            assert asked == expected, (weight, share)

    async def test_the_principals_of_a_tenant_divide_its_share(self) -> None:
        pool = slots.Slots(4)
        one, two = Flow("tenant", "one"), Flow("tenant", "two")
        _, asked = self.running(pool, one, one, BOB, BOB)
        pool.acquire(0, two)
        assert asked == [0]

    async def test_what_is_given_back_goes_to_whom_it_was_given_back_for(self) -> None:
        """What it was charged for goes behind it, and what goes on of the one that gives too."""
        pool = slots.Slots(4)
        pool.release(pool.acquire(0, ALICE, 1_000.0), tokens=1_000.0)
        turns, asked = self.running(pool, *[FLOOD] * 4)
        begun, other = pool.acquire(slots.STARTED, FLOOD), pool.acquire(0, FLOOD, first=True)
        alice = pool.acquire(0, ALICE, 1_000.0)
        pool.release(turns[0], tokens=0.1, paused=True)
        assert alice.done()
        pool.release(turns[1])
        assert begun.done()
        assert not other.done()
        assert asked == [0]

    async def test_no_better_class_makes_way_for_batch(self) -> None:
        pool = slots.Slots(4)
        _, asked = self.running(pool, *[FLOOD] * 4)
        pool.acquire(slots.BATCH, ALICE)
        assert asked == []

    async def test_batch_makes_way_for_batch_of_a_principal_with_less(self) -> None:
        pool = slots.Slots(4)
        _, asked = self.running(pool, *[FLOOD] * 8, rank=slots.BATCH)
        for _ in range(9):
            pool.acquire(slots.BATCH, ALICE)
        assert asked == [0, 1]

    async def test_no_interactive_answer_makes_way_where_batch_ones_can(self) -> None:
        pool = slots.Slots(4)
        _, interactive = self.running(pool, *[FLOOD] * 3)
        _, batch = self.running(pool, BOB, rank=slots.BATCH)
        pool.acquire(0, ALICE)
        assert (interactive, batch) == ([], [0])

    async def test_nobody_makes_way_where_no_slot_comes_free_for_one_that_waits(self) -> None:
        pool = slots.Slots(4)
        _, asked = self.running(pool, *[FLOOD] * 4)
        pool.restrict(2)
        pool.acquire(0, ALICE)
        assert asked == []

    async def test_one_that_was_given_back_and_is_needed_no_longer_is_followed_by_no_other(
        self,
    ) -> None:
        pool = slots.Slots(2)
        turns, asked = self.running(pool, *[FLOOD] * 2)
        pool.withdraw(pool.acquire(0, ALICE))
        again = pool.acquire(0, FLOOD, first=True)
        pool.release(turns[0], paused=True)
        assert again.done()
        assert asked == [0]

    async def test_one_that_has_run_for_too_short_a_time_is_asked_later(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(slots, "MIN_RUN_S", 0.05)
        now = [100.0]
        pool = slots.Slots(2, monotonic=lambda: now[0])
        _, asked = self.running(pool, *[FLOOD] * 2)
        pool.acquire(0, ALICE)
        assert asked == []
        now[0] += 1.0
        await eventually(lambda: asked == [0], "it makes way")


async def test_slots_tell_how_long_they_are_held_and_were() -> None:
    now = [100.0]
    pool = slots.Slots(2, monotonic=lambda: now[0])
    first, second, third = pool.acquire(0), pool.acquire(0), pool.acquire(0)
    now[0] = 103.0
    assert (pool.ages, list(pool.holds)) == ([3.0, 3.0], [])
    pool.release(first, tokens=5)
    now[0] = 104.0
    assert (sorted(pool.ages), list(pool.holds)) == ([1.0, 4.0], [3.0])
    pool.withdraw(third)  # it had its slot, and used nothing
    pool.release(second, tokens=7)
    assert (pool.ages, list(pool.holds)) == ([], [3.0, 4.0])


async def test_the_parts_of_a_paused_response_count_as_one_hold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Counted each for itself, slots seemed to come free sooner than they do, and waits were told
    too short for minutes after."""
    now = [100.0]
    pool, ages = slots.Slots(1, monotonic=lambda: now[0]), list[float]()
    for seconds, paused in ((3.0, True), (4.0, True), (5.0, False)):
        turn = pool.acquire(slots.BATCH, BOB, 100.0, "r")
        now[0] += seconds
        ages.extend(pool.ages)
        pool.release(turn, tokens=5.0, paused=paused)
    assert (ages, list(pool.holds)) == ([3.0, 7.0, 12.0], [12.0])
    monkeypatch.setattr(slots, "MAX_HOLDS", 2)
    for rid in "abc":
        turn = pool.acquire(slots.BATCH, BOB, 100.0, rid)
        now[0] += 1.0
        pool.release(turn, tokens=5.0, paused=True)
    for rid in "abc":
        turn = pool.acquire(slots.BATCH, BOB, 100.0, rid)
        now[0] += 1.0
        pool.release(turn, tokens=5.0)
    # Others may go on elsewhere.
    assert list(pool.holds)[1:] == [1.0, 2.0, 2.0], "what was there of a is forgotten"


async def test_rounding_in_an_empty_queue_is_no_charge(monkeypatch: pytest.MonkeyPatch) -> None:
    """By what was left of sums, requests made nothing of what they are charged with."""
    pool = slots.Slots(1)
    pool.release(pool.acquire(0, ALICE, 100.0), tokens=50.0)
    monkeypatch.setattr(pool, "waiting_charge", lambda _rank: 1e-14)
    assert pool.charge_ratio(0, {}, 0.25) == pytest.approx(0.25 / 0.5)
