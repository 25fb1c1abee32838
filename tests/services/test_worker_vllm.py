"""Workers with the real engine on a real Kafka. One story for all, because an engine takes most of
a minute to start on a small machine."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from tailrace.protocol import fold, records
from tailrace.store.offers import Late, Offers
from tailrace.store.redis_store import RedisStore
from tailrace.store.workers import Workers
from tests.support import workers
from tests.support.waiting import eventually

MODEL = Path(
    os.environ.get("TAILRACE_TEST_MODEL")
    or Path.home() / ".cache" / "tailrace" / "models" / "smollm2-135m-instruct"
)
BOOT_S = 240.0
ANSWER_S = 90.0
SESSION_MS = 6000
LONG_TOKENS = 200  # of an answer that is not over before its worker is killed
NO_END = {"0": -100.0, "2": -100.0}  # the model's end tokens: an answer ends by its length alone
CORES = len(os.sched_getaffinity(0))

pytestmark = [
    pytest.mark.engine,
    pytest.mark.nightly,
    pytest.mark.timeout(700),
    pytest.mark.skipif(
        not workers.ENGINE_PYTHON.exists() or not MODEL.is_dir(),
        reason="vLLM is NOT tested: no engine environment or model (make install)",
    ),
]


@pytest.fixture
async def bench(kafka: str, redis_url: str, tmp_path: Path) -> AsyncIterator[workers.Bench]:
    async with workers.bench(kafka, redis_url, tmp_path) as made:
        yield made


def start(bench: workers.Bench) -> workers.Worker:
    shape = {"models": [workers.MODEL_NAME], "max_model_len": 8192, "hedge": {"share": 1.0}}
    return bench.worker(
        TAILRACE_POOLS=json.dumps({bench.pool: shape}),
        engine="vllm",
        python=workers.ENGINE_PYTHON,
        session_ms=SESSION_MS,
        TAILRACE_MODEL=str(MODEL),
        TAILRACE_MAX_NUM_SEQS="8",
    )


def descendants(pid: int) -> set[int]:
    """Processes below `pid`."""
    return {child.pid for child in psutil.Process(pid).children(recursive=True)}


def engine_processes(pid: int) -> dict[int, dict[str, str]]:
    """vLLM's processes below `pid`, each with the environment that it started with."""
    return {
        child.pid: environment(child.pid)
        for child in psutil.Process(pid).children(recursive=True)
        if "VLLM::" in " ".join(child.cmdline())
    }


def environment(pid: int) -> dict[str, str]:
    """The variables that a process started with. Not `psutil.Process.environ`, which ends at the
    gap that a process title leaves."""
    pairs = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)


def alive(pids: set[int]) -> set[int]:
    found = set()
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                found.add(pid)
    return found


async def all_gone(pids: set[int]) -> None:
    await eventually(lambda: not alive(pids), f"the processes {pids} are gone", within_s=15)


async def test_a_real_model_answers_is_cancelled_taken_over_and_leaves_nothing_behind(
    bench: workers.Bench,
) -> None:
    first = start(bench)
    said = await eventually(lambda: asyncio.to_thread(first.status), "it says how it is")
    assert said["state"] == "loading"
    await first.ready(BOOT_S)
    scheduler_and_model = engine_processes(first.process.pid)
    assert len(scheduler_and_model) == 1, (
        "in two processes they wait for each other by spinning, each on a core"
    )
    (variables,) = scheduler_and_model.values()
    assert 1 <= int(variables["OMP_NUM_THREADS"]) <= max(1, CORES - 1), (
        "one core is left for the services"
    )
    second = start(bench)

    await an_answer(bench)
    await a_cancel(bench, first)
    await second.ready(BOOT_S)
    await a_hedge(bench, first, second)
    await a_takeover(bench, first)
    await an_orderly_end(bench, second)
    assert "Logging error" not in second.log_path.read_text(), (
        "a library logged a line that its own format could not show"
    )


async def test_a_worker_killed_while_its_engine_starts_leaves_nothing_behind(
    bench: workers.Bench,
) -> None:
    """An engine process whose service died during the start waited five minutes for it: vLLM loads
    its plugins only after that wait."""
    worker = start(bench)

    def starting() -> bool:
        assert worker.process.poll() is None, worker.logs()
        return len(descendants(worker.process.pid)) >= 2

    await eventually(starting, "its engine's processes are there", within_s=BOOT_S)
    engine = descendants(worker.process.pid)

    worker.kill()

    await all_gone(engine)


