"""An upgrade on a real Kafka and a real Redis: a worker of the new revision joins, and one of the
old ones is killed, then the other one leaves."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support import workers
from tests.support.waiting import eventually

# Twelve seconds: longer than the group takes to notice a death, and shorter than 60 s.
LONG = {"script_tokens": "600", "script_pace_ms": "20"}


@pytest.fixture
async def bench(kafka: str, redis_url: str, tmp_path: Path) -> AsyncIterator[workers.Bench]:
    async with workers.bench(kafka, redis_url, tmp_path) as made:
        yield made


def partitions(worker: workers.Worker) -> set[int]:
    """What the group gave it last."""
    lines = [json.loads(line) for line in worker.log_path.read_text().splitlines() if line]
    found = [line["partitions"] for line in lines if line.get("action") == "partitions_assigned"]
    return set(found[-1]) if found else set()


@pytest.mark.timeout(240)
async def test_running_responses_go_on_at_the_other_old_worker_while_a_new_one_has_the_partition(
    bench: workers.Bench,
) -> None:
    everywhere = set(range(bench.layout.partitions))
    old = [await bench.worker().ready(60) for _ in range(2)]
    requests = [await bench.ask(f"number {p}", partition=p, cues=LONG) for p in everywhere]
    for request in requests:
        await bench.tokens(request.rid, 3)
    new = await bench.worker(TAILRACE_SCRIPT_REVISION="scripted-2").ready(60)
    killed, left = old[1], old[0]

    async def shared() -> bool:
        return bool(partitions(new)) and partitions(new) < everywhere

    await eventually(shared, "the new worker has partitions", within_s=60)
    killed.kill()
    answers = [await bench.done(request.rid, deadline_s=50) for request in requests]

    assert [answer.ended.status for answer in answers] == ["completed"] * len(answers)
    assert {a.fold.model[0] for a in answers} == {"scripted-1"}
    claimed = {worker.split("/")[0] for a in answers for _, worker in a.fold.claims}
    assert claimed == {killed.name, left.name}
    taken = [p for p, a in zip(sorted(everywhere), answers, strict=True) if len(a.fold.claims) > 1]
    assert set(taken) & partitions(new), "none was handed over"

    # The last old worker leaves: what it yields has nobody to go on with it, and what is new runs.
    left.terminate()
    await left.exit_code(60)
    for p in everywhere:
        request = await bench.ask("afterwards", partition=p, cues={"script_tokens": "3"})
        answer = await bench.done(request.rid, deadline_s=50)
        assert answer.fold.model[0] == "scripted-2"
