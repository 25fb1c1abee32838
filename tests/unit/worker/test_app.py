"""The composition root: start, failure and drain of a whole worker, on the in-memory log.

Redis is away in all of them: a worker serves without it.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tailrace import log, settings
from tailrace.protocol import fold, records, topics
from tailrace.store.redis_store import RedisStore
from tests.support import metric, openai_server
from tests.support.memory_log import MemoryLog
from tests.support.memory_worker import (
    ENDLESS,
    MODEL,
    REQUESTS,
    Foreign,
    answer,
    cues,
    new_request,
)
from tests.support.waiting import eventually
from tests.unit.worker.serving.test_response_task import metered
from worker.app import App, member_changes
from worker.engines import base, scripted
from worker.group import membership
from worker.heartbeat.status import State
from worker.log.connections import Connections

GROUP = topics.group("default")
AWAY = "redis://127.0.0.1:1/0"


@pytest.fixture(autouse=True)
def short_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "COMMIT_S", 0.005)
    monkeypatch.setattr(membership, "RETRY_S", 0.005)
    monkeypatch.setattr(membership, "POLL_MS", 5)


class Engine(scripted.Scripted):
    """The scripted engine, whose start may fail."""

    def __init__(self, start_error: Exception | None = None) -> None:
        super().__init__(capacity=4, max_model_len=8_192)
        self._start_error = start_error
        self.stopped = False

    async def start(self) -> None:
        if self._start_error is not None:
            raise self._start_error

    async def shutdown(self) -> None:
        await super().shutdown()
        self.stopped = True


@dataclass
class Running:
    """A worker under test."""

    memory: MemoryLog
    engine: Any  # None: the worker makes the one that its settings name
    app: App
    task: asyncio.Task[int]

    async def exit_code(self) -> int:
        return await asyncio.wait_for(self.task, 20)

    async def ready(self) -> None:
        await eventually(lambda: self.app.status.state is State.READY, "ready", every_s=0.005)

    def ask(self, **options: Any) -> Any:
        request = new_request(self.memory, **options)
        self.memory.put_record(REQUESTS, 0, request, request.rid)
        return request

    def committed(self) -> int:
        return self.memory.committed_offsets.get(GROUP, {}).get((REQUESTS, 0), (-1, ""))[0]

    async def tokens(self, rid: str, n: int) -> None:
        await eventually(lambda: answer(self.memory, rid).fold.next >= n, "tokens", every_s=0.005)


@contextlib.asynccontextmanager
async def running(
    memory: MemoryLog | None = None, engine: Engine | None = None, **env: str
) -> AsyncIterator[Running]:
    memory = memory or MemoryLog(partitions=1)
    if engine is None and "TAILRACE_ENGINE" not in env:
        engine = Engine()
    worker_settings = settings.worker(
        {
            "TAILRACE_ENGINE": "scripted",
            "TAILRACE_MODEL_NAME": MODEL,
            "TAILRACE_NAME": "this",
            "TAILRACE_REDIS": AWAY,
            **env,
        }
    )
    process = App(
        worker_settings,
        engine,
        Connections(
            writer=memory.writer(),
            reader=memory.reader(topics.TOKENS, wait_ms=5),
            replays=memory.replays(),
            offsets=memory.offsets(),
            layout=memory.read_layout,
            group_consumer=memory.group_consumer,
            redis=RedisStore(AWAY),
            redis_cache=RedisStore(AWAY),
        ),
    )
    task = asyncio.create_task(process.run())
    try:
        yield Running(memory, engine, process, task)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_worker_starts_serves_commits_and_leaves_with_exit_code_0() -> None:
    async with running() as it:
        assert it.app.status.readiness()["ready"] is False
        await it.ready()
        await eventually(lambda: it.app.status.kafka(), "the broker answered")
        assert it.app.status.cold_start_s > 0
        told = it.app.status.readiness()
        assert told | {"cold_start_s": 0, "tokens_per_s": 0} == {
            "ready": True,
            "state": "ready",
            "detail": "",
            "kafka": True,
            "features": sorted(it.engine.features),
            "not_offered": [],
            "parsers": list(it.engine.parsers),
            "cold_start_s": 0,
            "tokens_per_s": 0,
        }
        for topic in (topics.TOKENS, topics.requests("default", "batch")):
            heard = it.memory.deafen(topic)  # other clients are answered
            assert not it.app.status.readiness()["ready"], f"it hears nothing of {topic}"
            heard()
            assert it.app.status.readiness()["ready"]
        request = it.ask(metadata=cues(5))
        await it.tokens(request.rid, 5)
        await eventually(lambda: it.committed() == 1, "committed")
        claim = answer(it.memory, request.rid).claims[0]
        assert claim.worker.startswith("this/")

        it.app.leave()
        assert await it.exit_code() == 0
        assert it.engine.stopped
        assert it.app.status.state is State.DRAINING
        with pytest.raises(log.AppendFailed):
            await it.app.writer.append(topics.TOKENS, 0, "k", b"v")


async def test_an_engine_elsewhere_is_asked_as_the_settings_say() -> None:
    async with (
        openai_server.Server() as server,
        running(
            TAILRACE_ENGINE=f"{server.url}/v1",
            TAILRACE_MODEL="upstream",
            TAILRACE_ENGINE_KEY="k-123",
        ) as it,
    ):
        sampling = records.Sampling(50, temperature=0.5, stop=("@@",), seed=3)
        messages = [{"role": "user", "content": "say 4"}]
        request = it.ask(messages=messages, sampling=sampling)
        await eventually(lambda: it.committed() == 1, "committed")
        assert answer(it.memory, request.rid).ended.usage == records.Usage(7, 4, 2)
        *_trials, sent = server.requests
        assert "logit_bias" not in sent
        wanted = {"model": "upstream", "max_tokens": 50, "temperature": 0.5, "seed": 3}
        assert sent | wanted == sent
        assert sent["stop"] == ["@@"]
        assert "authorization: bearer k-123" in server.headers[0].lower()


async def test_what_a_server_elsewhere_refuses_is_not_offered() -> None:
    async with openai_server.Server() as server:
        server.refuses = {"min_p", "seed"}
        async with running(TAILRACE_ENGINE=f"{server.url}/v1", TAILRACE_MODEL="upstream") as it:
            await it.ready()
            assert it.app.status.readiness()["not_offered"] == ["min_p", "seed"]
            server.requests.clear()
            request = it.ask(sampling=records.Sampling(5, seed=3))
            await eventually(lambda: it.committed() == 1, "committed")
            assert "`seed`" in str(answer(it.memory, request.rid).ended.error)
            assert server.requests == []


TRIALS = {
    "TAILRACE_ENGINE": "scripted",
    "TAILRACE_SCRIPT_REFUSES": "min_p, grammar",
    "TAILRACE_SCRIPT_ENDS": "top_k",
}


async def test_a_field_that_ends_the_engine_ends_no_worker(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With one field, the engine's process ended. The request was claimed again by the next worker,
    which ended too, and so on with every such request."""
    caplog.set_level(logging.INFO)
    given: dict[str, Any] = {"TAILRACE_TRIALS": str(tmp_path), **TRIALS}
    async with running(**given) as it:
        fatal = it.ask(sampling=records.Sampling(5, top_k=3))
        after = it.ask(metadata=cues(3))
        await eventually(lambda: it.committed() == 2, "both are committed")
        assert it.app.status.readiness()["not_offered"] == ["grammar", "min_p", "top_k"]
        ended = answer(it.memory, fatal.rid).ended
        assert (ended.status, len(answer(it.memory, fatal.rid).claims)) == ("failed", 1)
        assert "`top_k`" in str(ended.error)
        assert answer(it.memory, after.rid).ended.status == "completed"
        told = metric.value("tailrace_engine_field_not_offered", field="top_k", reason="fatal")
        assert told == 1
    [line] = [record for record in caplog.records if record.message == "engine_tried"]
    assert line.fields["not_offered"] == ["top_k: fatal", "min_p: refused", "grammar: refused"]  # type: ignore[attr-defined]
    caplog.clear()
    async with running(**given) as it:  # by what is known
        await it.ready()
        assert it.app.status.readiness()["not_offered"] == ["grammar", "min_p", "top_k"]
    assert caplog.messages.count("engine_loading") == 1, "it was not started again"


