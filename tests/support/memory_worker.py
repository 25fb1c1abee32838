"""The parts of one worker on the in-memory log, with the scripted engine. Nothing here sleeps.

`Worker` serves single responses. Time stands still until a test advances it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from tailrace.log.identity import LogIdentity
from tailrace.protocol import events, fold, ids, records, topics
from tailrace.protocol.broker_clock import BrokerClock
from tailrace.protocol.fold import Ended, Fold
from tailrace.protocol.records import Claim, TokenRecord
from tests.support.memory_log import MemoryLog
from tests.support.waiting import eventually
from worker.engines import base, scripted
from worker.log.tail import Tail
from worker.prefixes.held_prefixes import HeldPrefixes
from worker.queue.commit_tracker import Tracker
from worker.queue.delivery import Delivery
from worker.queue.slots import Slots
from worker.serving import costs
from worker.serving.activity_writer import ActivityWriter
from worker.serving.fork_sources import ForkSources
from worker.serving.history_writer import HistoryWriter
from worker.serving.metering import Metering
from worker.serving.outcome import Outcome
from worker.serving.response_task import ResponseTask
from worker.serving.stall_detector import StallDetector
from worker.serving.worker_context import WorkerContext
from worker.text.flush_scheduler import FlushScheduler

MODEL = "smollm2-135m-instruct"
POOL = "default"
OWNER = records.Owner("https://tests", "alice")
REQUESTS = topics.requests(POOL, "interactive")
ENDLESS = {"script_tokens": "100000", "script_pace_ms": "1"}

_serial = itertools.count()


class Time:
    """Seconds that only a test advances; every clock of the worker and of the log reads it.

    Attributes:
        reads: how often it was read: the worker looks at the clock at each turn of its loop.
    """

    def __init__(self, now: float = 1_000.0) -> None:
        self.now = now
        self.reads = 0

    def __call__(self) -> float:
        self.reads += 1
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


def cues(tokens: int, **more: str) -> dict[str, str]:
    """Metadata for an answer of so many tokens, made without pause."""
    return {"script_tokens": str(tokens), "script_pace_ms": "0", **more}


def new_request(
    memory: MemoryLog,
    text: str = "hello",
    *,
    partition: int = 0,
    metadata: dict[str, str] | None = None,
    owner: records.Owner = OWNER,
    **more: Any,
) -> records.Request:
    """A request as a gateway makes it now."""
    end = memory.partition(topics.TOKENS, partition).end
    address = ids.Address(memory.layout.tag, partition, end)
    rid = ids.mint(address, next(_serial).to_bytes(ids.RANDOM_BYTES, "big"))
    fields: dict[str, Any] = {
        "model": MODEL,
        "messages": [{"role": "user", "content": text}],
        "sampling": records.Sampling(100_000),
        "echo": events.echo(rid, 1, MODEL, metadata=metadata or {}),
        **more,
    }
    return records.Request(rid, owner, **fields)


def answer(memory: MemoryLog, rid: str) -> Answer:
    """The response as any reader folds it."""
    found = Answer()
    partition = ids.parse(rid).partition
    for r in memory.records(topics.TOKENS, partition):
        record = records.token_of(r.key, r.value)
        if record is not None and record.rid == rid:
            found.apply(record, r.offset, r.timestamp)
    return found


@dataclass
class Answer:
    """A response as a reader holds it, with its records."""

    fold: Fold = field(default_factory=lambda: Fold(retain_ids=True))
    records: list[TokenRecord] = field(default_factory=list)
    text: str = ""

    def apply(self, record: TokenRecord, offset: int, timestamp: int) -> None:
        self.records.append(record)
        outcome = self.fold.apply(record, offset, timestamp)
        if isinstance(outcome, fold.Accepted):
            self.text += outcome.text
        elif isinstance(outcome, fold.Ended):
            self.text += outcome.text_tail

    @property
    def kinds(self) -> list[str]:
        return [type(record).__name__ for record in self.records]

    @property
    def claims(self) -> list[Claim]:
        return [record for record in self.records if isinstance(record, Claim)]

    @property
    def ended(self) -> Ended:
        assert self.fold.ended is not None
        return self.fold.ended


@dataclass
class Foreign:
    """Another worker, which writes records of one response as the test says."""

    memory: MemoryLog
    request: records.Request
    name: str = "other/1"

    def write(self, record: TokenRecord) -> int:
        partition = ids.parse(self.request.rid).partition
        return self.memory.put_record(topics.TOKENS, partition, record, self.request.rid)

    def claim(
        self, own: str, prev: str | None = None, prompt_tokens: int = 0, parser: str = ""
    ) -> int:
        model_rev = scripted.Scripted.model_rev
        digest = scripted.Scripted.tokenizer_digest
        return self.write(
            records.Claim(
                self.request.rid,
                own,
                prev,
                OWNER,
                self.name,
                REQUESTS,
                0,
                model_rev,
                digest,
                prompt_tokens,
                parser=parser,
            )
        )

    def tokens(self, own: str, n: int) -> None:
        """The next `n` tokens of the greedy answer, one frame."""
        state = answer(self.memory, self.request.rid).fold
        made = scripted.expected_ids(self.request.messages, state.next + n)[state.next :]
        text = scripted.Detokenizer().push([*state.ids, *made])[state.text_length :]
        self.write(records.Tok(self.request.rid, own, state.next, made, text, state.h))

    def end(self, own: str) -> None:
        state = answer(self.memory, self.request.rid).fold
        self.write(records.End(self.request.rid, own, state.next, "stop", state.h))

    def yield_(self, own: str) -> None:
        state = answer(self.memory, self.request.rid).fold
        self.write(records.Yield(self.request.rid, own, state.next))

    def cancel(self) -> None:
        """A gateway's CANCEL."""
        self.write(records.Cancel(self.request.rid, self.request.owner, self.request.echo))

    def withdraw(self) -> None:
        """The CANCEL of a gateway that told no client that the request was taken."""
        self.write(
            records.Cancel(self.request.rid, self.request.owner, self.request.echo, withdrawn=True)
        )


