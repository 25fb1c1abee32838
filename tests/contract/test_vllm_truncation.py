"""Prompts that are too long, and those that end with a text to be continued, on real vLLM: a
worker's serving on a log in memory, with the real engine.

Collected in the engine environment (tests/contract/test_engine_environment.py).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from tailrace.protocol import records, truncation
from tests.support import memory_worker
from tests.support.memory_log import MemoryLog
from tests.support.memory_worker import Foreign, answer, new_request
from tests.support.model_engines import CAPACITY, LENGTH, REAL, TOY, Model, cases
from worker.engines import base, vllm
from worker.serving import truncation as worker_truncation
from worker.serving.outcome import Outcome

pytestmark = [
    pytest.mark.engine,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(900),
]
NEW = 24  # tokens
TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Looks something up.",
        "parameters": {"type": "object", "properties": {"what": {"type": "string"}}},
    },
}


@pytest.fixture
def engine(model: Model) -> vllm.VLLM:
    return model.engine


@pytest_asyncio.fixture(loop_scope="session")
async def worker(engine: vllm.VLLM) -> AsyncIterator[memory_worker.Worker]:
    async with memory_worker.worker(engine=engine, capacity=CAPACITY) as made:
        yield made


def chat(turns: int) -> list[dict[str, Any]]:
    said: list[dict[str, Any]] = [{"role": "system", "content": "You are brief."}]
    for n in range(turns):
        said.append({"role": "user", "content": f"Name fruit number {n}, 果物 🍎, please."})
        said.append({"role": "assistant", "content": f"Fruit number {n} is an apple. " * 2})
    return [*said, {"role": "user", "content": "Which fruit did you name last?"}]


def work(rounds: int) -> list[dict[str, Any]]:
    """One question, and many calls for it."""
    said: list[dict[str, Any]] = [{"role": "user", "content": "Look the fruits up."}]
    for n in range(rounds):
        function = {"name": "look", "arguments": f'{{"what": "fruit {n}"}}'}
        call = {"id": f"call_{n}", "type": "function", "function": function}
        said.append({"role": "assistant", "content": "", "tool_calls": [call]})
        said.append({"role": "tool", "tool_call_id": f"call_{n}", "content": f"apple {n}"})
    return said


def ask(memory: MemoryLog, messages: list[dict[str, Any]], **more: Any) -> records.Request:
    sampling = records.Sampling(NEW, temperature=0.0, ignore_eos=True)
    return new_request(memory, messages=messages, sampling=sampling, truncate=True, **more)


async def done(worker: memory_worker.Worker, request: records.Request) -> memory_worker.Answer:
    assert await worker.serve(request).outcome(300) is Outcome.DONE
    return answer(worker.memory, request.rid)


async def length(engine: vllm.VLLM, request: records.Request, dropped: int) -> int:
    try:
        return len(await engine.encode(worker_truncation.without_dropped(request, dropped)))
    except base.Refused:
        return LENGTH


@pytest.mark.parametrize("model", cases(TOY), indirect=True)
@pytest.mark.parametrize("turns", [0, 16, 70, 200])
async def test_the_answer_is_that_to_the_rest_of_the_conversation(
    engine: vllm.VLLM, worker: memory_worker.Worker, turns: int
) -> None:
    request = ask(worker.memory, chat(turns))
    found = await done(worker, request)
    counts = truncation.counts(request.messages)
    at = counts.index(found.fold.dropped)
    print(f"{turns} turns: {found.fold.dropped} messages left out")
    assert bool(at) == (turns >= 70)
    assert await length(engine, request, counts[at]) + NEW <= LENGTH
    assert not at or await length(engine, request, counts[at - 1]) + NEW > LENGTH

    rest = truncation.without_dropped(request.messages, found.fold.dropped)
    assert rest[0] == request.messages[0]
    assert rest[-1] == request.messages[-1]
    plain = msgspec.structs.replace(ask(worker.memory, rest), truncate=False)
    expected = await done(worker, plain)
    assert found.fold.ids == expected.fold.ids
    assert found.ended.usage.input_tokens == expected.ended.usage.input_tokens
    assert found.ended.usage.output_tokens == NEW


@pytest.mark.parametrize("model", cases(TOY), indirect=True)
async def test_calls_go_with_their_outputs(engine: vllm.VLLM, worker: memory_worker.Worker) -> None:
    request = ask(worker.memory, work(100), tools=[TOOL])
    found = await done(worker, request)
    dropped = found.fold.dropped
    assert 0 < dropped < 200
    assert dropped % 2 == 0
    rest = [request.messages[0], *request.messages[1 + dropped :]]
    plain = msgspec.structs.replace(ask(worker.memory, rest, tools=[TOOL]), truncate=False)
    assert found.fold.ids == (await done(worker, plain)).fold.ids


@pytest.mark.nightly
@pytest.mark.parametrize("model", cases(REAL), indirect=True)
@pytest.mark.parametrize("cut", [0, 1, 10])
async def test_a_takeover_continues_the_same_prompt(
    engine: vllm.VLLM, worker: memory_worker.Worker, cut: int
) -> None:
    """On the model without parsers: what the former worker wrote is text and has no marks."""
    whole = await done(worker, ask(worker.memory, chat(100)))
    # Another worker would have left out two messages more.
    request = ask(worker.memory, chat(100))
    dropped = whole.fold.dropped + 2
    plain = ask(worker.memory, truncation.without_dropped(request.messages, dropped))
    uninterrupted = await done(worker, plain)
    expected = uninterrupted.fold.ids
    model = (engine.model_rev, engine.tokenizer_digest)
    parser = engine.parser_name(request)
    other = Foreign(worker.memory, request)
    claim = records.Claim(
        *(request.rid, "a", None, request.owner, other.name, memory_worker.REQUESTS, 0),
        *model,
        echo=request.echo,
        parser=parser,
        dropped=dropped,
    )
    other.write(claim)
    if cut:
        detokenizer = engine.detokenizer()
        text = detokenizer.push(expected[:cut])
        other.write(records.Tok(request.rid, "a", 0, expected[:cut], text, "0" * 16))
    await worker.caught_up()
    served = worker.serve(request)
    worker.time.advance(90)
    assert await served.outcome(300) is Outcome.DONE
    found = answer(worker.memory, request.rid)
    assert found.fold.epoch == 2
    assert (found.fold.ids, found.text) == (expected, uninterrupted.text)
    assert found.fold.dropped == dropped


@pytest.mark.nightly
@pytest.mark.parametrize("model", cases(REAL), indirect=True)
async def test_a_text_that_is_continued_goes_on_as_the_whole_answer(
    engine: vllm.VLLM, worker: memory_worker.Worker
) -> None:
    """Where the text has the tokens again that it was made with; only then it must."""
    assert "continuation" in engine.features
    whole = await done(worker, ask(worker.memory, chat(3)))
    prompt = await engine.encode(ask(worker.memory, chat(3)))
    same = []
    for bound in (1, 6, 11, 17, NEW - 1):
        detokenizer = engine.detokenizer()
        said = detokenizer.push(whole.fold.ids[:bound])
        begun = [*chat(3), {"role": "assistant", "content": said}]
        request = ask(worker.memory, begun, continue_final=True)
        made = await engine.encode(request)
        assert made[: len(prompt)] == prompt
        rest = await done(worker, request)
        assert rest.ended.usage.input_tokens == len(made)
        if made == [*prompt, *whole.fold.ids[:bound]]:
            same.append(bound)
            assert rest.fold.ids[: NEW - bound] == whole.fold.ids[bound:]
            assert (said + rest.text).startswith(whole.text.rstrip("\ufffd"))
    print(f"cut at {same}: the same tokens, and the same answer")
    assert len(same) >= 3


@pytest.mark.parametrize("model", cases(TOY), indirect=True)
async def test_what_must_stay_may_be_too_long(
    engine: vllm.VLLM, worker: memory_worker.Worker
) -> None:
    said = chat(3)
    said[0]["content"] = "Never name a pear. " * 800
    found = await done(worker, ask(worker.memory, said))
    assert found.ended.error is not None
    assert found.ended.error[0] == "context_length_exceeded"