async def an_answer(bench: workers.Bench) -> None:
    request = await bench.ask(
        "Explain quantum entanglement.",
        sampling=records.Sampling(40, temperature=0.0, logit_bias=NO_END),
    )
    answer = await bench.done(request.rid, ANSWER_S)
    assert answer.ended.status == "incomplete"
    assert answer.ended.usage.output_tokens == 40 == len(answer.fold.ids)
    assert answer.ended.usage.input_tokens > 20
    assert answer.text.strip()
    assert answer.fold.first is not None
    assert answer.fold.first.model_rev.startswith("smollm2-135m-instruct@")


async def a_cancel(bench: workers.Bench, worker: workers.Worker) -> None:
    request = await bench.ask(
        "Write a very long story about the sea.",
        sampling=records.Sampling(3000, temperature=0.0, logit_bias=NO_END),
    )
    await bench.tokens(request.rid, 3, ANSWER_S)
    await bench.cancel(request)
    async with RedisStore(bench.redis_url) as redis:

        async def idle() -> bool:
            beats = {beat["name"]: beat for beat in await Workers(redis).list_workers(bench.pool)}
            return worker.name in beats and beats[worker.name]["running"] == 0

        await eventually(idle, "the engine no longer runs it", within_s=10)


async def a_hedge(bench: workers.Bench, first: workers.Worker, second: workers.Worker) -> None:
    """The engine of one worker stands still before its first token. The other one makes one for
    itself, then claims, and answers."""
    sampling = records.Sampling(24, temperature=0.0, logit_bias=NO_END)
    partition = await partition_of(bench, first)
    engine = engine_processes(first.process.pid)
    for pid in engine:
        os.kill(pid, signal.SIGSTOP)
    try:
        late = await bench.ask("What is a log?", partition=partition, sampling=sampling)
        begun = await bench.until(late.rid, lambda a: a.fold.claims, ANSWER_S)
        assert begun.fold.first is not None
        async with RedisStore(bench.redis_url) as redis:
            place = Late(partition, begun.fold.first.req_offset)
            await Offers(redis, Late, "hedges").publish(bench.pool, late.rid, place)
        await bench.until(late.rid, lambda a: a.fold.epoch == 2, ANSWER_S)
    finally:
        for pid in engine:
            os.kill(pid, signal.SIGCONT)
    answer = await bench.done(late.rid, ANSWER_S)
    claims = [record for _, record, _ in answer.records if isinstance(record, records.Claim)]
    assert [(c.worker.split("/")[0], c.hedged) for c in claims] == [
        (first.name, False),
        (second.name, True),
    ]
    assert answer.fold.next == 24 == answer.ended.usage.output_tokens
    assert answer.text.strip()


async def partition_of(bench: workers.Bench, worker: workers.Worker) -> int:
    """One of a worker's partitions, once the workers have shared them."""
    async with RedisStore(bench.redis_url) as redis:

        async def found() -> list[int]:
            beats = await Workers(redis).list_workers(bench.pool)
            if len(beats) != 2 or not all(beat["partitions"] for beat in beats):
                return []
            return next(beat["partitions"] for beat in beats if beat["name"] == worker.name)

        return (await eventually(found, "both have partitions"))[0]


async def a_takeover(bench: workers.Bench, first: workers.Worker) -> None:
    """Accepted tokens stay, and every answer that the dead worker had not finished is finished by
    the other. Which tokens follow is the engine's contract (tests/contract/test_engines.py)."""
    sampling = records.Sampling(LONG_TOKENS, temperature=0.0, logit_bias=NO_END)
    asked = [
        await bench.ask("List the planets.", partition=p, sampling=sampling) for p in (0, 1, 6, 7)
    ]
    for request in asked:
        await bench.tokens(request.rid, 10, ANSWER_S)
    engine = descendants(first.process.pid)
    assert len(engine) >= 2

    first.kill()

    await all_gone(engine)
    accepted = [await bench.read(request.rid) for request in asked]
    interrupted = [
        answer.fold.claims[0][1].startswith(f"{first.name}/")
        and answer.fold.phase is not fold.Phase.DONE
        for answer in accepted
    ]
    assert any(interrupted), "every answer was over before its worker was killed"
    for request, before, was_interrupted in zip(asked, accepted, interrupted, strict=True):
        answer = await bench.done(request.rid, ANSWER_S)
        assert answer.fold.ids[: before.fold.next] == before.fold.ids
        assert answer.text.startswith(before.text)
        assert answer.fold.next == LONG_TOKENS
        assert answer.fold.epoch == (2 if was_interrupted else 1)
        assert answer.kinds().count("End") == 1


async def an_orderly_end(bench: workers.Bench, second: workers.Worker) -> None:
    engine = descendants(second.process.pid)
    second.terminate()
    assert await second.exit_code(40) == 0, second.logs()
    await all_gone(engine)
