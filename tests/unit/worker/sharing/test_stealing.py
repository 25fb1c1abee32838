"""Requests that wait at a busy worker and run at an idle one (log rule P10)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from tailrace import log
from tailrace.protocol import records, topics
from tailrace.store.redis_store import StoreUnavailable
from tests.support import memory_offers, memory_worker
from tests.support.memory_log import MemoryLog
from tests.support.memory_members import Member, ask, done, member
from tests.support.memory_offers import MemoryOffers, Tasks
from tests.support.memory_worker import (
    ENDLESS,
    POOL,
    REQUESTS,
    Foreign,
    Time,
    answer,
    cues,
    new_request,
)
from tests.support.waiting import eventually
from worker.engines import base, scripted
from worker.group.foreign_requests import ForeignRequests
from worker.group.request_consumer import RequestConsumer
from worker.queue import offer_selection
from worker.queue.slots import Slots, Turn
from worker.queue.workload import Totals, Workload
from worker.serving.running_responses import RunningResponses
from worker.serving.worker_context import WorkerContext
from worker.sharing.stealing import Stealing


@pytest.fixture(autouse=True)
def short_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    memory_offers.short_intervals(monkeypatch)


class Held(scripted.Scripted):
    """An engine that encodes nothing before it is let.

    Attributes:
        asked: it was asked to.
    """

    def __init__(self) -> None:
        super().__init__(capacity=4, max_model_len=8_192)
        self.open = asyncio.Event()
        self.cost = False

    async def encode(self, request: records.Request) -> list[int]:
        self.cost = True
        await self.open.wait()
        return await super().encode(request)


class Silent(scripted.Scripted):
    """An engine that has not read a prompt yet."""

    def __init__(self) -> None:
        super().__init__(capacity=4, max_model_len=8_192)

    async def generate(self, job: base.GenerationInput, on_step: base.OnStep) -> None:
        await asyncio.Event().wait()


@dataclass
class Thief:
    """A worker without partitions, which the group has none for."""

    context: WorkerContext
    responses: RunningResponses
    consumer: RequestConsumer
    stealing: Stealing
    tasks: Tasks
    well: bool = True

    async def kill(self) -> None:
        await self.tasks.kill()


def measured() -> Workload:
    """Of an engine that makes one token a second, so that everything that waits waits long."""
    work = Workload()
    work.measure(Totals(10, 1.0, 100.0), 10.0, had_queue=True)
    return work


def stealing_of(
    store: MemoryOffers[offer_selection.Offer],
    context: WorkerContext,
    responses: RunningResponses,
    consumer: RequestConsumer,
    memory: MemoryLog,
    name: str,
    workload: Workload,
    well: Callable[[], bool] = lambda: True,
) -> Stealing:
    return Stealing(
        store,  # type: ignore[arg-type]
        context,
        responses,
        consumer,
        ForeignRequests(
            *(context, responses, consumer, memory.offsets()),
            partitions=memory.layout.partitions,
        ),
        workload,
        pool=POOL,
        name=name,
        after_s=0.5,
        engine_ok=well,
        below=lambda n: n - 1,
    )


@dataclass
class Pool:
    """A worker whose one slot is taken, and what waits behind it.

    Attributes:
        turn: by which the slot is taken.
        asked: the requests.
    """

    memory: MemoryLog
    time: Time
    store: MemoryOffers[offer_selection.Offer]
    busy: Member
    offering: Stealing
    turn: Turn
    cost: list[records.Request] = field(default_factory=list)
    thieves: list[Thief] = field(default_factory=list)

    def thief(self, name: str = "thief", **options: Any) -> Thief:
        context = memory_worker.make_context(self.memory, self.time, name=name, **options)
        tasks = Tasks()
        responses = RunningResponses(context, tasks)
        consumer = RequestConsumer(
            self.memory.group_consumer,
            self.memory.offsets(),
            self.memory.replays(),
            context,
            responses,
            tasks,
            pool=POOL,
            partitions=self.memory.layout.partitions,
        )
        tasks.create_task(context.tail.run())
        made = Thief(
            context,
            responses,
            consumer,
            stealing_of(
                *(self.store, context, responses, consumer, self.memory, name, Workload()),
                lambda: made.well,
            ),
            tasks,
        )
        self.thieves.append(made)
        return made

    async def ask(
        self, metadata: dict[str, str] | None = None, count: int = 1
    ) -> list[records.Request]:
        """Requests that wait at the busy worker."""
        before = len(self.busy.responses.waiting)
        asked = [ask(self.memory, metadata=metadata or cues(3)) for _ in range(count)]
        self.cost += asked
        await eventually(
            lambda: len(self.busy.responses.waiting) == before + count, "they wait", every_s=0.001
        )
        return asked

    async def steal(self, thief: Thief) -> None:
        """One round of both sides."""
        await self.offering.step()
        await thief.stealing.step()

    def free(self) -> None:
        """The busy worker's slot is free."""
        self.busy.context.engine_slots.release(self.turn)

    async def committed(self) -> None:
        """Everything has ended and is committed."""
        await eventually(lambda: self.busy.committed[0] == len(self.cost), "all is committed")
        for request in self.cost:
            assert answer(self.memory, request.rid).fold.ended is not None

    def written(self, topic: str, request: records.Request) -> list[bytes]:
        """The records of the request in a topic of records beside the token log."""
        return [
            r.value or b""
            for p in range(topics.partitions_of(topic))
            for r in self.memory.records(topic, p)
            if request.rid.encode() in (r.value or b"")
        ]

    def worker_of(self, request: records.Request) -> list[str]:
        """The workers of the claims that took effect."""
        return [worker for _, worker in answer(self.memory, request.rid).fold.claims]


