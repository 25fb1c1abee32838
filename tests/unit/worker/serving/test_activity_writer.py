"""Notices for feeds, written by workers, on the in-memory log (log rule §20)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tailrace.protocol import activity, history, records, topics
from tests.support import memory_worker, waiting
from tests.support.memory_log import MemoryLog
from tests.support.memory_worker import Foreign, answer, cues, new_request
from tests.unit.worker.serving import test_response_task
from worker.serving.activity_writer import ActivityWriter
from worker.serving.history_writer import HistoryWriter
from worker.serving.outcome import Outcome
from worker.serving.response_state import ResponseState

looks_often = test_response_task.looks_often


def told(memory: MemoryLog) -> list[tuple[str, str]]:
    """Kinds and ids of all notices, in the order of the log."""
    partition = activity.partition(memory_worker.OWNER)
    found = [activity.decode(r.key, r.value) for r in memory.records(topics.ACTIVITY, partition)]
    return [(type(each).__name__, each.rid) for each in found if each is not None]


async def test_the_end_is_told_behind_the_history_and_before_the_offset_is_finished(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    order: list[str] = []

    def noted(owner: type, name: str, as_: str) -> None:
        real = getattr(owner, name)

        async def later(*arguments: Any) -> Any:
            row_outcome = await real(*arguments)
            order.append(as_)
            return row_outcome

        def now(*arguments: Any) -> Any:
            order.append(as_)
            return real(*arguments)

        wrapped = later if asyncio.iscoroutinefunction(real) else now
        monkeypatch.setattr(owner, name, wrapped)

    noted(HistoryWriter, "write", "history")
    noted(ActivityWriter, "write_end", "ended")
    noted(ResponseState, "finish", "offset")
    async with memory_worker.worker() as worker:
        request = new_request(worker.memory, metadata=cues(5))
        assert await worker.serve(request).outcome() is Outcome.DONE
        assert order == ["history", "ended", "offset"]
        assert told(worker.memory) == [("Started", request.rid), ("Ended", request.rid)]


async def test_a_worker_that_dies_before_it_tells_the_end_is_made_up_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with memory_worker.worker() as worker:
        request = new_request(worker.memory, metadata=cues(5))
        reached = asyncio.Event()

        async def dies(*_: object) -> None:
            reached.set()
            await asyncio.Event().wait()

        with monkeypatch.context() as patch:
            patch.setattr(worker.context.activity, "write_end", dies)
            job = worker.serve(request)
            async with asyncio.timeout(10):
                await reached.wait()
            job.task.cancel()
            await asyncio.gather(job.task, return_exceptions=True)
        assert answer(worker.memory, request.rid).ended.status == "completed"
        assert told(worker.memory) == [("Started", request.rid)]
        async with memory_worker.worker(worker.memory, worker.time, name="second") as second:
            assert await second.serve(request).outcome() is Outcome.DONE
        assert told(worker.memory) == [("Started", request.rid), ("Ended", request.rid)]


@pytest.mark.parametrize("tokens", [0, 4])
async def test_only_the_first_claim_is_told_as_a_beginning(tokens: int) -> None:
    async with memory_worker.worker() as worker:
        request = new_request(worker.memory, metadata=cues(20))
        other = Foreign(worker.memory, request)
        other.claim("a")
        if tokens:
            other.tokens("a", tokens)
        await worker.caught_up()
        job = worker.serve(request)

        def over() -> bool:
            worker.time.advance(5)
            return job.task.done()

        await waiting.eventually(over, "it took over", every_s=0.02)
        assert answer(worker.memory, request.rid).fold.epoch == 2
        assert told(worker.memory) == [("Ended", request.rid)]


@pytest.mark.parametrize(
    "fields", [{"store": False}, {"embed": records.Embed(["a"]), "messages": []}]
)
async def test_what_nobody_can_read_is_not_told(fields: dict[str, Any]) -> None:
    async with memory_worker.worker() as worker:
        request = new_request(worker.memory, metadata=cues(5), **fields)
        if request.embed is not None:
            request.echo["object"] = "embeddings"
        assert not history.will_have_history(request)
        assert await worker.serve(request).outcome() is Outcome.DONE
        assert told(worker.memory) == []
