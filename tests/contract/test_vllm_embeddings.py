"""Embeddings on real vLLM, with a toy model: the vectors are those of vLLM's own `LLM.embed`.

Collected in the engine environment (tests/contract/test_engine_environment.py).
"""

from __future__ import annotations

import asyncio
import math
import os
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tailrace.protocol import events, records
from tests.support import engine_environment, toy_embeddings
from tests.support.model_engines import inside
from tests.support.waiting import eventually
from worker.engines import base, vllm, vllm_embeddings

pytestmark = [
    pytest.mark.engine,
    pytest.mark.nightly,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(900),
]
LONGEST = 128
TEXTS = ["hello", "Grüße aus Zürich", "天気 😀", "a longer text, " * 20, " ", "Hello"]
IDS = [[1, 2, 3], [17], [5] * LONGEST]
FEWER = 16


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("model") / "toy-embeddings"
    toy_embeddings.build(engine_environment.MODEL, made)
    return made


@pytest.fixture(scope="module")
def expected(folder: Path) -> dict[str, list[list[float]]]:
    """vLLM's own vectors."""
    for name, value in vllm.ENVIRONMENT.items():  # vLLM reads them when it is imported
        os.environ.setdefault(name, value)
    from vllm import LLM, PoolingParams

    llm = LLM(
        model=str(folder),
        max_model_len=LONGEST,
        dtype="float32",
        enforce_eager=True,
        disable_log_stats=True,
    )
    fewer = PoolingParams(dimensions=FEWER)
    found = {
        "texts": llm.embed(TEXTS, use_tqdm=False),
        "ids": llm.embed([{"prompt_token_ids": ids} for ids in IDS], use_tqdm=False),
        "fewer": llm.embed(TEXTS, pooling_params=fewer, use_tqdm=False),
    }
    llm.llm_engine.engine_core.shutdown()
    return {name: [o.outputs.embedding for o in each] for name, each in found.items()}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(folder: Path, expected: dict[str, list[list[float]]]) -> AsyncIterator[vllm.VLLM]:
    made = vllm.VLLM(model=str(folder), capacity=4, max_model_len=LONGEST, cpu_dtype="float32")
    await made.start()
    yield made
    await made.shutdown()


def ask(inputs: list[Any], **more: Any) -> records.Request:
    rid = f"resp_{os.urandom(16).hex()}"
    return records.Request(
        rid,
        records.Owner("i", "s"),
        "m",
        [],
        records.Sampling(0),
        events.embeddings_echo(rid, 0, "m", None),
        embed=records.Embed(inputs, **more),
    )


async def steps_of(engine: base.Engine, request: records.Request) -> list[base.Step]:
    found: list[base.Step] = []

    def keep(step: base.Step) -> bool:
        found.append(step)
        return True

    inputs = await engine.encode_inputs(request)
    flat = [i for ids in inputs for i in ids]
    token = os.urandom(16).hex()
    await engine.generate(base.GenerationInput(request, token, flat, [], 0, inputs), keep)
    return found


async def vectors_of(engine: base.Engine, inputs: list[Any], **more: Any) -> list[list[float]]:
    steps = await steps_of(engine, ask(inputs, **more))
    assert [step.finish for step in steps] == [None] * (len(inputs) - 1) + ["stop"]
    assert not any(step.ids for step in steps)
    made = [vector for step in steps for vector in step.vectors]
    return [list(struct.unpack(f"<{len(each) // 4}f", each)) for each in made]


def check_equal(found: list[list[float]], expected: list[list[float]]) -> None:
    assert [len(each) for each in found] == [len(each) for each in expected]
    for one, other in zip(found, expected, strict=True):
        assert one == pytest.approx(other, abs=1e-5)


