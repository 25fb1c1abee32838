"""LoRA adapters on real vLLM.

Collected in the engine environment (tests/contract/test_engine_environment.py).
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
import pytest_asyncio

from tailrace.protocol import records
from tests.support import engine_environment, toy_adapter
from worker.engines import base, vllm, vllm_adapters

pytestmark = [
    pytest.mark.engine,
    pytest.mark.nightly,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(900),
]
LENGTH, SURE = 24, 8  # tokens


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[vllm.VLLM]:
    folder, sources = tmp_path_factory.mktemp("adapters"), {}
    for seed, name in enumerate(("blue", "red")):
        toy_adapter.build(engine_environment.MODEL, folder / name, seed)
        sources[name] = str(folder / name)
    made = vllm.VLLM(
        model=str(engine_environment.MODEL),
        capacity=4,
        max_model_len=512,
        cpu_dtype="float32",  # prefill and decode round alike
        engine_args={"max_lora_rank": toy_adapter.RANK},
        adapters=sources,
    )
    await made.start()
    yield made
    await made.shutdown()


async def said(
    engine: vllm.VLLM, model: str, before: Sequence[int] = (), length: int = LENGTH
) -> list[int]:
    """All ids of an answer, the given ones included."""
    messages = [{"role": "user", "content": "Tell a story about the sea."}]
    sampling = records.Sampling(length, temperature=0.0, ignore_eos=True)
    owner = records.Owner("i", "s")
    request = records.Request("resp_x", owner, model, messages, sampling, {})
    found, prompt = list(before), await engine.encode(request)
    job = base.GenerationInput(
        request, os.urandom(16).hex(), prompt, list(before), length - len(before)
    )

    def keep(step: base.Step) -> bool:
        found.extend(step.ids)
        return True

    await engine.generate(job, keep)
    return found


async def test_a_name_chooses_its_adapter_also_beside_others(engine: vllm.VLLM) -> None:
    names = ("base", "blue", "red")
    alone = [await said(engine, name) for name in names]
    assert all(len(ids) == LENGTH for ids in alone)
    # A batch rounds otherwise, so later on the best two tokens may change places.
    begin = [ids[:SURE] for ids in alone]
    assert len(set(map(tuple, begin))) == 3
    # The last one to come finds others in mid-answer, so its prompt is in a batch with them.
    for order in itertools.permutations(range(3)):
        tasks = []
        for which in order:
            answer = said(engine, names[which], length=SURE + 4)
            tasks.append(asyncio.create_task(answer))
            await asyncio.sleep(0.02)
        together = await asyncio.gather(*tasks)
        assert [ids[:SURE] for ids in together] == [begin[which] for which in order]


async def test_an_answer_goes_on_with_its_adapter(engine: vllm.VLLM) -> None:
    whole = await said(engine, "red")
    assert await said(engine, "red", whole[: LENGTH // 2]) == whole


async def test_what_cannot_be_loaded_is_refused_by_name(engine: vllm.VLLM, tmp_path: Path) -> None:
    with pytest.raises(base.ArgumentRefused, match=r"adapters\.green: .*No adapter found"):
        await vllm_adapters.load(engine._llm, {"green": str(tmp_path)})