async def test_a_worker_that_leaves_in_a_trial_leaves_at_once(tmp_path: Path) -> None:
    class Tried(Engine):
        def trial_key(self) -> str | None:
            return "some version"

        async def generate(self, job: base.GenerationInput, on_step: base.OnStep) -> None:
            await asyncio.Event().wait()

    async with running(engine=Tried(), TAILRACE_TRIALS=str(tmp_path)) as it:
        await eventually(lambda: "trying" in it.app.status.detail, "it tries")
        it.app.leave()
        assert await it.exit_code() == 0
        assert [*tmp_path.glob("*.json")] == []


async def test_an_engine_that_does_not_start_ends_the_worker_with_exit_code_1() -> None:
    async with running(engine=Engine(base.EngineDead("no model here"))) as it:
        request = it.ask()
        assert await it.exit_code() == 1
        assert it.app.status.state is State.FAILED
        assert "no model here" in it.app.status.detail
        assert it.engine.stopped
        assert answer(it.memory, request.rid).kinds == []


async def test_an_engine_that_dies_ends_the_worker_without_yield_or_commit() -> None:
    async with running() as it:
        request = it.ask(metadata=cues(50, script_fault="engine_death", script_fault_at="5"))
        assert await it.exit_code() == 1
        assert it.app.status.detail == "the engine died"
        response = answer(it.memory, request.rid)
        assert response.kinds[-1] == "Tok"
        assert response.fold.phase is fold.Phase.LIVE
        assert it.committed() <= 0