@contextlib.asynccontextmanager
async def pool() -> AsyncIterator[Pool]:
    time = Time()
    memory = MemoryLog(partitions=1, clock=time)
    async with member(memory, time, name="busy", capacity=1) as busy:
        await eventually(lambda: busy.consumer.partitions == [0], "it has the partition")
        turn = busy.context.engine_slots.acquire(0)
        store = MemoryOffers(offer_selection.Offer)
        offering = stealing_of(
            store, busy.context, busy.responses, busy.consumer, memory, "busy", measured()
        )
        made = Pool(memory, time, store, busy, offering, turn)
        try:
            yield made
        finally:
            for thief in made.thieves:
                await thief.kill()


async def test_a_request_behind_a_busy_worker_runs_at_an_idle_one() -> None:
    async with pool() as it:
        (request,) = await it.ask()
        await it.steal(it.thief())
        await done(it.memory, request)
        assert it.worker_of(request) == ["thief/1"]
        assert answer(it.memory, request.rid).ended.status == "completed"
        await it.committed()


async def test_both_workers_write_the_same_records_of_it_and_they_count_once() -> None:
    async with pool() as it:
        (request,) = await it.ask()
        thief = it.thief()
        await it.steal(thief)
        await done(it.memory, request)
        await eventually(lambda: not len(thief.responses), "the thief is done with it")
        await it.committed()
        for topic in (topics.USAGE, topics.AUDIT):
            values = it.written(topic, request)
            assert (len(values), len(set(values))) == (2, 1)
            assert b'"first_token_ms":' in values[0]


async def test_what_is_stolen_waits_at_the_busy_worker_no_more() -> None:
    """Its backlog counts it once: at the worker that runs it."""
    async with pool() as it:
        (request,) = await it.ask(ENDLESS)
        thief = it.thief()
        await it.steal(thief)
        slots = it.busy.context.engine_slots
        await eventually(lambda: slots.queued == 0, "the busy worker saw the claim")
        assert slots.waiting_cost(0) == 0
        assert thief.context.engine_slots.running == 1
        assert (it.busy.responses.slot_demand, thief.responses.slot_demand) == (0, 1)
        await it.offering.step()
        assert it.store.held == {}
        Foreign(it.memory, request).cancel()
        await it.committed()


async def test_nothing_is_offered_where_a_slot_is_free_at_once() -> None:
    async with pool() as it:
        await it.ask()
        fast = Workload()
        fast.measure(Totals(10_000, 1_000.0, 100_000.0), 1.0, had_queue=True)
        quick = stealing_of(
            it.store, it.busy.context, it.busy.responses, it.busy.consumer, it.memory, "busy", fast
        )
        await quick.step()
        assert it.store.held == {}


async def test_a_thief_takes_no_more_than_it_has_slots_for() -> None:
    async with pool() as it:
        requests = await it.ask(ENDLESS, 2)
        thief = it.thief(capacity=1)
        await it.steal(thief)
        await eventually(lambda: thief.context.engine_slots.running == 1, "one runs")
        await it.steal(thief)
        assert len(thief.responses) == 1
        await eventually(lambda: any(map(it.worker_of, requests)), "it is claimed")
        assert sorted(map(it.worker_of, requests)) == [[], ["thief/1"]]


async def test_a_worker_with_waiting_requests_takes_none() -> None:
    async with pool() as it:
        await it.ask()
        thief = it.thief()
        # One runs and one waits, although a slot is free: it is one principal.
        thief.context.engine_slots = Slots(2, limit=0.5)
        thief.context.engine_slots.acquire(0)
        thief.context.engine_slots.acquire(0)
        await it.steal(thief)
        assert len(thief.responses) == 0