@dataclass
class Served:
    """One response that a worker serves."""

    serving: ResponseTask
    delivery: Delivery
    task: asyncio.Task[Outcome]

    async def outcome(self, within_s: float = 20.0) -> Outcome:
        return await asyncio.wait_for(asyncio.shield(self.task), within_s)


@dataclass
class Worker:
    """One worker without a group: a test delivers the requests."""

    memory: MemoryLog
    time: Time
    engine: scripted.Scripted
    context: WorkerContext
    tasks: list[asyncio.Task[Any]] = field(default_factory=list)

    def deliver(
        self, request: records.Request, tracker: Tracker | None = None, topic: str = REQUESTS
    ) -> Delivery:
        """Append the request to its topic and read it as an assignment does."""
        partition = ids.parse(request.rid).partition
        offset = self.memory.put_record(topic, partition, request, request.rid)
        timestamp = int(self.time.now * 1000)
        tracker = tracker or Tracker()
        tracker.begin(offset)
        self.context.clock.observe(timestamp, self.time.now)
        return Delivery(topic, partition, offset, timestamp, tracker, (), request_ms=timestamp)

    async def caught_up(self) -> None:
        """Return when the tail has read everything that partition 0 holds."""
        await eventually(
            lambda: self.context.tail.position(0) == self.memory.partition(topics.TOKENS, 0).end,
            "the tail is at the end",
            every_s=0.001,
        )

    def serve(self, request: records.Request, delivery: Delivery | None = None) -> Served:
        """Serve the request in a task of its own."""
        delivery = delivery or self.deliver(request)
        serving = ResponseTask(self.context, request, delivery)
        task = asyncio.create_task(serving.run())
        self.tasks.append(task)
        return Served(serving, delivery, task)


def make_context(
    memory: MemoryLog,
    time: Time,
    *,
    name: str = "this",
    engine: base.Engine | None = None,
    capacity: int = 4,
    stall_s: float = 60.0,
    price: costs.Prices = lambda _model: None,
) -> WorkerContext:
    """The parts of a worker; the caller runs the tail."""
    identity, clock = LogIdentity(memory.layout, memory.read_layout), BrokerClock()
    engine = engine or scripted.Scripted(capacity=capacity, max_model_len=8_192)
    engine_slots = Slots(engine.capacity)
    writer = memory.writer()
    reader, replays = memory.reader(topics.TOKENS, wait_ms=10), memory.replays()
    tail = Tail(reader, replays, memory.offsets(), identity, clock, time)
    return WorkerContext(
        incarnation=f"{name}/1",
        models=frozenset([MODEL]),
        engine=engine,
        writer=writer,
        tail=tail,
        identity=identity,
        clock=clock,
        engine_slots=engine_slots,
        trials=Slots(1),
        scheduler=FlushScheduler(),
        metering=Metering(writer, price=price),
        histories=HistoryWriter(writer, tail, memory.replays(), time),
        activity=ActivityWriter(writer),
        stall_detector=StallDetector(stall_s),
        ranges=memory.replays(),
        forks=ForkSources(memory.replays(), memory.offsets(), identity),
        prefixes=HeldPrefixes(engine.cached_blocks),
        monotonic=time,
    )


@contextlib.asynccontextmanager
async def worker(
    memory: MemoryLog | None = None, time: Time | None = None, **options: Any
) -> AsyncIterator[Worker]:
    """A worker that follows partition 0 from its beginning."""
    time = time or Time()
    memory = memory or MemoryLog(clock=time)
    context = make_context(memory, time, **options)
    engine: Any = context.engine  # scripted, unless the test brings another one
    made = Worker(memory, time, engine, context)
    made.tasks.append(asyncio.create_task(context.tail.run()))
    context.tail.follow(0, 0, memory.partition(topics.TOKENS, 0).end)
    try:
        yield made
    finally:
        for task in made.tasks:
            task.cancel()
        await asyncio.gather(*made.tasks, return_exceptions=True)