async def test_a_drain_finishes_what_runs_and_takes_nothing_more() -> None:
    async with running(TAILRACE_DRAIN_S="20") as it:
        await it.ready()
        request = it.ask(metadata={"script_tokens": "100000", "script_pace_ms": "1"})
        await it.tokens(request.rid, 3)
        it.app.leave()
        await eventually(lambda: it.app.status.state is State.DRAINING, "draining")
        later = it.ask(metadata=cues(1))
        Foreign(it.memory, request).cancel()  # its end: nothing keeps the worker any longer
        assert await it.exit_code() == 0
        assert answer(it.memory, later.rid).kinds == []
    # What ended after the worker had left the group is finished by the next one, without a claim.
    async with running(it.memory) as successor:
        await eventually(lambda: successor.committed() == 2, "both are committed")
    assert len(answer(it.memory, request.rid).claims) == 1
    assert answer(it.memory, later.rid).ended.status == "completed"


async def test_a_drain_that_is_over_yields_what_has_not_ended() -> None:
    async with running(TAILRACE_DRAIN_S="0") as it:
        request = it.ask(metadata=ENDLESS)
        await it.tokens(request.rid, 3)
        it.app.leave()
        assert await it.exit_code() == 0
        assert answer(it.memory, request.rid).kinds[-1] == "Yield"
        assert it.committed() <= 0


async def test_a_worker_told_to_leave_while_it_loads_leaves_at_once() -> None:
    class Loading(Engine):
        async def start(self) -> None:
            await asyncio.Event().wait()

    async with running(engine=Loading()) as it:
        await eventually(lambda: it.app.status.detail == "loading the engine", "loading")
        it.app.leave()
        assert await it.exit_code() == 0
        assert it.engine.stopped


async def test_a_log_that_is_away_at_the_start_is_waited_for() -> None:
    memory = MemoryLog(partitions=1)
    memory.go_away()
    async with running(memory) as it:
        await eventually(lambda: it.app.status.detail == "the broker is away", "it waits")
        assert it.app.status.state is State.LOADING
        memory.come_back()
        await it.ready()


