"""Responses whose engine is a server elsewhere, here one on the loopback. While it takes nothing
they wait without a slot, and nothing counts as failed; when it is lost in mid-answer they go on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from tailrace.protocol import records
from tests.support import memory_worker, openai_server
from tests.support.memory_worker import Foreign, answer, new_request
from tests.support.openai_server import Refusal
from tests.support.waiting import eventually
from worker.engines import openai
from worker.serving import attempt, response_state
from worker.serving.attempt import Stop
from worker.serving.outcome import Outcome

SAMPLING = records.Sampling(100)


@contextlib.asynccontextmanager
async def worker_on(
    server: openai_server.Server, *, start: bool = True
) -> AsyncIterator[memory_worker.Worker]:
    engine = openai.OpenAI(url=server.url, model="m", capacity=4)
    try:
        if start:
            await engine.start()
        async with memory_worker.worker(engine=engine) as worker:
            engine.on_limit = worker.context.engine_slots.restrict
            yield worker
    finally:
        await engine.shutdown()


@pytest.fixture
async def server() -> AsyncIterator[openai_server.Server]:
    async with openai_server.Server() as made:
        yield made


async def advancing(worker: memory_worker.Worker, served: memory_worker.Served) -> Outcome:
    """The outcome, while time passes a second at each look."""

    async def over() -> bool:
        worker.time.advance(1)
        return served.task.done()

    await eventually(over, "it is done", every_s=0.005)
    return await served.outcome()


async def test_a_refused_request_waits_without_a_slot_and_is_no_failed_attempt(
    server: openai_server.Server,
) -> None:
    async with worker_on(server) as worker:
        server.refusals = [Refusal(429, {"retry-after": "0.05"}) for _ in range(5)]
        job = worker.serve(new_request(worker.memory, "say 3", sampling=SAMPLING))
        await eventually(lambda: job.serving.response.engine_busy, "it waits", every_s=0.002)
        assert worker.context.engine_slots.running == 0
        assert worker.context.engine_slots not in job.serving.response.held_slots

        assert await advancing(worker, job) is Outcome.DONE

        response = answer(worker.memory, job.serving.response.rid)
        assert (response.text, response.ended.status) == ("wörd0 wörd1 wörd2 ", "completed")
        assert len(server.requests) == 6
        assert job.serving.response.engine_failures == 0
        assert not worker.engine.dead.is_set()
        assert response.fold.ignored == {}


async def test_a_server_that_stays_busy_ends_the_response_with_the_apis_code(
    server: openai_server.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(response_state, "MAX_BUSY", 2)
    async with worker_on(server) as worker:
        server.refusals = [Refusal(429, {"retry-after": "0.01"}) for _ in range(9)]
        job = worker.serve(new_request(worker.memory, "say 3", sampling=SAMPLING))
        assert await advancing(worker, job) is Outcome.DONE
        ended = answer(worker.memory, job.serving.response.rid).ended
        assert ended.error == ("rate_limit_exceeded", "The model's server has too many requests.")
        assert len(server.requests) == 3


async def test_a_pause_beyond_the_deadline_is_not_waited_for(server: openai_server.Server) -> None:
    async with worker_on(server) as worker:
        server.refusals = [Refusal(429, {"retry-after": "11"})]
        request = new_request(worker.memory, "say 3", sampling=SAMPLING, ttl_ms=10_000)
        job = worker.serve(request)
        assert await job.outcome() is Outcome.DONE
        ended = answer(worker.memory, request.rid).ended
        assert ended.error is not None
        assert ended.error[0] == "rate_limit_exceeded"


async def test_a_cancel_ends_the_wait(server: openai_server.Server) -> None:
    async with worker_on(server) as worker:
        server.refusals = [Refusal(503, {"retry-after": "60"})]
        request = new_request(worker.memory, "say 3", sampling=SAMPLING)
        job = worker.serve(request)
        await eventually(lambda: job.serving.response.engine_busy, "it waits", every_s=0.002)
        Foreign(worker.memory, request).cancel()
        assert await job.outcome() is Outcome.DONE


async def test_a_draining_worker_yields_what_waits(server: openai_server.Server) -> None:
    async with worker_on(server) as worker:
        server.refusals = [Refusal(503, {"retry-after": "60"})]
        request = new_request(worker.memory, "say 3", sampling=SAMPLING)
        job = worker.serve(request)
        await eventually(lambda: job.serving.response.engine_busy, "it waits", every_s=0.002)
        worker.context.draining = True
        job.serving.interrupt(Stop.DRAIN)
        assert await job.outcome() is Outcome.LEFT
        assert answer(worker.memory, request.rid).kinds == ["Claim", "Yield"]


async def test_while_the_server_is_left_alone_no_other_request_is_claimed(
    server: openai_server.Server,
) -> None:
    async with worker_on(server) as worker:
        server.refusals = [Refusal(429, {"retry-after": "30"})]
        worker.serve(new_request(worker.memory, "say 3", sampling=SAMPLING))
        await eventually(lambda: worker.context.engine_slots.bound == 0, "it is closed")
        other = new_request(worker.memory, "say 3", sampling=SAMPLING)
        worker.serve(other)
        await eventually(lambda: worker.context.engine_slots.queued == 1, "it queues")
        assert answer(worker.memory, other.rid).kinds == []


@pytest.mark.parametrize("cue", ["cut 9", "garbage 9", "error 9"])
async def test_an_answer_whose_stream_breaks_is_continued_by_its_text(
    server: openai_server.Server, monkeypatch: pytest.MonkeyPatch, cue: str
) -> None:
    monkeypatch.setattr(response_state, "RETRY_S", 0.0)
    server.continues = True
    async with worker_on(server) as worker:
        request = new_request(worker.memory, cue, sampling=SAMPLING)
        assert await worker.serve(request).outcome() is Outcome.DONE
        response = answer(worker.memory, request.rid)
        assert response.text == "".join(f"wörd{i} " for i in range(9))
        assert response.ended.status == "completed"
        assert response.fold.ignored == {}
        assert [m["role"] for m in server.requests[1]["messages"]] == ["user", "assistant"]


async def test_an_answer_whose_server_hangs_is_continued_by_its_text(
    server: openai_server.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt, "STALL_CHECK_S", 0.005)
    monkeypatch.setattr(attempt, "STOOD_STILL_S", 1e9)
    server.continues, server.hangs = True, 1
    async with worker_on(server) as worker:
        request = new_request(worker.memory, "say 9", sampling=SAMPLING)
        assert await advancing(worker, worker.serve(request)) is Outcome.DONE
        response = answer(worker.memory, request.rid)
        assert response.text == "".join(f"wörd{i} " for i in range(9))
        assert server.closed_early == 1


async def test_a_stop_string_across_the_takeover_is_found(
    server: openai_server.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The text that was withheld for it is in the log as ids, and so is continued too."""
    monkeypatch.setattr(response_state, "RETRY_S", 0.0)
    server.continues = True
    async with worker_on(server) as worker:
        server.cut_after = 3
        stop = records.Sampling(100, stop=("wörd2 wörd3",))
        request = new_request(worker.memory, "say 9", sampling=stop)
        assert await worker.serve(request).outcome() is Outcome.DONE
        response = answer(worker.memory, request.rid)
        assert (response.text, response.ended.status) == ("wörd0 wörd1 ", "completed")
        assert server.requests[1]["messages"][-1]["content"] == "wörd0 wörd1 wörd2"


