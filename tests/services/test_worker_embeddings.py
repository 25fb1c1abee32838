"""Embeddings with real Kafka, real vLLM and the official client: a gateway, two workers with a toy
model (tests/support/toy_embeddings.py), one of which is killed in the middle of a long list."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import openai
import pytest

from tailrace import log
from tailrace.protocol import records, topics
from tests.support import engine_environment, toy_embeddings, workers
from tests.support import gateway_process as gp
from tests.support.waiting import eventually

BOOT_S = 300.0
ANSWER_S = 180.0
LONGEST = 512
MODEL = workers.MODEL_NAME

pytestmark = [
    pytest.mark.engine,
    pytest.mark.nightly,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not workers.ENGINE_PYTHON.exists() or not engine_environment.MODEL.is_dir(),
        reason="vLLM is NOT tested: no engine environment or model (make install)",
    ),
]


@pytest.fixture
async def bench(kafka: str, redis_url: str, tmp_path: Path) -> AsyncIterator[workers.Bench]:
    async with workers.bench(kafka, redis_url, tmp_path) as made:
        yield made


@pytest.fixture
def model(tmp_path: Path) -> Path:
    made = tmp_path / "toy-embeddings"
    python = str(workers.ENGINE_PYTHON)
    module = [python, "-m", "tests.support.toy_embeddings"]
    command = [*module, str(engine_environment.MODEL), str(made)]
    subprocess.run(command, cwd=engine_environment.ROOT, check=True, capture_output=True)
    return made


async def test_a_killed_worker_s_part_is_computed_by_another_and_text_is_refused(
    bench: workers.Bench, model: Path, tmp_path: Path, redis_url: str
) -> None:
    pools = json.dumps({bench.pool: {"models": [MODEL], "max_model_len": LONGEST}})

    def start() -> workers.Worker:
        return bench.worker(
            engine="vllm",
            python=workers.ENGINE_PYTHON,
            session_ms=6000,
            TAILRACE_MODEL=str(model),
            TAILRACE_MAX_NUM_SEQS="4",
            TAILRACE_POOLS=pools,
        )

    keys = gp.Keys.make(tmp_path)
    first = start()
    await first.ready(BOOT_S)
    second = start()
    await second.ready(BOOT_S)
    larger = {"TAILRACE_POOLS": pools, "TAILRACE_HTTP_MAX_BYTES": str(1 << 22)}
    gateway = gp.gateway(tmp_path, bench.bootstrap, redis_url, bench.pool, keys, **larger)
    with gateway as listening:
        token = keys.token("alice")
        async with openai.AsyncOpenAI(
            base_url=listening.api, api_key=token, max_retries=0, timeout=ANSWER_S
        ) as client:
            few = await client.embeddings.create(model=MODEL, input=["one", "two"], dimensions=8)
            assert [len(each.embedding) for each in few.data] == [8, 8]
            with pytest.raises(openai.BadRequestError, match="generates no text"):
                await client.responses.create(model=MODEL, input="hello")
            with pytest.raises(openai.BadRequestError, match=r"'input\[1\]' has \d+ tokens"):
                await client.embeddings.create(model=MODEL, input=["a", "word " * 600])

            inputs = [f"{i}: " + "many words " * 120 for i in range(1024)]
            asking = asyncio.create_task(client.embeddings.create(model=MODEL, input=inputs))
            killed = await claimed_and_killed(bench, [first, second], count=32)
            found = await asyncio.wait_for(asking, ANSWER_S)
            assert [each.index for each in found.data] == list(range(1024))
            assert {len(each.embedding) for each in found.data} == {toy_embeddings.DIMENSIONS}
            answers = [await bench.read(rid) for rid in killed]
            for answer in answers:
                ends = Counter(type(outcome).__name__ for _, _, outcome in answer.records)
                assert ends["Ended"] == 1, answer.kinds()
                assert "Tok" not in answer.kinds()
            assert max(answer.fold.epoch for answer in answers) > 1, "nobody was taken over"
            some = slice(0, 1024, 97)
            again = await client.embeddings.create(model=MODEL, input=inputs[some])
            for one, other in zip(found.data[some], again.data, strict=True):
                assert one.embedding == pytest.approx(other.embedding, abs=0.05)


async def claimed_and_killed(
    bench: workers.Bench, running: list[workers.Worker], count: int
) -> list[str]:
    """Kill a worker that holds a part which has not ended. Returns all parts."""
    partitions = bench.layout.partitions

    async def parts() -> list[str]:
        topic = topics.requests(bench.pool, "interactive")
        ends = await bench.offsets.ends(topic, range(partitions))
        if sum(ends.values()) < count:
            return []
        found = [
            r for r in await requests(bench, topic, ends) if r.embed and len(r.embed.inputs) == 32
        ]
        return [r.rid for r in found]

    rids = await eventually(parts, "all parts are in the log", within_s=60)
    assert len(rids) == count

    async def one_runs() -> workers.Worker | None:
        for rid in reversed(rids):
            answer = await bench.read(rid)
            if answer.fold.claims and answer.fold.ended is None:
                name = answer.fold.claims[-1][1]
                return next(w for w in running if name.startswith(w.name))
        return None

    worker = await eventually(one_runs, "a part is being computed", within_s=60, every_s=0.001)
    assert worker is not None
    worker.kill()
    return list(rids)


async def requests(bench: workers.Bench, topic: str, ends: dict[int, int]) -> list[records.Request]:
    replays, found = log.Replays(bench.bootstrap, size=1), []
    try:
        for p, end in ends.items():
            async for batch in replays.read(topic, p, 0, end):
                found += [records.decode_request(r.value) for r in batch]
    finally:
        await replays.stop()
    return [r for r in found if r is not None]
