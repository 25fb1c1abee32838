"""An upgrade on a real Kafka and a real Redis: a worker of the new revision joins, and one of the
old ones is killed, then the other one leaves."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support import workers
from tests.support.waiting import eventually

LONG = {"script_tokens": "300", "script_pace_ms": "20"}


@pytest.fixture
async def bench(kafka: str, redis_url: str, tmp_path: Path) -> AsyncIterator[workers.Bench]:
    async with workers.bench(kafka, redis_url, tmp_path) as made:
        yield made


def partitions(worker: workers.Worker) -> set[int]:
    """What the group gave it last."""
    lines = worker.log_path.read_text().rpartition("\n")[0].splitlines()
    found = [json.loads(line) for line in lines if '"partitions_assigned"' in line]
    return set(found[-1]["partitions"]) if found else set()


@pytest.mark.nightly
@pytest.mark.timeout(240)
async def test_running_responses_go_on_at_the_other_old_worker_while_a_new_one_has_the_partition(
    bench: workers.Bench,
) -> None:
    everywhere = set(range(bench.layout.partitions))
    started = [bench.worker(), bench.worker(), bench.worker(TAILRACE_SCRIPT_REVISION="scripted-2")]
    *old, new = [await worker.ready(60) for worker in started]

    async def shared() -> bool:
        held = [partitions(worker) for worker in started]
        return all(held) and sum(map(len, held)) == len(everywhere) == len(set.union(*held))

    await eventually(shared, "all have partitions", within_s=60)
    # Ranges are contiguous, so the new worker gets some of its neighbour's.
    of_new = partitions(new)
    left, killed = sorted(
        old, key=lambda w: -min(abs(p - q) for p in partitions(w) for q in of_new)
    )
    asked = sorted(partitions(killed))
    requests = [await bench.ask(f"number {p}", partition=p, cues=LONG) for p in asked]
    for request in requests:
        await bench.tokens(request.rid, 3)
    killed.kill()
    answers = [await bench.done(request.rid, deadline_s=50) for request in requests]

    assert [answer.ended.status for answer in answers] == ["completed"] * len(answers)
    for answer in answers:
        assert [w.split("/")[0] for _, w in answer.fold.claims] == [killed.name, left.name]
        assert answer.fold.model[0] == "scripted-1"
    assert set(asked) & partitions(new), "none was handed over"

    # The last old worker leaves, and what is new runs at the new one.
    left.terminate()
    await left.exit_code(60)
    for p in everywhere:
        request = await bench.ask("afterwards", partition=p, cues={"script_tokens": "3"})
        answer = await bench.done(request.rid, deadline_s=50)
        assert answer.fold.model[0] == "scripted-2"
