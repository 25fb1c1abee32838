"""Workers whose engine is vLLM's own server, on a real Kafka: what it offers, and whose death it
outlives."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from tailrace.protocol import records
from tests.support import vllm_server, workers
from worker.engines import base, openai, openai_credentials

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.engine,
    pytest.mark.nightly,
    pytest.mark.timeout(500),
]
GREEDY = records.Sampling(60, temperature=0.0)
QUESTION = "Tell a story about the sea."
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Paris"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def url(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    async with vllm_server.server(tmp_path_factory.mktemp("vllm")) as made:
        yield made


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.write_text(f"{vllm_server.KEY}\n")
    return path


@pytest_asyncio.fixture(loop_scope="module")
async def engine(url: str, key_file: Path) -> AsyncIterator[openai.OpenAI]:
    made = openai.OpenAI(
        url=url,
        model=vllm_server.MODEL,
        capacity=8,
        credentials=openai_credentials.KeyFile(key_file),
    )
    await made.start()
    yield made
    await made.shutdown()


async def told(engine: base.Engine, request: records.Request, so_far: str = "") -> base.Step:
    """The answer in one step."""
    ids: list[int] = []
    steps: list[base.Step] = []

    def on_step(step: base.Step) -> bool:
        ids.extend(step.ids)
        steps.append(step)
        return True

    before = [ord(c) for c in so_far]
    await engine.generate(
        base.GenerationInput(request, os.urandom(8).hex(), [], before, request.sampling.max_tokens),
        on_step,
    )
    return base.Step(ids, steps[-1].finish, usage=steps[-1].usage)


def ask(text: str, **more: Any) -> records.Request:
    messages = [{"role": "user", "content": text}]
    return records.Request("resp_x", records.Owner("i", "s"), "m", messages, GREEDY, {}, **more)


async def test_vllm_offers_what_the_canaries_ask_for_and_continues_its_own_text(
    engine: openai.OpenAI,
) -> None:
    assert engine.features == {"images", "formats", "tools", "continuation"}
    whole = await told(engine, ask(QUESTION))
    text = "".join(map(chr, whole.ids))
    assert whole.usage is not None
    assert whole.usage.output_tokens == 60
    # Up to the end of a word the text has the tokens that the model made.
    words = [at for at, character in enumerate(text) if character == " "]
    for cut in (words[0], words[len(words) // 2], words[-1]):
        rest = await told(engine, ask(QUESTION), text[:cut])
        assert text[:cut] + "".join(map(chr, rest.ids)) == text
        assert (rest.finish, rest.usage) == (whole.finish, whole.usage)
    # A request may ask for the same.
    begun = ask(QUESTION)
    begun.messages.append({"role": "assistant", "content": text[: words[-1]]})
    rest = await told(engine, msgspec.structs.replace(begun, continue_final=True))
    assert (text[: words[-1]] + "".join(map(chr, rest.ids))).startswith(text)
    assert rest.usage is not None
    assert rest.usage.input_tokens > whole.usage.input_tokens


async def test_vllm_makes_calls_and_formats(engine: openai.OpenAI) -> None:
    choice = records.ToolChoice("required", ("weather",))
    request = ask("What is the weather in Paris?", tools=[TOOL], tool_choice=choice)
    parser = await engine.item_parser(request, [])
    pieces = [p for i in (await told(engine, request)).ids for p in parser.push(i)]
    assert [(p.kind, p.name) for p in pieces if p.name] == [("c", "weather")]
    assert "Paris" in "".join(p.text for p in pieces if p.kind == "c")

    form = {"type": "json_schema", "schema": {"type": "string", "enum": ["zyzzyva"]}}
    text = "".join(map(chr, (await told(engine, ask("Say hello.", format=form))).ids))
    assert text.strip() == '"zyzzyva"'


async def test_an_answer_goes_on_as_without_a_fault_when_its_worker_is_killed(
    kafka: str, redis_url: str, tmp_path: Path, url: str, key_file: Path, engine: openai.OpenAI
) -> None:
    """With the key in a file. What the second worker continues is text, so it begins where a chunk
    ended."""
    whole = "".join(map(chr, (await told(engine, ask(QUESTION))).ids))
    async with workers.bench(kafka, redis_url, tmp_path) as bench:
        more = {
            "engine": url,
            "TAILRACE_MODEL": vllm_server.MODEL,
            "TAILRACE_ENGINE_KEY_FILE": str(key_file),
        }
        first = bench.worker(session_ms=3000, **more)
        await first.ready(120)
        request = await bench.ask(QUESTION, sampling=GREEDY)
        await bench.tokens(request.rid, 40, 60)
        second = bench.worker(session_ms=3000, **more)
        first.kill()
        answer = await bench.done(request.rid, 120)
        logs = first.logs() + second.logs()
    assert answer.text == whole
    assert answer.ended.status == "incomplete"  # by its bound, which counts both parts
    assert answer.ended.usage.output_tokens == 60
    claims = [made for _, made, _ in answer.records if isinstance(made, records.Claim)]
    assert len({claim.worker for claim in claims}) == 2
    assert vllm_server.KEY not in logs