async def test_a_worker_whose_engine_is_in_trouble_takes_none() -> None:
    async with pool() as it:
        await it.ask()
        thief = it.thief()
        thief.well = False
        await it.steal(thief)
        assert len(thief.responses) == 0
        thief.well = True
        await it.steal(thief)
        assert len(thief.responses) == 1


async def test_a_stolen_request_does_not_wait_for_a_slot() -> None:
    async with pool() as it:
        (request,) = await it.ask()
        thief = it.thief(capacity=1)
        await it.steal(thief)
        thief.context.engine_slots.acquire(0)  # before it asks for one
        assert len(thief.responses) == 1
        await eventually(lambda: not len(thief.responses), "it is left")
        assert answer(it.memory, request.rid).kinds == []
        it.free()
        await it.committed()


async def test_a_place_whose_slot_went_to_another_request_is_left() -> None:
    async with pool() as it:
        (request,) = await it.ask()
        thief = it.thief(capacity=1)
        it.memory.hold_replays()
        await it.offering.step()
        stepping = asyncio.create_task(thief.stealing.step())
        await asyncio.sleep(0)
        thief.context.engine_slots.acquire(0)
        it.memory.release_replays()
        await stepping
        await eventually(lambda: not len(thief.responses), "it is left")
        assert answer(it.memory, request.rid).kinds == []


async def test_of_two_claims_at_once_the_first_in_the_log_counts() -> None:
    async with pool() as it:
        (request,) = await it.ask(cues(400))
        thief = it.thief()
        it.memory.lag(topics.TOKENS, 0, 0)  # neither worker sees what the other one writes
        await it.steal(thief)
        await eventually(lambda: answer(it.memory, request.rid).claims, "the thief claims")
        it.free()
        await eventually(lambda: len(answer(it.memory, request.rid).claims) == 2, "both claim")
        it.memory.catch_up(topics.TOKENS, 0)
        await done(it.memory, request)
        assert it.worker_of(request) == ["thief/1"]
        await it.committed()


async def test_a_thief_that_loses_the_race_leaves_the_response() -> None:
    async with pool() as it:
        (request,) = await it.ask(cues(400))
        engine = Held()
        thief = it.thief(engine=engine)
        await it.steal(thief)
        await eventually(lambda: engine.cost, "it is about to claim")
        it.memory.lag(topics.TOKENS, 0, 0)
        it.free()
        await eventually(lambda: answer(it.memory, request.rid).claims, "the busy one claims")
        engine.open.set()
        await eventually(lambda: len(answer(it.memory, request.rid).claims) == 2, "both claim")
        it.memory.catch_up(topics.TOKENS, 0)
        await eventually(lambda: not len(thief.responses), "the thief leaves it")
        await it.committed()
        assert it.worker_of(request) == ["busy/1"]
        assert len(it.written(topics.USAGE, request)) == 1


async def test_a_request_that_was_claimed_meanwhile_is_left() -> None:
    async with pool() as it:
        (request,) = await it.ask({**ENDLESS, "script_fault": "hang", "script_fault_at": "3"})
        await it.offering.step()
        it.free()
        await eventually(lambda: answer(it.memory, request.rid).fold.next == 3, "it runs at home")
        thief = it.thief()
        await thief.stealing.step()
        await eventually(lambda: not len(thief.responses), "it is left")
        assert it.worker_of(request) == ["busy/1"]
        it.time.advance(60)  # also when its owner is silent: that is for the assigned worker
        await thief.stealing.step()
        await eventually(lambda: not len(thief.responses), "it is left again")
        assert it.worker_of(request) == ["busy/1"]
        Foreign(it.memory, request).cancel()
        await it.committed()


async def test_a_thief_that_dies_before_its_claim_delays_nothing() -> None:
    async with pool() as it:
        (request,) = await it.ask()
        engine = Held()
        thief = it.thief(engine=engine)
        await it.steal(thief)
        await eventually(lambda: engine.cost, "it is about to claim")
        await thief.kill()
        it.free()
        await done(it.memory, request)
        assert it.worker_of(request) == ["busy/1"]
        await it.committed()


