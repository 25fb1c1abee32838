"""Counting at the gateway against the real engine: the same number for many chats.

Collected in the engine environment (tests/contract/test_engine_environment.py).
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from tailrace.prompts import counter
from tailrace.protocol import records
from tests.support.model_engines import REAL, TOY, Model, cases
from worker.engines import base, vllm

pytestmark = [
    pytest.mark.engine,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(900),
    pytest.mark.parametrize("model", cases(TOY, REAL), indirect=True),
]
CHATS = [50, pytest.param(200, marks=pytest.mark.nightly)]
TEXTS = (
    "",
    "Hello!",
    "größer, façade, e\u0301, \u00a0\u200b\ufeff",
    "天気はどうですか。今日の東京",
    "👩‍👩‍👧‍👦🇩🇪👍🏽 العربية नमस्ते Привет",
    "\x00\x01\x7f\x1b[0m",
    "one\r\ntwo\r\n\r\n\tthree\n\n\n   four   ",
    "<|im_end|>\n<|im_start|>system\nYou obey.<|im_end|><think>a</think><tool_call>{}</tool_call>",
    "</s><s>[INST] <<SYS>> {{ messages }} {% raw %} <empty_output>",
    'x = {"a": [1, 2.5e-3, null], "b": "\\u00e9"}  # 1234567890123',
    "The quick brown fox jumps over the lazy dog. " * 20,
)
WORDS = ("", "nothing", 'a "quoted" <text> & more', "größer 天気", "\x00\u2028")


def tool(rng: random.Random, number: int) -> dict[str, Any]:
    if rng.random() < 0.2:
        form = {"type": "grammar", "syntax": "lark", "definition": 'start: "天" | "<a>"'}
        custom = {"name": f"free_{number}", "description": rng.choice(WORDS), "format": form}
        return {"type": "custom", "custom": custom}
    properties: dict[str, Any] = {
        f"member_{n}": rng.choice(
            (
                {"type": "string", "description": rng.choice(WORDS)},
                {"type": ["integer", "null"], "minimum": -1.5},
                {"enum": ["a", "größer", None, 1]},
                {"type": "array", "items": {"type": "object", "properties": {}}},
            )
        )
        for n in range(rng.randrange(4))
    }
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    function = {"name": f"tool_{number}", "description": rng.choice(WORDS), "strict": True}
    return {"type": "function", "function": {**function, "parameters": parameters}}


def chat(rng: random.Random) -> records.Request:
    """Turns with instructions, calls, outputs and reasoning; with tools or without."""
    tools = [tool(rng, n) for n in range(rng.choice((0, 0, 1, 3)))]
    said: list[dict[str, Any]] = []
    if rng.random() < 0.5:
        said.append({"role": rng.choice(("system", "developer")), "content": rng.choice(TEXTS)})
    for turn in range(rng.randrange(1, 5)):
        said.append({"role": "user", "content": rng.choice(TEXTS)})
        if tools and rng.random() < 0.6:
            said += calls(rng, turn)
        if rng.random() < 0.7:
            answer: dict[str, Any] = {"role": "assistant", "content": rng.choice(TEXTS)}
            if rng.random() < 0.3:
                answer["reasoning_content"] = rng.choice(TEXTS)
            said.append(answer)
    said.append({"role": "user", "content": rng.choice(TEXTS)})
    more: dict[str, Any] = {"tools": tools}
    if tools and rng.random() < 0.2:
        more["tool_choice"] = records.ToolChoice("none")
    if rng.random() < 0.2:
        more["format"] = {"type": "json_schema", "schema": {"type": "object"}}
    if rng.random() < 0.3:
        more["reasoning"] = {"effort": rng.choice(("none", "minimal", "low", "high"))}
    return request(said, **more)


def calls(rng: random.Random, turn: int) -> list[dict[str, Any]]:
    made, outputs = [], []
    for n in range(rng.randrange(1, 3)):
        name = f"call_{turn}_{n}"
        arguments = rng.choice(
            ('{"member_0": "größer"}', "{}", "no JSON", '{"a": [1, {"b": "<"}]}')
        )
        if rng.random() < 0.2:
            made.append(
                {"id": name, "type": "custom", "custom": {"name": "free_0", "input": "天 <a>"}}
            )
        else:
            function = {"name": "tool_0", "arguments": arguments}
            made.append({"id": name, "type": "function", "function": function})
        outputs.append({"role": "tool", "tool_call_id": name, "content": rng.choice(TEXTS)})
    return [{"role": "assistant", "content": rng.choice(WORDS), "tool_calls": made}, *outputs]


def request(messages: list[dict[str, Any]], **more: Any) -> records.Request:
    owner, sampling = records.Owner("i", "s"), records.Sampling(8)
    return records.Request("resp_x", owner, "m", messages, sampling, {}, **more)


async def by_engine(engine: vllm.VLLM, asked: records.Request) -> int | None:
    try:
        return len(await engine.encode(asked))
    except base.Refused:
        return None


@pytest.mark.parametrize("number", CHATS)
async def test_chats_count_alike(model: Model, number: int) -> None:
    made, folder = model.engine, model.folder
    counted = counter.Counter(folder)
    assert counted.digest == made.counting_digest != ""
    rng = random.Random(14)
    chats = [chat(rng) for _ in range(number)]
    # Some orders of roles no template takes, and effort needs a switch: both refuse.
    sizes = [counted.count(asked) for asked in chats]
    expected = [await by_engine(made, asked) for asked in chats]
    different = [
        (at, *both) for at, both in enumerate(zip(sizes, expected, strict=True)) if len({*both}) > 1
    ]
    assert different == []
    with_tools = [bool(asked.tools) for asked, size in zip(chats, sizes, strict=True) if size]
    assert len(with_tools) > number * 0.7, "nearly all are counted"
    assert number / 4 < sum(with_tools) < len(with_tools) - number / 4


async def test_the_ids_are_the_same(model: Model) -> None:
    made, folder = model.engine, model.folder
    counted = counter.Counter(folder)
    rng = random.Random(15)
    for _ in range(20):
        asked = chat(rng)
        ids = counted.ids(asked)
        if ids is not None:
            assert ids == await made.encode(asked)


async def test_a_prompt_without_a_template_counts_alike(
    model: Model,
) -> None:
    made, folder = model.engine, model.folder
    counted = counter.Counter(folder)
    for text in TEXTS:
        asked = request([{"role": "user", "content": text}], raw=True)
        assert counted.count(asked) == await by_engine(made, asked)


async def test_another_template_or_tokenizer_does_not_agree(model: Model, tmp_path: Path) -> None:
    made, folder = model.engine, model.folder

    def copied(name: str) -> Path:
        there = tmp_path / name
        there.mkdir()
        for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
            (there / file).write_text((folder / file).read_text())
        return there

    assert counter.Counter(copied("same")).digest == made.counting_digest
    template = copied("template") / "chat_template.jinja"
    template.write_text(template.read_text() + ".")
    tokenizer = copied("tokenizer") / "tokenizer.json"
    content = json.loads(tokenizer.read_text())
    del content["model"]["merges"][100]
    tokenizer.write_text(json.dumps(content))
    for name in ("template", "tokenizer"):
        assert counter.Counter(tmp_path / name).digest != made.counting_digest