async def test_it_says_that_it_embeds_and_generates_no_text(engine: vllm.VLLM) -> None:
    assert engine.features == {"embeddings", "dimensions"}
    text = records.Request("r", records.Owner("i", "s"), "m", [], records.Sampling(1), {})
    with pytest.raises(base.Refused, match="generates no text"):
        base.check_features(text, engine.features)
    base.check_features(ask(["a"], dimensions=2), engine.features)
    assert engine.parser_name(text) == ""


async def test_texts_have_the_vectors_of_vllm_itself(
    engine: vllm.VLLM, expected: dict[str, list[list[float]]]
) -> None:
    found = await vectors_of(engine, TEXTS)
    check_equal(found, expected["texts"])
    assert {len(each) for each in found} == {toy_embeddings.DIMENSIONS}
    assert found[0] != pytest.approx(found[5], abs=1e-5), "different inputs differ"


async def test_so_have_token_ids(engine: vllm.VLLM, expected: dict[str, list[list[float]]]) -> None:
    check_equal(await vectors_of(engine, IDS), expected["ids"])


async def test_so_have_fewer_dimensions(
    engine: vllm.VLLM, expected: dict[str, list[list[float]]]
) -> None:
    check_equal(await vectors_of(engine, TEXTS, dimensions=FEWER), expected["fewer"])


async def test_tokens_are_counted_with_those_that_the_tokenizer_adds(
    engine: vllm.VLLM,
) -> None:
    (ids,) = await engine.encode_inputs(ask(["hello"]))
    assert ids == await engine.token_ids("hello")  # this tokenizer adds none
    assert await engine.encode_inputs(ask([[4, 5]])) == [[4, 5]]


@pytest.mark.parametrize(
    ("inputs", "more", "code", "says"),
    [
        (["a", [1] * (LONGEST + 1)], {"first": 32}, "context_length_exceeded", r"input\[33\]"),
        (["word " * 400], {}, "context_length_exceeded", r"input\[0\]"),
        (["a", [10**6]], {}, "invalid_prompt", r"input\[1\]"),
        (["a"], {"dimensions": 65}, "invalid_value", "dimensions"),
        (["a"] * 4000, {}, "invalid_value", "too large"),
    ],
)
async def test_what_it_cannot_embed_is_refused_by_name(
    engine: vllm.VLLM, inputs: list[Any], more: dict[str, Any], code: str, says: str
) -> None:
    with pytest.raises(base.Refused, match=says) as refused:
        await engine.encode_inputs(ask(inputs, **more))
    assert refused.value.code == code


async def test_of_what_is_too_long_the_beginning_if_it_shall_be_cut(engine: vllm.VLLM) -> None:
    long = "word " * 400
    text, ids, short = await engine.encode_inputs(
        ask([long, [7] * (LONGEST + 1), "word"], truncate=True)
    )
    assert text == (await engine.token_ids(long))[:LONGEST]
    assert ids == [7] * LONGEST
    assert short == await engine.token_ids("word")
    assert await engine.encode_inputs(ask(["word"])) == [short]
    with pytest.raises(base.Refused):  # the tokenizer keeps no bound
        await engine.encode_inputs(ask([long]))


@pytest.mark.parametrize("values", [[[1.0]], [1.0, math.nan], [math.inf]], ids=str)
async def test_what_is_no_vector_of_numbers_is_not_written(values: list[Any]) -> None:
    import torch

    assert vllm_embeddings.to_bytes(torch.tensor([1.0])) == b"\0\0\x80?"
    with pytest.raises(base.Transient):
        vllm_embeddings.to_bytes(torch.tensor(values))


async def test_who_is_cancelled_leaves_nothing_in_the_engine(engine: vllm.VLLM) -> None:
    asked = [asyncio.create_task(vectors_of(engine, IDS * 8)) for _ in range(4)]
    await asyncio.sleep(0)
    for task in asked:
        await asyncio.sleep(0.005)
        task.cancel()
    await asyncio.gather(*asked, return_exceptions=True)

    async def empty() -> bool:
        assert len(await vectors_of(engine, ["still there"])) == 1
        return inside() == 0

    await eventually(empty, "the engine is empty")
