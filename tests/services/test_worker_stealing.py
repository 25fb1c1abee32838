"""Two workers on a real Kafka and a real Redis, and requests that all lie in one partition."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from gateway import cache, hedging
from tailrace import log, settings
from tailrace.protocol import ids, records, topics
from tailrace.store.redis_store import RedisStore
from tailrace.verify import checks, history, report
from tests.support import waiting, workers
from worker.engines import scripted

REQUESTS = 16
# Eight seconds of work for the two slots of one worker.
CUES = {"script_tokens": "50", "script_pace_ms": "20"}


@pytest.fixture
async def bench(kafka: str, redis_url: str, tmp_path: Path) -> AsyncIterator[workers.Bench]:
    async with workers.bench(kafka, redis_url, tmp_path) as made:
        yield made


async def test_requests_of_one_partition_run_at_both_workers_and_each_ends_once(
    bench: workers.Bench,
) -> None:
    for _ in range(2):
        await bench.serve(TAILRACE_MAX_NUM_SEQS="2")
    requests = [await bench.ask(f"number {n}", cues=CUES) for n in range(REQUESTS)]

    answers = [await bench.done(request.rid, deadline_s=60) for request in requests]

    assert all(answer.ended.status == "completed" for answer in answers)
    assert all(answer.kinds().count("End") == 1 for answer in answers)
    ran_at = {worker for answer in answers for _, worker in answer.fold.claims}
    assert len(ran_at) == 2

    async def committed() -> bool:
        return (await bench.committed(0))[0] == REQUESTS

    await waiting.eventually(committed, "all is committed")


async def test_an_idle_worker_is_faster_than_one_whose_first_token_is_late(
    bench: workers.Bench,
) -> None:
    """The gateway's part, the workers, Kafka and Redis; not a gateway's process."""
    shape = {"models": [workers.MODEL_NAME], "max_model_len": 8192, "hedge": {"share": 1.0}}
    pools = json.dumps({bench.pool: shape})
    # Longer than the test may take, and so that no other worker ends it by its grace.
    slow = await bench.serve(TAILRACE_SCRIPT_FIRST_TOKEN_MS="25000", TAILRACE_POOLS=pools)
    fast = await bench.serve(TAILRACE_POOLS=pools)

    def partitions(of: workers.Inside) -> list[int]:
        assert of.app._consumer is not None
        return of.app._consumer.partitions

    await waiting.eventually(
        lambda: (
            partitions(slow)
            and partitions(fast)
            and not set(partitions(slow)) & set(partitions(fast))
        ),
        "both have partitions",
    )
    partition = partitions(slow)[0]
    redis = RedisStore(bench.redis_url)
    late = hedging.Hedges(
        settings.CurrentPools(slow.app.pools.catalog),
        cache.Cache(redis),
    )
    for _ in range(hedging.LEAST):
        late._paces[bench.pool].began(time.monotonic(), 0.01)
    request = await bench.ask("who is first", partition=partition, cues=CUES)
    found = await bench.until(request.rid, lambda a: a.fold.claims)
    assert found.fold.next == 0
    late.add(request, SimpleNamespace(state=found.fold), bench.pool, "interactive", partition)  # type: ignore[arg-type]
    looking = asyncio.create_task(late.run())
    try:
        answer = await bench.done(request.rid)
    finally:
        looking.cancel()
        await redis.aclose()

    claims = [record for _, record, _ in answer.records if isinstance(record, records.Claim)]
    assert [(c.worker.split("/")[0][-2:], c.hedged) for c in claims] == [
        ("i1", False),
        ("i2", True),
    ]
    assert answer.ended.status == "completed"
    assert answer.text == scripted.expected_text(request.messages, 50)

    async def committed() -> bool:
        return (await bench.committed(partition))[0] == 1

    await waiting.eventually(committed, "the slow worker commits it")
    assert (await judged(bench, request)).failed() == []


async def judged(bench: workers.Bench, request: records.Request) -> report.Report:
    """What the judge says of a response, by its request and its tokens."""
    partition = ids.parse(request.rid).partition
    found = history.gather([], incarnation=bench.layout.incarnation, partitions=partition + 1)
    found.has_usage = found.has_dead = False
    replays = log.Replays(bench.bootstrap, size=1)
    try:
        for topic in (topics.requests(bench.pool, "interactive"), topics.TOKENS):
            end = (await bench.offsets.ends(topic, [partition]))[partition]
            async for batch in replays.read(topic, partition, 0, end):
                for r in batch:
                    if r.key == request.rid.encode():
                        found.add(r)
    finally:
        await replays.stop()
    out, _ = checks.judge(found, checks.Options(settle_s=0.0))
    assert out.results["L18"].judged == 1
    return out