async def test_a_thief_that_dies_in_mid_answer_is_taken_over_after_the_grace() -> None:
    async with pool() as it:
        (request,) = await it.ask({**cues(400), "script_pace_ms": "1"})
        thief = it.thief()
        await it.steal(thief)
        await eventually(lambda: answer(it.memory, request.rid).fold.next > 10, "it runs")
        await thief.kill()
        it.free()
        await asyncio.sleep(0)
        assert it.worker_of(request) == ["thief/1"]

        def taken_over() -> bool:
            it.time.advance(1)  # again and again: the thief's last frame may be read late
            return it.worker_of(request) == ["thief/1", "busy/1"]

        await eventually(taken_over, "the busy worker takes it over")
        await done(it.memory, request)
        response = answer(it.memory, request.rid)
        expected = scripted.expected_ids(request.messages, response.fold.next)
        assert len(response.fold.ids) == 400 or response.fold.ids == expected
        assert response.ended.status == "completed"
        await it.committed()


async def test_a_thief_that_lives_has_time_for_a_long_prompt() -> None:
    """It would be taken over after the grace, in the middle of its prefill."""
    async with pool() as it:
        (request,) = await it.ask()
        it.busy.context.living = lambda: {"thief/1"}
        thief = it.thief(engine=Silent())
        await it.steal(thief)
        await eventually(lambda: it.worker_of(request) == ["thief/1"], "it is claimed")
        it.free()
        it.time.advance(10)
        reads = it.time.reads
        await eventually(lambda: it.time.reads > reads + 20, "the busy worker looks again")
        assert it.worker_of(request) == ["thief/1"]
        it.time.advance(60)
        await eventually(lambda: it.worker_of(request) == ["thief/1", "busy/1"], "then it is")
        await it.committed()


async def test_a_draining_thief_yields_and_the_assigned_worker_goes_on_at_once() -> None:
    async with pool() as it:
        (request,) = await it.ask({**cues(300), "script_pace_ms": "5"})
        thief = it.thief()
        await it.steal(thief)
        await eventually(lambda: answer(it.memory, request.rid).fold.next > 10, "it runs")
        it.free()
        thief.context.draining = True
        await thief.responses.hand_over(0)
        await eventually(lambda: it.worker_of(request) == ["thief/1", "busy/1"], "no grace")
        Foreign(it.memory, request).cancel()
        await it.committed()


async def test_a_cancel_stops_the_thief_and_the_offset_is_committed() -> None:
    async with pool() as it:
        (request,) = await it.ask(ENDLESS)
        thief = it.thief()
        await it.steal(thief)
        await eventually(lambda: answer(it.memory, request.rid).fold.next > 10, "it runs")
        assert it.busy.committed[0] <= 0
        Foreign(it.memory, request).cancel()
        await eventually(lambda: thief.context.engine_slots.running == 0, "it is stopped")
        await it.committed()
        assert answer(it.memory, request.rid).ended.status == "cancelled"


async def test_what_expired_or_was_cancelled_is_left_to_the_assigned_worker() -> None:
    async with pool() as it:
        (request,) = await it.ask()
        await it.offering.step()
        Foreign(it.memory, request).cancel()
        await it.committed()
        expired = ask(it.memory, metadata=cues(1), ttl_ms=1_000)
        it.cost.append(expired)
        await eventually(lambda: len(it.busy.responses.waiting) == 1, "it waits")
        offers_before = dict(it.store.held)
        await it.offering.step()
        it.time.advance(5)
        ask_later = ask(it.memory, metadata=cues(1))  # tells the thief's clock the broker's time
        it.cost.append(ask_later)
        it.store.held |= {"before": offers_before["busy"]}
        thief = it.thief()
        thief.context.clock.observe(int(it.time.now * 1000), it.time.now)
        await thief.stealing.step()
        await eventually(lambda: not len(thief.responses), "both are left")
        assert answer(it.memory, expired.rid).claims == []
        it.free()
        await it.committed()


async def test_the_assigned_worker_dies_and_its_successor_commits_what_was_stolen() -> None:
    async with pool() as it:
        (request,) = await it.ask({**cues(300), "script_pace_ms": "5"})
        thief = it.thief()
        await it.steal(thief)
        await eventually(lambda: answer(it.memory, request.rid).fold.next > 10, "it runs")
        await it.busy.consumer.leave()
        async with member(it.memory, it.time, name="next") as successor:
            await eventually(lambda: len(successor.responses) == 1, "it has the request")
            await done(it.memory, request)
            await eventually(lambda: successor.committed[0] == 1, "it is committed")
        assert it.worker_of(request) == ["thief/1"]


