"""Responses whose first token is late at one worker, and that another one makes (log rule §26)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import prometheus_client
import pytest

from tailrace.fair_queue import flow_of
from tailrace.protocol import ids, records, topics
from tailrace.store.offers import Late
from tailrace.store.redis_store import StoreUnavailable
from tailrace.verify import checks, history
from tests.support import cases, memory_offers, memory_worker
from tests.support.memory_log import MemoryLog
from tests.support.memory_members import Member, ask, done, member
from tests.support.memory_offers import MemoryOffers, Tasks
from tests.support.memory_worker import POOL, Foreign, Time, answer, cues
from tests.support.waiting import eventually
from worker.engines import base, scripted
from worker.group.foreign_requests import ForeignRequests
from worker.group.request_consumer import RequestConsumer
from worker.serving import warming
from worker.serving.running_responses import RunningResponses
from worker.serving.worker_context import WorkerContext
from worker.sharing.hedging import Hedging

TOKENS = 40


@pytest.fixture(autouse=True)
def short_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    memory_offers.short_intervals(monkeypatch)
    monkeypatch.setattr(warming, "POLL_S", 0.005)


class Engine(scripted.Scripted):
    """An engine that waits before each run until it is let.

    Attributes:
        open: it may run.
        error: is raised then.
        runs: runs that began, and those that are under way.
    """

    def __init__(self, *, waits: bool = False) -> None:
        super().__init__(capacity=4, max_model_len=8_192)
        self.open = asyncio.Event()
        self.error: Exception | None = None
        self.runs: list[base.GenerationInput] = []
        self.running = 0
        if not waits:
            self.open.set()

    async def generate(self, job: base.GenerationInput, on_step: base.OnStep) -> None:
        self.runs.append(job)
        self.running += 1
        try:
            await self.open.wait()
            if self.error is not None:
                raise self.error
            await super().generate(job, on_step)
        finally:
            self.running -= 1


class Slow(MemoryOffers[Late]):
    """Offers that others read while one takes one back."""

    async def withdraw(self, pool: str, name: str) -> bool:
        await asyncio.sleep(0.01)
        return await super().withdraw(pool, name)


@dataclass
class Hedger:
    """An idle worker, which the group has no partition for."""

    context: WorkerContext
    responses: RunningResponses
    hedging: Hedging
    tasks: Tasks
    wanted: bool = True


@dataclass
class Room:
    """A worker with the one partition, whose engine says nothing, and what gateways offer.

    Attributes:
        engine: of that worker.
        store: what is offered.
    """

    memory: MemoryLog
    time: Time
    slow: Member
    engine: Engine
    store: MemoryOffers[Late] = field(default_factory=lambda: MemoryOffers(Late))
    hedgers: list[Hedger] = field(default_factory=list)

    def hedger(self, name: str = "fast", engine: Engine | None = None) -> Hedger:
        context = memory_worker.make_context(self.memory, self.time, name=name)
        context.engine = engine or Engine()
        context.living = lambda: {"slow/1", "fast/1"}
        tasks = Tasks()
        responses = RunningResponses(context, tasks)
        consumer = RequestConsumer(
            *(self.memory.group_consumer, self.memory.offsets(), self.memory.replays()),
            *(context, responses, tasks),
            pool=POOL,
            partitions=self.memory.layout.partitions,
        )
        tasks.create_task(context.tail.run())
        store: Any = self.store
        foreign = ForeignRequests(
            *(context, responses, consumer, self.memory.offsets()),
            partitions=self.memory.layout.partitions,
        )
        hedging = Hedging(
            store, responses, consumer, foreign, pool=POOL, enabled=lambda: made.wanted
        )
        made = Hedger(context, responses, hedging, tasks)
        self.hedgers.append(made)
        return made

    async def late(self, **options: Any) -> records.Request:
        """A response that the slow worker has claimed, and that its gateway offers."""
        request = ask(self.memory, metadata=cues(TOKENS), **options)
        await eventually(lambda: self.of(request).claims, "it is claimed")
        await self.offer(request)
        return request

    async def offer(self, request: records.Request) -> None:
        offset = self.of(request).claims[0].req_offset
        partition = ids.parse(request.rid).partition
        await self.store.publish(POOL, request.rid, Late(partition, offset))

    def of(self, request: records.Request) -> memory_worker.Answer:
        return answer(self.memory, request.rid)

    def workers(self, request: records.Request) -> list[str]:
        return [worker for _, worker in self.of(request).fold.claims]


@contextlib.asynccontextmanager
async def room() -> AsyncIterator[Room]:
    time = Time()
    memory = MemoryLog(partitions=1, clock=time)
    async with member(memory, time, name="slow") as slow:
        engine = Engine(waits=True)
        slow.context.engine = engine
        slow.context.living = lambda: {"slow/1", "fast/1"}
        await eventually(lambda: slow.consumer.partitions == [0], "it has the partition")
        made = Room(memory, time, slow, engine)
        try:
            yield made
        finally:
            engine.open.set()
            for hedger in made.hedgers:
                await hedger.tasks.kill()


@contextlib.contextmanager
def counted(outcome: str) -> Any:
    """One more response is counted with this outcome, and none with another one."""

    def values() -> dict[str, float]:
        value = prometheus_client.REGISTRY.get_sample_value
        return {
            each: value("tailrace_hedged_requests_total", {"outcome": each}) or 0.0
            for each in ("won", "lost", "left")
        }

    before = values()
    yield
    assert {k: n - before[k] for k, n in values().items() if n != before[k]} == {outcome: 1.0}


def judged(memory: MemoryLog) -> None:
    """`tailrace verify` finds nothing, and has seen a hedged claim."""
    histories = history.gather(
        memory.appended, incarnation=memory.layout.incarnation, partitions=memory.layout.partitions
    )
    report, _ = checks.judge(histories, checks.Options(settle_s=0))
    assert (report.failed(), report.results["L18"].count) == ([], 1)


async def ended(hedger: Hedger) -> None:
    await eventually(lambda: len(hedger.responses) == 0, "it has let go")


async def test_the_faster_worker_claims_and_the_first_owner_stops_and_commits() -> None:
    with counted("won"):
        async with room() as it:
            request, fast = await it.late(), it.hedger()
            await fast.hedging.step()
            assert it.store.held == {}
            await done(it.memory, request)
            response = it.of(request)
            assert it.workers(request) == ["slow/1", "fast/1"]
            assert [claim.hedged for claim in response.claims] == [False, True]
            assert response.claims[1].prev == response.claims[0].own
            assert response.ended.status == "completed"
            assert response.text == scripted.expected_text(request.messages, TOKENS)
            await eventually(lambda: not it.engine.running, "the first owner's engine stops")
            await eventually(lambda: it.slow.committed[0] == 1, "the assigned worker commits it")
            judged(it.memory)
            first, second = fast.context.engine.runs  # type: ignore[attr-defined]
            assert first.key != second.key
            assert not first.output_so_far


async def test_nothing_is_claimed_before_the_own_engine_has_a_token() -> None:
    with counted("lost"):
        async with room() as it:
            engine = Engine(waits=True)
            request, fast = await it.late(), it.hedger(engine=engine)
            await fast.hedging.step()
            await eventually(lambda: engine.running, "it warms")
            assert len(it.of(request).claims) == 1
            it.engine.open.set()
            await done(it.memory, request)
            await ended(fast)
            assert not engine.running
            assert it.workers(request) == ["slow/1"]
            assert fast.context.engine_slots.running == 0


@cases.each(
    "change",
    [
        lambda other, own: other.tokens(own, 3),
        lambda other, own: other.claim("another", prev=own),
        lambda other, own: other.yield_(own),
        lambda other, own: other.cancel(),
    ],
    ids=["a token", "another claim", "a yield", "a cancel"],
)
async def test_it_stops_where_the_log_has_something_of_others(
    change: Callable[[Foreign, str], object],
) -> None:
    async with room() as it:
        engine = Engine(waits=True)
        request = await it.late()
        fast = it.hedger(engine=engine)
        await fast.hedging.step()
        await eventually(lambda: engine.running, "it warms")
        change(Foreign(it.memory, request), it.of(request).claims[0].own)
        await ended(fast)
        assert "fast/1" not in it.workers(request)


async def test_a_token_of_the_owner_that_came_before_the_claim_stays() -> None:
    async with room() as it:
        request, fast = await it.late(), it.hedger()
        writer, append = fast.context.writer, fast.context.writer.append

        def late_append(topic: str, partition: int, key: str, value: bytes, *more: Any) -> Any:
            if b'"CLAIM"' in value:
                own = it.of(request).claims[0].own
                Foreign(it.memory, request, name="slow/1").tokens(own, 3)
            return append(topic, partition, key, value, *more)

        writer.append = late_append  # type: ignore[method-assign, assignment]
        await fast.hedging.step()
        await done(it.memory, request)
        response = it.of(request)
        assert (it.workers(request), response.fold.starts) == (["slow/1", "fast/1"], [0, 3])
        assert response.text == scripted.expected_text(request.messages, TOKENS)


async def test_one_of_several_idle_workers_takes_it() -> None:
    async with room() as it:
        it.store = Slow(Late)
        engines = [Engine(waits=True), Engine(waits=True)]
        request = await it.late()
        hedgers = [it.hedger(f"fast{n}", engine) for n, engine in enumerate(engines)]
        await asyncio.gather(*(each.hedging.step() for each in hedgers))
        assert [len(each.responses) for each in hedgers] in ([0, 1], [1, 0])
        await eventually(lambda: any(e.running for e in engines), "one warms")
        assert sum(len(e.runs) for e in engines) == 1
        assert len(it.of(request).claims) == 1


async def test_the_worker_that_is_late_itself_does_not_take_it() -> None:
    async with room() as it:
        request = await it.late()
        store: Any = it.store
        foreign = ForeignRequests(
            *(it.slow.context, it.slow.responses, it.slow.consumer, it.memory.offsets()),
            partitions=1,
        )
        hedging = Hedging(
            *(store, it.slow.responses, it.slow.consumer, foreign), pool=POOL, enabled=lambda: True
        )
        await hedging.step()
        assert list(it.store.held) == [request.rid]


async def test_a_pool_that_does_not_hedge_takes_nothing_and_asks_for_nothing() -> None:
    async with room() as it:
        await it.late()
        fast = it.hedger()
        fast.wanted = False
        await fast.hedging.step()
        assert (it.store.asked, len(it.store.held)) == (0, 1)


async def test_a_busy_worker_takes_nothing() -> None:
    async with room() as it:
        request = await it.late()
        fast = it.hedger()
        fast.context.engine_slots.restrict(1)
        own = fast.context.engine_slots.acquire(0, flow_of(request.owner), 1.0, "own")
        assert own.done()
        await fast.hedging.step()
        assert list(it.store.held) == [request.rid]


@cases.each(
    "error",
    [base.Transient("no"), base.Refused("code", "never"), ValueError("a defect")],
    ids=["transient", "refused", "a defect"],
)
async def test_an_engine_that_fails_leaves_the_response_to_its_owner(error: Exception) -> None:
    with counted("left"):
        async with room() as it:
            engine = Engine()
            engine.error = error
            request, fast = await it.late(), it.hedger(engine=engine)
            await fast.hedging.step()
            await ended(fast)
            assert len(engine.runs) == 1
            assert len(it.of(request).claims) == 1
            assert not engine.dead.is_set()


async def test_an_engine_that_says_nothing_at_all_shows_nothing() -> None:
    class Mute(Engine):
        async def generate(self, job: base.GenerationInput, on_step: base.OnStep) -> None:
            self.runs.append(job)

    with counted("left"):
        async with room() as it:
            engine = Mute()
            request, fast = await it.late(), it.hedger(engine=engine)
            await fast.hedging.step()
            await ended(fast)
            assert (len(engine.runs), len(it.of(request).claims)) == (1, 1)


async def test_of_two_tokens_at_once_the_one_in_the_log_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(warming, "POLL_S", 30.0)  # only the engine's token makes it look

    async with room() as it:
        request = await it.late()
        fast = it.hedger(engine=Engine(waits=True))
        engine: Any = fast.context.engine
        await fast.hedging.step()
        await eventually(lambda: engine.running, "it warms")
        Foreign(it.memory, request).tokens(it.of(request).claims[0].own, 3)
        end = it.memory.partition(topics.TOKENS, 0).end
        await eventually(lambda: fast.context.tail.position(0) == end, "the tail has read it")
        engine.open.set()
        await ended(fast)
        assert it.workers(request) == ["slow/1"]


async def test_an_engine_that_dies_ends_its_worker() -> None:
    async with room() as it:
        engine = Engine()
        engine.error = base.EngineDead("gone")
        request, fast = await it.late(), it.hedger(engine=engine)
        await fast.hedging.step()
        await ended(fast)
        assert engine.dead.is_set()
        assert len(it.of(request).claims) == 1


async def test_a_worker_of_another_model_leaves_it() -> None:
    async with room() as it:
        engine = Engine()
        engine.model_rev = "scripted-2"
        request, fast = await it.late(), it.hedger(engine=engine)
        await fast.hedging.step()
        await ended(fast)
        assert (engine.runs, len(it.of(request).claims)) == ([], 1)


async def test_a_response_that_a_second_worker_has_is_not_hedged_again() -> None:
    async with room() as it:
        request = await it.late()
        own = it.of(request).claims[0].own
        Foreign(it.memory, request).claim("another", prev=own)
        fast = it.hedger()
        await fast.hedging.step()
        await ended(fast)
        assert "fast/1" not in it.workers(request)


async def test_without_redis_nothing_is_taken() -> None:
    async with room() as it:
        fast = it.hedger()
        it.store.away = True
        with pytest.raises(StoreUnavailable):
            await fast.hedging.step()


def test_only_plain_answers_of_an_own_engine_suit() -> None:
    plain = records.Request("r", records.Owner("i", "s"), "m", [], records.Sampling(9), {})
    changed = {
        "generate": False,
        "embed": records.Embed(["a"]),
        "fork": records.Fork("resp_x", 3),
    }

    class Remote(base.Remote):
        ids_are_tokens = True

    engine, remote = scripted.Scripted(capacity=1, max_model_len=99), Remote()
    assert warming.suits(engine, plain)
    assert not warming.suits(remote, plain)  # type: ignore[arg-type]
    for name, value in changed.items():
        fields = {field: getattr(plain, field) for field in plain.__struct_fields__}
        assert not warming.suits(engine, records.Request(**{**fields, name: value}))
