"""Two workers on a real Kafka and a real Redis, and requests that all lie in one partition. What
one worker takes from another is proven on the log in memory
(`tests/unit/worker/sharing/test_stealing.py`, `test_hedging.py`)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support import waiting, workers

REQUESTS = 12
# Six seconds of work for the two slots of one worker.
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
