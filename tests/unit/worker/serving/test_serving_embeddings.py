"""Serving requests for embeddings, on the in-memory log."""

from __future__ import annotations

import math
import struct
from typing import Any

import pytest

from tailrace.protocol import events, fold, records
from tests.support import cases, memory_worker
from tests.support.memory_log import MemoryLog
from tests.support.memory_worker import MODEL, Foreign, answer, new_request
from tests.support.waiting import eventually
from tests.unit.worker.serving import test_response_task
from tests.unit.worker.serving.test_response_task import dead_letters, metered
from worker.engines import base, scripted, scripted_embeddings
from worker.serving.attempt import Stop
from worker.serving.outcome import Outcome
from worker.text import generation, visible

looks_often = test_response_task.looks_often
INPUTS: list[str | list[int]] = ["hello, world", [1, 2, 3], "🦊"]


def asking(
    memory: MemoryLog, inputs: list[str | list[int]] = INPUTS, pace_ms: int = 0, **more: Any
) -> records.Request:
    embed = records.Embed(inputs, **{k: more.pop(k) for k in ("dimensions", "first") if k in more})
    request = new_request(memory, messages=[], sampling=records.Sampling(0), embed=embed)
    metadata = {"script_pace_ms": str(pace_ms), **more}
    request.echo.update(events.embeddings_echo(request.rid, 1, MODEL, metadata))
    return request


def vectors_of(
    inputs: list[str | list[int]] = INPUTS, dimensions: int | None = None
) -> tuple[bytes, ...]:
    ids = scripted_embeddings.encode(records.Embed(inputs, dimensions), 8192)
    return tuple(scripted_embeddings.vector(each, dimensions) for each in ids)


@pytest.mark.parametrize("dimensions", [None, 5])
async def test_the_end_has_the_vectors_and_the_tokens_that_were_read(
    dimensions: int | None,
) -> None:
    async with memory_worker.worker() as worker:
        request = asking(worker.memory, dimensions=dimensions)
        assert await worker.serve(request).outcome() is Outcome.DONE
        response = answer(worker.memory, request.rid)
        assert response.kinds == ["Claim", "End"]
        assert response.ended.vectors == vectors_of(dimensions=dimensions)
        assert response.ended.status == "completed"
        assert response.ended.usage == records.Usage(input_tokens=3 + 3 + 1)
        assert response.claims[0].prompt_tokens == 7
        (bill,) = metered(worker.memory)
        assert (bill.usage, bill.status) == (response.ended.usage, "completed")
        assert bill.prompt_digest == request.prompt_digest


async def test_a_takeover_computes_again_and_the_lost_worker_s_end_does_not_count() -> None:
    async with memory_worker.worker() as worker:
        request = asking(worker.memory)
        other = Foreign(worker.memory, request)
        other.claim("a")
        await worker.caught_up()
        job = worker.serve(request)
        worker.time.advance(3)
        await eventually(
            lambda: answer(worker.memory, request.rid).fold.epoch == 2, "claimed", every_s=0.001
        )
        other.write(records.End(request.rid, "a", 0, "stop", fold.H0, vectors=(b"\1\1\1\1",) * 3))
        assert await job.outcome() is Outcome.DONE
        response = answer(worker.memory, request.rid)
        assert response.ended.vectors == vectors_of()


async def test_the_first_valid_end_wins() -> None:
    async with memory_worker.worker() as worker:
        request = asking(worker.memory, pace_ms=200)
        job = worker.serve(request)
        await eventually(
            lambda: answer(worker.memory, request.rid).fold.epoch == 1, "claimed", every_s=0.001
        )
        own = answer(worker.memory, request.rid).claims[0].own
        first = (b"\1\1\1\1",) * 3
        Foreign(worker.memory, request).write(
            records.End(request.rid, own, 0, "stop", fold.H0, vectors=first)
        )
        assert await job.outcome() is Outcome.DONE
        assert answer(worker.memory, request.rid).ended.vectors == first


async def test_a_cancel_stops_the_engine_and_ends_it_without_vectors() -> None:
    async with memory_worker.worker() as worker:
        request = asking(worker.memory, pace_ms=60_000)
        job = worker.serve(request)
        await eventually(lambda: worker.engine.running == 1, "it runs", every_s=0.001)
        Foreign(worker.memory, request).cancel()
        assert await job.outcome() is Outcome.DONE
        await eventually(lambda: worker.engine.running == 0, "it stopped", every_s=0.001)
        response = answer(worker.memory, request.rid)
        assert (response.ended.status, response.ended.vectors) == ("cancelled", ())
        assert response.ended.usage.input_tokens == 7