async def test_a_worker_waits_for_the_topic_that_it_writes_before_it_finishes_a_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without the topic each response would fail the records of all others."""
    monkeypatch.setattr(log, "RETRY_S", 0.005)
    memory = MemoryLog()
    answered = memory.unanswered()
    async with running(memory) as worker:
        await eventually(lambda: "topics apply" in worker.app.status.detail, "it waits")
        assert worker.app.status.state is State.LOADING
        answered()
        await worker.ready()


async def test_a_worker_whose_log_was_replaced_ends_with_an_error() -> None:
    async with running() as it:
        request = it.ask(metadata=cues(3))
        await eventually(lambda: it.committed() == 1, "served")
        it.memory.replace("two")
        with pytest.raises(ExceptionGroup) as error:
            await it.exit_code()
        assert error.group_contains(log.LogChanged)
        assert it.engine.stopped
        assert answer(it.memory, request.rid).kinds == []


async def test_a_worker_whose_engine_refuses_an_argument_ends_with_exit_code_2() -> None:
    refused = base.ArgumentRefused("vLLM 1 has no engine_args.x")
    async with running(engine=Engine(refused)) as it:
        assert await it.exit_code() == 2
        assert "engine_args.x" in it.app.status.detail


async def test_a_worker_prices_tokens_by_its_file_and_says_when_it_must_be_restarted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "pools.yaml"
    line = "pools: {default: {models: [%s], price: {input: %d, output: 9}}}"
    file.write_text(line % (MODEL, 0))
    async with running(TAILRACE_POOLS=str(file)) as it:
        await it.ready()
        file.write_text(line % (MODEL, 3))
        await it.app.pools.poll()
        assert "restart_needed" not in caplog.messages
        before = [metric.value("tailrace_cost_total", kind=kind) for kind in ("input", "output")]
        request = it.ask(metadata=cues(5))
        await eventually(lambda: it.committed() == 1, "committed")
        ended = answer(it.memory, request.rid).fold.ended
        assert ended is not None
        usage = ended.usage
        (bill,) = metered(it.memory)
        assert bill.cost_nano == 3_000 * usage.input_tokens + 9_000 * usage.output_tokens
        after = [metric.value("tailrace_cost_total", kind=kind) for kind in ("input", "output")]
        assert [a - b for a, b in zip(after, before, strict=True)] == pytest.approx(
            [3 * usage.input_tokens / 1e6, 9 * usage.output_tokens / 1e6]
        )
        file.write_text(f"pools: {{default: {{models: [{MODEL}]}}}}")
        await it.app.pools.poll()
        it.ask(metadata=cues(1))
        await eventually(lambda: it.committed() == 2, "committed")
        assert metered(it.memory)[-1].cost_nano is None
        other = "\n  other: {models: [n], fallback: [default]}"
        file.write_text(line.replace("pools: {", "pools:\n  ")[:-1] % (f"{MODEL}, more", 3) + other)
        await it.app.pools.poll()
        [told] = [record for record in caplog.records if record.message == "restart_needed"]
        assert told.fields["members"] == ["models", "fallback of another pool"]  # type: ignore[attr-defined]


async def test_a_worker_prices_what_another_pool_answered_by_that_pools_price(
    tmp_path: Path,
) -> None:
    """The worker of the pool that was asked finishes the request too, and writes the record."""
    file = tmp_path / "pools.yaml"
    own = f"{{models: [{MODEL}], price: {{input: 1, output: 1}}}}"
    file.write_text(f"pools: {{default: {own}, other: {{models: [n], price: {{input: 100}}}}}}")
    memory = MemoryLog()
    request = new_request(memory)
    other = Foreign(memory, request)
    other.write(
        records.Claim(
            *(request.rid, "o", None, request.owner, "other/1", REQUESTS, 0, "rev", "tokenizer"),
            *(7, request.echo),
            served="n",
        )
    )
    other.cancel()
    memory.put_record(REQUESTS, 0, request, request.rid)
    async with running(memory, TAILRACE_POOLS=str(file)) as it:
        await eventually(lambda: it.committed() == 1, "committed")
        (bill,) = metered(memory)
        assert (bill.model, bill.cost_nano) == ("n", 700_000)


def test_a_pool_that_is_gone_needs_a_restart_too() -> None:
    pool = settings.Pool("p", ("m",), 100, 10)
    assert member_changes(pool, None) == ["pool"]
    assert member_changes(pool, dataclasses.replace(pool, price=settings.Price(1, 1))) == []
    now = dataclasses.replace(pool, engine_args={"seed": 1}, cache="none")
    assert member_changes(pool, now) == ["engine_args", "cache"]