@contextlib.asynccontextmanager
async def assigned_later(
    it: Pool, metadata: dict[str, str]
) -> AsyncIterator[tuple[Member, records.Request]]:
    """A member of the group that steals a request and is then assigned its partition."""
    (request,) = await it.ask(metadata)
    async with member(it.memory, it.time, name="thief") as second:
        await eventually(lambda: it.busy.consumer.partitions == [0], "all is assigned")
        await eventually(lambda: len(it.busy.responses.waiting) == 1, "it waits again")
        taking = stealing_of(
            it.store,
            second.context,
            second.responses,
            second.consumer,
            it.memory,
            "thief",
            Workload(),
        )
        await it.offering.step()
        await taking.step()
        await eventually(lambda: answer(it.memory, request.rid).fold.next > 10, "it runs")
        await it.busy.consumer.leave()
        await eventually(lambda: second.consumer.partitions == [0], "it is assigned")
        later = ask(it.memory, metadata=cues(1))
        it.cost.append(later)
        await done(it.memory, later)  # so the first one was delivered again
        yield second, request


async def test_a_thief_that_is_assigned_the_partition_later_commits_itself() -> None:
    async with pool() as it, assigned_later(it, {**cues(300), "script_pace_ms": "5"}) as member:
        _, request = member
        await done(it.memory, request)
        await it.committed()
        assert it.worker_of(request) == ["thief/1"]
        assert len(it.written(topics.USAGE, request)) == 1


async def test_a_thief_that_is_assigned_the_partition_later_is_bound_to_the_end() -> None:
    """A thief leaves a response that another worker takes over; the assigned worker must not."""
    async with pool() as it, assigned_later(it, ENDLESS) as member:
        second, request = member
        other = Foreign(it.memory, request)
        other.claim("o", answer(it.memory, request.rid).fold.owner)
        await eventually(lambda: second.context.engine_slots.running == 0, "it is superseded")
        assert it.busy.committed[0] <= 0
        other.end("o")
        await it.committed()


async def test_a_thief_follows_the_partition_while_it_serves_and_reads_it_once() -> None:
    async with pool() as it:
        requests = await it.ask(ENDLESS, 2)
        Foreign(it.memory, new_request(it.memory)).claim("other")  # the partition has grown since
        thief = it.thief()
        await it.steal(thief)
        for request in requests:
            await eventually(lambda: it.worker_of(request), "it runs")  # noqa: B023
        assert thief.context.tail.partitions == [0]
        assert not [read for read in it.memory.reads if read[0] == topics.TOKENS]
        for request in requests:
            Foreign(it.memory, request).cancel()
        await it.committed()


async def test_a_place_that_holds_no_request_for_this_worker_is_left() -> None:
    async with pool() as it:
        garbage = it.memory.partition(REQUESTS, 0).end
        it.memory.put(REQUESTS, 0, b"k", b"{not json")
        ask(it.memory, metadata=cues(1), append_by=1)  # too late to count
        model = ask(it.memory, metadata=cues(1), model="another")
        calls = ask(it.memory, metadata=cues(1), raw=True)
        other = ask(it.memory, metadata=cues(1))
        it.cost += [model, calls, other]
        thief = it.thief()
        thief.context.engine.features = frozenset()
        places = [offer_selection.Place(0, 0, garbage + n, 0, 10.0, 1.0) for n in range(5)]
        places += [
            offer_selection.Place(0, 7, 0, 0, 10.0, 1.0),
            offer_selection.Place(5, 0, 0, 0, 10.0, 1.0),
        ]
        like = thief.stealing.like
        await it.store.publish(POOL, "busy", offer_selection.Offer(like, 8_192, 0.0, places))
        await thief.stealing.step()
        assert len(thief.responses) == 1
        await eventually(lambda: it.worker_of(other) == ["thief/1"], "one is served")


async def test_without_redis_and_without_the_log_nothing_is_taken_and_nothing_breaks() -> None:
    async with pool() as it:
        await it.ask()
        thief = it.thief()
        await it.offering.step()
        it.store.away = True
        with pytest.raises(StoreUnavailable):
            await thief.stealing.step()
        it.store.away = False
        it.memory.go_away()
        with pytest.raises(log.LogUnavailable):
            await thief.stealing.step()
        it.memory.come_back()
        assert len(thief.responses) == 0
        it.time.advance(10)
        await thief.stealing.step()
        await it.committed()


async def test_who_runs_a_stolen_response_holds_its_prompt() -> None:
    """Gateways were told nothing of it, and what followed went to the partition's worker."""
    async with pool() as it:
        request = ask(it.memory, metadata=cues(3), prefix=["digest"])
        it.cost.append(request)
        await eventually(lambda: len(it.busy.responses.waiting) == 1, "it waits")
        thief = it.thief()
        await it.steal(thief)
        await it.committed()
        held = [each.context.prefixes.table(it.time.now) for each in (thief, it.busy)]
        assert (it.worker_of(request), list(held[0]), held[1]) == (["thief/1"], ["digest"], {})
