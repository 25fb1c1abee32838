"""Forks on real vLLM: a worker's serving on a log in memory, with the engine of production.

Collected in the engine environment (tests/contract/test_engine_environment.py).
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from typing import Any

import jsonschema
import msgspec
import pytest
import pytest_asyncio
import tokenizers

from tailrace.protocol import ids, records
from tailrace.store.answers import Answers
from tests.support import cuts, memory_worker, schemas
from tests.support.memory_log import MemoryLog
from tests.support.memory_redis import MemoryRedis
from tests.support.memory_worker import answer, new_request
from tests.support.model_engines import CAPACITY, REAL, TOY, Model, cases
from worker.engines import base, vllm
from worker.serving import fork_sources
from worker.serving.cached_answers import CachedAnswers
from worker.serving.outcome import Outcome

pytestmark = [
    pytest.mark.engine,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(900),
]
WORD = " apples"
QUESTION = "There are apples, pears, plums and figs. " * 24 + "Name three fruits in one sentence."


@pytest.fixture
def engine(model: Model) -> vllm.VLLM:
    return model.engine


@pytest_asyncio.fixture(loop_scope="session")
async def worker(engine: vllm.VLLM) -> AsyncIterator[memory_worker.Worker]:
    async with memory_worker.worker(engine=engine, capacity=CAPACITY) as made:
        yield made


def ask(memory: MemoryLog, text: str, max_tokens: int, **more: Any) -> records.Request:
    sampling = records.Sampling(max_tokens, temperature=0.0, **more.pop("sampling", {}))
    return new_request(memory, text, sampling=sampling, **more)


def forked(
    source: records.Request, memory: MemoryLog, at: int, replace: str = "", new: int = 12
) -> records.Request:
    rid = new_request(memory).rid
    return msgspec.structs.replace(
        source,
        rid=rid,
        echo={**source.echo, "id": rid},
        sampling=msgspec.structs.replace(source.sampling, max_tokens=new),
        fork=records.Fork(source.rid, at, replace),
    )


AT_ONCE: dict[str, Any] = {"reasoning": {"effort": "none"}}
SCHEMA = schemas.SCHEMAS["two members"]


def under_a_grammar(kind: str) -> dict[str, Any]:
    parameters: dict[str, Any] = {
        "type": "object",
        "properties": {"zone": {"enum": ["UTC", "CET"]}},
    }
    parameters |= {"required": ["zone"], "additionalProperties": False}
    function = {"name": "now", "description": "d", "parameters": parameters, "strict": True}
    if kind == "format":
        return {"format": {"type": "json_schema", "schema": SCHEMA}, **AT_ONCE}
    return {
        **AT_ONCE,
        "tools": [{"type": "function", "function": function}],
        "tool_choice": records.ToolChoice("required"),
        "parallel_tool_calls": False,
    }


def called(found: memory_worker.Answer) -> list[str]:
    written = [r for r in found.records if isinstance(r, records.Tok | records.End)]
    return [m.call_id for r in written for m in r.marks if m.call_id]


async def done(worker: memory_worker.Worker, request: records.Request) -> memory_worker.Answer:
    assert await worker.serve(request).outcome(300) is Outcome.DONE
    return answer(worker.memory, request.rid)


async def afresh(
    engine: vllm.VLLM, request: records.Request, begin: list[int]
) -> tuple[list[int], int]:
    """What the engine says to the prompt and these ids, asked as a prompt; cached tokens."""
    found: list[int] = []
    cached = [0]

    def keep(step: base.Step) -> bool:
        found.extend(step.ids)
        cached[0] = max(cached[0], step.cached_tokens or 0)
        return True

    prompt = [*await engine.encode(request), *begin]
    job = base.GenerationInput(
        request, os.urandom(16).hex(), prompt, [], request.sampling.max_tokens
    )
    await engine.generate(job, keep)
    return found, cached[0]


@pytest.mark.parametrize("model", cases(REAL), indirect=True)
@pytest.mark.parametrize("everywhere", cuts.SOME_OR_ALL)
async def test_a_fork_at_every_token_says_what_the_same_prompt_would(
    engine: vllm.VLLM, worker: memory_worker.Worker, everywhere: bool
) -> None:
    source = ask(worker.memory, QUESTION, 24)
    theirs = (await done(worker, source)).fold.ids
    word = await engine.token_ids(WORD)

    async def one(at: int, replace: str) -> tuple[int, str, int, int]:
        fork = forked(source, worker.memory, at, replace)
        begin = fork_sources.without_end(theirs[:at], engine.stop_ids)
        begin += word if replace else []
        found = await done(worker, fork)
        expected, cached = await afresh(engine, fork, begin)
        assert found.fold.ids == [*begin, *expected], (at, replace)
        detokenizer = engine.detokenizer()
        whole = detokenizer.push(found.fold.ids) + detokenizer.flush()
        assert found.text == whole
        assert found.ended.usage.output_tokens == len(expected)
        assert found.ended.usage.input_tokens == found.claims[0].prompt_tokens
        return at, replace, found.ended.usage.cached_tokens, cached

    cut = cuts.places(0, len(theirs) + 1, everywhere=everywhere)
    places = [(at, w) for at in cut for w in ("", WORD)]
    rows = await asyncio.gather(*[one(*place) for place in places])
    for at, replace, cached, fresh in rows:
        print(f"at {at:3d} {replace!r:10} cached {cached:4d}; asked afresh {fresh:4d}")
    # Whole blocks of 128 tokens are cached.
    assert all(cached >= 256 for _, _, cached, _ in rows), "the prefix is in the cache"


@pytest.mark.parametrize("model", cases(TOY), indirect=True)
@pytest.mark.parametrize("everywhere", cuts.SOME_OR_ALL)
@pytest.mark.parametrize("kind", ["format", "call"])
async def test_an_answer_under_a_grammar_is_forked_anywhere(
    worker: memory_worker.Worker, kind: str, everywhere: bool
) -> None:
    source = ask(worker.memory, "Say it.", 120, **under_a_grammar(kind))
    whole = await done(worker, source)
    assert whole.ended.reason == "stop", whole.text
    places = cuts.places(0, whole.fold.next + 1, everywhere=everywhere)
    forks = [forked(source, worker.memory, at, new=120) for at in places]
    for fork, found in zip(
        forks, await asyncio.gather(*[done(worker, f) for f in forks]), strict=True
    ):
        assert found.ended.reason == "stop", found.ended
        assert found.fold.ids == whole.fold.ids
        assert found.text == whole.text
        assert called(found) == ([ids.call_id(fork.rid, 0)] if kind == "call" else [])
        if kind == "format":
            jsonschema.validate(json.loads(found.text), SCHEMA)


@pytest.mark.parametrize("model", cases(TOY), indirect=True)
async def test_an_answer_is_given_again_by_its_ids(
    engine: vllm.VLLM, worker: memory_worker.Worker
) -> None:
    store = Answers(MemoryRedis())
    worker.context.answers = CachedAnswers(store, memory_worker.POOL, lambda: 60.0)
    first, second = (
        ask(worker.memory, "Say it.", 120, **under_a_grammar("call")) for _ in range(2)
    )
    expected = await done(worker, first)
    await worker.context.answers.stop()
    found = await done(worker, second)
    assert (expected.fold.answer_of, found.fold.answer_of) == ("", first.rid)
    assert (found.fold.ids, found.text) == (expected.fold.ids, expected.text)
    assert found.ended.usage.output_tokens == expected.ended.usage.output_tokens
    assert found.ended.usage.input_tokens == expected.ended.usage.input_tokens
    assert called(found) == [ids.call_id(second.rid, 0)]


@pytest.mark.parametrize("model", cases(TOY), indirect=True)
async def test_the_least_number_of_tokens_is_of_new_ones(
    engine: vllm.VLLM, worker: memory_worker.Worker
) -> None:
    source = ask(worker.memory, "Say it.", 10)
    await done(worker, source)
    fork = forked(source, worker.memory, 6)
    [end] = sorted(engine.stop_ids)[:1]
    wants_to_end = {"logit_bias": {str(end): 100.0}, "min_tokens": 4}
    sampling = msgspec.structs.replace(fork.sampling, **wants_to_end)
    found = await done(worker, msgspec.structs.replace(fork, sampling=sampling))
    assert (found.fold.next, found.fold.ids[-1]) == (6 + 4 + 1, end)


@pytest.mark.parametrize("model", cases(TOY), indirect=True)
async def test_a_replaced_text_that_no_grammar_takes_fails_the_fork(
    model: Model, worker: memory_worker.Worker
) -> None:
    source = ask(
        worker.memory, "Say it.", 20, format={"type": "regex", "pattern": "[0-9]{8}"}, **AT_ONCE
    )
    await done(worker, source)
    found = await done(worker, forked(source, worker.memory, 2, "abc"))
    assert found.ended.error == fork_sources.NOT_CONTINUED
    tokenizer = tokenizers.Tokenizer.from_file(str(model.folder / "tokenizer.json"))
    end = tokenizer.decode([min(model.engine.stop_ids)], skip_special_tokens=False)
    found = await done(worker, forked(source, worker.memory, 2, end))
    assert found.ended.error is not None
    assert "ends answers" in found.ended.error[1]
    digits = await done(worker, forked(source, worker.memory, 2, "77"))
    assert digits.ended.reason == "stop"
    assert digits.text[2:].startswith("77")
    assert len(digits.text) == 8
