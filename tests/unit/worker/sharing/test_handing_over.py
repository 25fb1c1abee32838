"""Running responses of another model revision: the assigned worker offers them, and a worker of
that revision goes on with them (log rule P10)."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from tailrace.protocol import records
from tailrace.store.redis_store import StoreUnavailable
from tests.support import memory_offers, memory_worker
from tests.support.memory_log import MemoryLog
from tests.support.memory_members import Member, ask, done, member
from tests.support.memory_offers import MemoryOffers, Tasks
from tests.support.memory_worker import POOL, Foreign, Time, answer, cues
from tests.support.waiting import eventually
from worker.engines import scripted
from worker.group.foreign_requests import ForeignRequests
from worker.group.request_consumer import RequestConsumer
from worker.serving.running_responses import RunningResponses
from worker.serving.worker_context import WorkerContext
from worker.sharing.handing_over import HandingOver, Handover, Orphan, digest

OLD = (scripted.Scripted.model_rev, scripted.Scripted.tokenizer_digest)
NEW = ("scripted-2", OLD[1])
TOKENS = 40


@pytest.fixture(autouse=True)
def short_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    memory_offers.short_intervals(monkeypatch)


@dataclass
class Old:
    """A worker of the old revision, which the group has no partition for."""

    context: WorkerContext
    responses: RunningResponses
    handing: HandingOver
    tasks: Tasks


@dataclass
class Room:
    """A worker of the new revision with the one partition, and a response of the old one."""

    memory: MemoryLog
    time: Time
    new: Member
    store: MemoryOffers[Handover] = field(default_factory=lambda: MemoryOffers(Handover))
    olds: list[Old] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.offering = self._handing(
            self.new.context, self.new.responses, self.new.consumer, "new"
        )

    def _handing(
        self,
        context: WorkerContext,
        responses: RunningResponses,
        consumer: RequestConsumer,
        name: str,
    ) -> HandingOver:
        foreign = ForeignRequests(
            *(context, responses, consumer, self.memory.offsets()),
            partitions=self.memory.layout.partitions,
        )
        store: Any = self.store
        return HandingOver(store, context, responses, foreign, pool=POOL, name=name)

    def old(self, name: str = "old", **options: Any) -> Old:
        context = memory_worker.make_context(self.memory, self.time, name=name, **options)
        context.others = lambda: {NEW}
        tasks = Tasks()
        responses = RunningResponses(context, tasks)
        consumer = RequestConsumer(
            *(self.memory.group_consumer, self.memory.offsets(), self.memory.replays()),
            *(context, responses, tasks),
            pool=POOL,
            partitions=self.memory.layout.partitions,
        )
        tasks.create_task(context.tail.run())
        made = Old(context, responses, self._handing(context, responses, consumer, name), tasks)
        self.olds.append(made)
        return made

    async def attempts(
        self, metadata: dict[str, str] | None = None
    ) -> tuple[records.Request, Foreign]:
        """A response with ten tokens of the old revision, whose owner has yielded."""
        request = ask(self.memory, metadata=metadata or cues(TOKENS))
        gone = Foreign(self.memory, request, name="gone/1")
        gone.claim("a", prompt_tokens=3)
        gone.tokens("a", 10)
        gone.yield_("a")
        await eventually(lambda: self.new.responses.orphans, "it is to be handed over")
        return request, gone

    async def hand_over(self, *olds: Old) -> None:
        """One round of all sides."""
        await self.offering.step()
        for old in olds:
            await old.handing.step()

    def workers(self, request: records.Request) -> list[str]:
        return [worker for _, worker in answer(self.memory, request.rid).fold.claims]


@contextlib.asynccontextmanager
async def room() -> AsyncIterator[Room]:
    time = Time()
    memory = MemoryLog(partitions=1, clock=time)
    async with member(memory, time, name="new") as new:
        new.context.engine.model_rev = NEW[0]
        new.context.others = lambda: {OLD}
        await eventually(lambda: new.consumer.partitions == [0], "it has the partition")
        made = Room(memory, time, new)
        try:
            yield made
        finally:
            for old in made.olds:
                await old.tasks.kill()


async def test_a_response_of_the_old_revision_goes_on_at_an_old_worker_at_once() -> None:
    async with room() as it:
        request, _ = await it.attempts()
        await it.hand_over(it.old())
        await done(it.memory, request)
        response = answer(it.memory, request.rid)
        assert it.workers(request) == ["gone/1", "old/1"]
        assert {claim.model_rev for claim in response.claims} == {OLD[0]}
        assert response.ended.status == "completed"
        assert response.text == scripted.expected_text(request.messages, TOKENS)
        await eventually(lambda: it.new.committed[0] == 1, "the new worker commits it")
        await it.offering.step()
        assert it.store.held == {}


async def test_the_next_old_worker_goes_on_where_the_first_one_leaves() -> None:
    async with room() as it:
        request, _ = await it.attempts({**cues(10_000), "script_pace_ms": "1"})
        first, second = it.old("first"), it.old("second")
        await it.hand_over(first)
        await eventually(lambda: answer(it.memory, request.rid).fold.next > 20, "it goes on")
        first.context.draining = True
        await first.responses.hand_over(0)
        await eventually(lambda: it.new.responses.orphans, "it is to be handed over again")
        await it.hand_over(second)
        await eventually(lambda: len(it.workers(request)) == 3, "it goes on again")
        assert it.workers(request) == ["gone/1", "first/1", "second/1"]
        Foreign(it.memory, request).cancel()
        await eventually(lambda: it.new.committed[0] == 1, "it is committed")


async def test_two_old_workers_take_it_and_one_has_it() -> None:
    async with room() as it:
        request, _ = await it.attempts()
        await it.hand_over(it.old("x"), it.old("y"))
        await done(it.memory, request)
        assert len(it.workers(request)) == 2
        await eventually(lambda: not any(len(old.responses) for old in it.olds), "both are done")


async def test_a_full_old_worker_continues_it_with_its_next_slot() -> None:
    async with room() as it:
        request, _ = await it.attempts()
        old = it.old(capacity=1)
        turn = old.context.engine_slots.acquire(0)
        await it.hand_over(old)
        await eventually(lambda: old.context.engine_slots.queued == 1, "it waits for a slot")
        await it.attempts()
        await eventually(lambda: len(it.new.responses.orphans) == 2, "another one is there")
        await it.hand_over(old)
        assert len(old.responses) == 1, "it has no room for another one"
        old.context.engine_slots.release(turn)
        await done(it.memory, request)
        assert it.workers(request) == ["gone/1", "old/1"]


async def test_a_worker_of_a_third_revision_leaves_it() -> None:
    async with room() as it:
        request, _ = await it.attempts()
        third = it.old("third")
        third.context.engine.model_rev = "scripted-3"
        await it.hand_over(third)
        await it.store.publish(
            POOL, "liar", Handover([Orphan(0, 0, 0, digest("scripted-3", OLD[1]))])
        )
        await third.handing.step()
        await eventually(lambda: not len(third.responses), "it is left")
        assert it.workers(request) == ["gone/1"]


async def test_a_forged_offer_of_a_response_whose_owner_lives_changes_nothing() -> None:
    async with room() as it:
        request = ask(it.memory, metadata=cues(TOKENS))
        owner = Foreign(it.memory, request, name="lives/1")
        owner.claim("a", prompt_tokens=3)
        owner.tokens("a", 10)
        old = it.old()
        await it.store.publish(POOL, "liar", Handover([Orphan(0, 0, 0, digest(*OLD))]))
        await old.handing.step()
        await eventually(lambda: not len(old.responses), "it is left")
        assert it.workers(request) == ["lives/1"]
        assert it.new.responses.orphans == []


async def test_without_another_revision_in_the_pool_redis_is_not_asked() -> None:
    async with room() as it:
        old = it.old()
        old.context.others = lambda: {OLD}
        await old.handing.step()
        assert it.store.asked == 0


async def test_a_worker_that_leaves_offers_and_takes_nothing() -> None:
    async with room() as it:
        await it.attempts()
        old = it.old()
        await it.offering.step()
        old.context.draining = True
        await old.handing.step()
        assert len(old.responses) == 0
        it.new.context.draining = True
        await it.offering.step()
        assert it.store.held == {}


async def test_without_redis_a_round_does_nothing_and_the_next_one_does() -> None:
    async with room() as it:
        request, _ = await it.attempts()
        old = it.old()
        publish = it.store.publish

        async def away(*_: Any, **__: Any) -> None:
            raise StoreUnavailable("away")

        it.store.publish = away  # type: ignore[method-assign]
        with pytest.raises(StoreUnavailable):
            await it.offering.step()
        it.store.publish = publish  # type: ignore[method-assign]
        await it.hand_over(old)
        await done(it.memory, request)
