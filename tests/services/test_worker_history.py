"""What workers write to `llm.history` on a real Kafka, also those that are killed."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tailrace.protocol import fold, history, ids, records, topics
from tests.support import waiting, workers

FAST = {"script_pace_ms": "1"}
SESSION_MS = 1500

# Imported by the interpreter at its start: the worker dies where it would write the history.
DIES = """
import os, signal
from worker import history_writer

async def finished(self, request, partition, entry):
    os.kill(os.getpid(), signal.SIGKILL)

history_writer.HistoryWriter.finished = finished
"""


@pytest.fixture
async def bench(kafka: str, redis_url: str, tmp_path: Path) -> AsyncIterator[workers.Bench]:
    async with workers.bench(kafka, redis_url, tmp_path) as made:
        yield made


async def kept(bench: workers.Bench, rid: str, copies: int = 1) -> list[bytes]:
    """The values that are there once so many were written."""

    async def found() -> bool:
        return len(await bench.beside(topics.HISTORY, rid)) >= copies

    await waiting.eventually(found, f"{copies} of {rid} in llm.history", within_s=30)
    return await bench.beside(topics.HISTORY, rid)


def read(values: list[bytes], rid: str) -> history.History:
    part = history.part_of(rid.encode(), values[0])
    assert part is not None
    found = history.joined([part])
    assert found is not None
    return found


def of_the_log(answer: workers.Answer, request: records.Request) -> history.History:
    effective = [r for _, r, outcome in answer.records if not isinstance(outcome, fold.Ignored)]
    return history.of(request, effective, answer.ended.timestamp)


async def test_a_killed_workers_history_is_written_by_its_successor_and_copies_are_equal(
    bench: workers.Bench,
) -> None:
    (bench.folder / "dies").mkdir()
    (bench.folder / "dies" / "sitecustomize.py").write_text(DIES)
    path = os.pathsep.join([str(bench.folder / "dies"), str(workers.ROOT)])
    first = await bench.worker(session_ms=SESSION_MS, PYTHONPATH=path).ready()
    request = await bench.ask("keep this", cues={"script_tokens": "40", **FAST})
    answer = await bench.done(request.rid)
    assert await first.exit_code() == -9
    assert await bench.beside(topics.HISTORY, request.rid) == []
    assert (await bench.committed(0))[0] < 1

    await bench.serve()
    values = await kept(bench, request.rid)
    assert read(values, request.rid) == of_the_log(answer, request)
    assert (await bench.read(request.rid)).kinds().count("Claim") == 1

    # The request once more, as after a gateway's repeated append.
    await bench.append(
        topics.requests(bench.pool, "interactive"), 0, request.rid, records.encode(request)
    )
    copies = await kept(bench, request.rid, 2)
    assert len(set(copies)) == 1


async def test_what_was_taken_over_or_cancelled_is_kept_and_what_is_not_stored_is_not(
    bench: workers.Bench,
) -> None:
    first = await bench.worker(session_ms=SESSION_MS).ready()
    cues = {"script_tokens": "600", "script_pace_ms": "5"}
    taken = await bench.ask("taken over", cues=cues)
    await bench.tokens(taken.rid, 20)
    first.kill()
    early = await bench.ask("too late", partition=1)
    await bench.cancel(early)
    passing = await bench.ask("do not keep", cues={"script_tokens": "5", **FAST}, store=False)
    await bench.serve()
    for request in (taken, early):
        values = await kept(bench, request.rid)
        found = read(values, request.rid)
        assert found == of_the_log(await bench.done(request.rid), request)
        assert len(found.claims) == (2 if request is taken else 0)
    await bench.done(passing.rid)

    async def committed() -> bool:
        return (await bench.committed(0))[0] >= 2

    await waiting.eventually(committed, "the last request is finished")
    assert await bench.beside(topics.HISTORY, passing.rid) == []
    assert ids.parse(passing.rid).partition == 0