async def test_another_worker_continues_the_text_of_a_lost_one(
    server: openai_server.Server,
) -> None:
    server.continues = True
    async with worker_on(server) as worker:
        request = new_request(worker.memory, "slow 40", sampling=SAMPLING)
        first = worker.serve(request)
        await eventually(
            lambda: answer(worker.memory, request.rid).fold.next >= 20, "text", every_s=0.005
        )
        first.task.cancel()
        await asyncio.wait((first.task,))
        worker.time.advance(10)
        worker.context.incarnation = "next/1"
        assert await worker.serve(request).outcome() is Outcome.DONE
        response = answer(worker.memory, request.rid)
        assert response.text == "".join(f"wörd{i} " for i in range(40))
        assert [claim.worker for claim in response.claims] == ["this/1", "next/1"]


async def test_calls_of_the_server_are_items_in_the_log(server: openai_server.Server) -> None:
    server.tools = True
    tool = {"type": "function", "function": {"name": "weather", "parameters": {}}}
    async with worker_on(server) as worker:
        request = new_request(worker.memory, "call 1", sampling=SAMPLING, tools=[tool])
        assert await worker.serve(request).outcome() is Outcome.DONE
        response = answer(worker.memory, request.rid)
        assert response.text == 'wörd0 {"city": "Paris"}{"city": "Rome"}'
        marks = [mark for r in response.records if isinstance(r, records.Tok) for mark in r.marks]
        assert [(mark.kind, mark.name) for mark in marks] == [("c", "weather"), ("c", "weather")]
        assert (response.ended.status, response.claims[0].parser) == ("completed", "openai@1")


async def test_characters_are_not_counted_as_tokens(server: openai_server.Server) -> None:
    """Symptom: the rate of a worker whose engine is at a URL was told four times too high, and so
    the wait at it four times too short."""
    async with worker_on(server) as worker:
        request = new_request(worker.memory, "say 8", sampling=SAMPLING)
        assert await worker.serve(request).outcome() is Outcome.DONE
        assert worker.context.stall_detector.tokens == len("wörd0 " * 8) // 4


@pytest.mark.parametrize(
    ("asked", "bound", "text", "status", "made", "error"),
    [
        ("say 4", 50, "wörd0 wörd1 wörd2 wörd3 ", "completed", 4, ""),
        ("say 40", 2, "wörd0 wörd1 ", "incomplete", 2, ""),
        ("no usage 6", 50, None, "completed", 6, ""),
        ("status 400", 50, "", "failed", 0, "engine_refused"),
        ("cut 9", 50, "wörd0 wörd1 wörd2 ", "failed", None, "not_resumable"),
    ],
    ids=["text and usage", "the bound", "counted by chunks", "a refusal", "cut off"],
)
async def test_what_a_server_says_once_reaches_the_log(
    server: openai_server.Server,
    asked: str,
    bound: int,
    text: str | None,
    status: str,
    made: int | None,
    error: str,
) -> None:
    """This server continues no text, and the bound is none on a number of characters."""
    async with worker_on(server) as worker:
        request = new_request(worker.memory, asked, sampling=records.Sampling(bound))
        assert await worker.serve(request).outcome() is Outcome.DONE
        response = answer(worker.memory, request.rid)
        assert response.ended.status == status
        assert text is None or response.text == text
        assert made is None or response.ended.usage.output_tokens == made
        assert (response.ended.error or ("",))[0] == error
        assert len(server.requests) == 1


async def test_a_cancel_closes_the_stream_to_the_server(server: openai_server.Server) -> None:
    async with worker_on(server) as worker:
        request = new_request(worker.memory, "slow 5000", sampling=SAMPLING)
        job = worker.serve(request)
        await eventually(lambda: answer(worker.memory, request.rid).fold.next, "it has begun")
        Foreign(worker.memory, request).cancel()
        assert await job.outcome() is Outcome.DONE
        await eventually(lambda: server.closed_early == 1, "the stream is closed")