async def test_a_drained_worker_gives_it_to_another() -> None:
    async with memory_worker.worker() as worker:
        request = asking(worker.memory, pace_ms=5)
        job = worker.serve(request)
        await eventually(lambda: worker.engine.running == 1, "it runs", every_s=0.001)
        job.serving.interrupt(Stop.DRAIN)
        assert await job.outcome() is Outcome.DONE
        response = answer(worker.memory, request.rid)
        assert response.kinds == ["Claim", "Yield", "Claim", "End"]
        assert response.ended.vectors == vectors_of()


async def test_an_expired_request_is_not_embedded() -> None:
    async with memory_worker.worker() as worker:
        request = asking(worker.memory)
        delivery = worker.deliver(request)
        worker.time.advance(601)
        assert await worker.serve(request, delivery).outcome() is Outcome.DONE
        response = answer(worker.memory, request.rid)
        assert (response.ended.reason, response.ended.vectors) == ("expired", ())


@cases.each(
    ("more", "code", "says"),
    [
        ({"inputs": ["a", [1] * 9000], "first": 64}, "context_length_exceeded", "input[65]"),
        ({"inputs": ["a", []]}, "invalid_prompt", "input[1]"),
        ({"dimensions": 33}, "invalid_value", "dimensions"),
    ],
)
async def test_what_cannot_be_embedded_fails_by_name(
    more: dict[str, Any], code: str, says: str
) -> None:
    async with memory_worker.worker() as worker:
        request = asking(worker.memory, **more)
        assert await worker.serve(request).outcome() is Outcome.DONE
        response = answer(worker.memory, request.rid)
        assert response.ended.error is not None
        assert response.ended.error[0] == code
        assert says in response.ended.error[1]
        assert not dead_letters(worker.memory)


async def test_attempts_that_fail_in_the_engine_end_in_one_dead_letter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("worker.serving.response_state.RETRY_S", 0.001)
    async with memory_worker.worker() as worker:
        request = asking(worker.memory, script_fault="error", script_fault_at="1")
        assert await worker.serve(request).outcome() is Outcome.DONE
        response = answer(worker.memory, request.rid)
        assert (response.ended.status, response.ended.vectors) == ("failed", ())
        (letter,) = dead_letters(worker.memory)
        assert letter.prompt_digest == request.prompt_digest


@pytest.mark.parametrize(
    ("features", "more", "field"),
    [
        (frozenset(), {}, "model"),
        (frozenset({"embeddings"}), {"dimensions": 4}, "dimensions"),
    ],
)
async def test_an_engine_that_cannot_refuses(
    features: frozenset[Any], more: dict[str, Any], field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scripted.Scripted, "features", features)
    async with memory_worker.worker() as worker:
        request = asking(worker.memory, **more)
        assert await worker.serve(request).outcome() is Outcome.DONE
        response = answer(worker.memory, request.rid)
        assert response.ended.error is not None
        assert response.ended.error[0] == "unsupported_parameter"
        assert f"`{field}`" in response.ended.error[1]


async def test_an_engine_that_only_embeds_generates_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scripted.Scripted, "features", frozenset({"embeddings"}))
    async with memory_worker.worker() as worker:
        request = new_request(worker.memory)
        assert await worker.serve(request).outcome() is Outcome.DONE
        response = answer(worker.memory, request.rid)
        assert response.kinds == ["Claim", "End"]
        assert response.ended.error is not None
        assert "generates no text" in response.ended.error[1]


def test_an_engine_that_gives_too_few_vectors_is_not_believed() -> None:
    attempt = generation.Generation(
        rid="r", fencing_token="n", view=visible.Nothing(), max_tokens=0, vectors=2
    )
    attempt.push((), None, vectors=(b"1234",))
    with pytest.raises(generation.BadOutput):
        attempt.push((), "stop")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_vector_without_a_direction_is_not_believed(value: float) -> None:
    """A client would have got null, which no SDK expects, and a vector store a row that no search
    finds."""
    attempt = generation.Generation(
        rid="r", fencing_token="n", view=visible.Nothing(), max_tokens=0, vectors=2
    )
    attempt.push((), None, vectors=(struct.pack("<2f", 3e38, 3e38),))
    with pytest.raises(generation.BadOutput):
        attempt.push((), "stop", vectors=(struct.pack("<2f", 1.0, value),))


def test_vectors_of_an_attempt_that_failed_are_not_written() -> None:
    attempt = generation.Generation(
        rid="r", fencing_token="n", view=visible.Nothing(), max_tokens=0, vectors=2
    )
    attempt.push((), None, vectors=(b"1234",))
    attempt.close("failed")
    assert attempt.end(records.Usage()).vectors == ()


def test_so_many_vectors_as_fit_into_a_record() -> None:
    base.check_vectors(32, 5_600)
    with pytest.raises(base.Refused, match="too large"):
        base.check_vectors(32, 6_000)
    vector = b"\xff" * 5_600 * 4
    end = records.End("r" * 60, "n" * 32, 0, "stop", fold.H0, vectors=(vector,) * 32)
    assert len(records.encode(end)) < records.MAX_RECORD_BYTES - 65_536
