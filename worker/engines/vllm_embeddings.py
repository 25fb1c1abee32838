"""Embeddings of vLLM's pooling models.

vLLM recognises these models by their files (its runner `auto`). One attempt has up to some dozens
of inputs, each a separate request to vLLM, which batches them with all others.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from tailrace.protocol import records
from tailrace.protocol.features import Feature
from worker.engines import base


def pools(model_config: Any) -> bool:
    """Whether the model makes vectors and no text. `model_config`: vLLM's."""
    return bool(model_config.runner_type == "pooling")


async def warm_up(llm: Any) -> frozenset[Feature]:
    """Embed a test input. Returns the model's abilities.

    Raises:
        EngineDead: the model makes no embeddings.
    """
    if "embed" not in await llm.get_supported_tasks():
        raise base.EngineDead("the model makes no embeddings (a classifier or a reranker?)")
    await _vector(llm, "warm-up", [0, 1, 2, 3])
    features: set[Feature] = {"embeddings"}
    if llm.model_config.is_matryoshka:
        features.add("dimensions")
    return frozenset(features)


def encode(
    request: records.Request, tokenize: Callable[..., Sequence[int]], model_config: Any
) -> list[list[int]]:
    """The ids of each input. Takes time; call it in a thread. `tokenize`: of the model's tokenizer,
    with markers.

    Raises:
        Refused: an input is too long or has no tokens, or the vectors do not fit into a record.
    """
    assert request.embed is not None
    lower = (model_config.encoder_config or {}).get("do_lower_case", False)
    longest, options = model_config.max_model_len, {}
    if request.embed.truncate:
        # By the tokenizer, because a marker may be required after the last token.
        options = {"truncation": True, "max_length": longest}
    inputs = []
    for index, each in enumerate(request.embed.inputs, request.embed.first):
        if isinstance(each, str):
            ids = list(tokenize(each.lower() if lower else each, **options))
        else:
            ids = each[:longest] if request.embed.truncate else each
            if max(ids, default=0) >= model_config.get_vocab_size():
                where = f"input[{index}]"
                raise base.Refused(
                    "invalid_prompt", f"'{where}' has a token that the model does not have.", where
                )
        base.check_input(index, len(ids), longest)
        inputs.append(ids)
    dimensions = request.embed.dimensions
    _check_dimensions(dimensions, model_config)
    base.check_vectors(len(inputs), dimensions or model_config.embedding_size)
    return inputs


def _check_dimensions(dimensions: int | None, model_config: Any) -> None:
    most, some = model_config.embedding_size, model_config.matryoshka_dimensions
    if dimensions is None or (1 <= dimensions <= most and (some is None or dimensions in some)):
        return
    which = f"one of {sorted(some)}" if some else f"from 1 to {most}"
    raise base.Refused(
        "invalid_value", f"'dimensions' must be {which} for this model.", "dimensions"
    )


async def run(llm: Any, job: base.GenerationInput, on_step: base.OnStep) -> None:
    """Embed all inputs. `on_step` gets the vectors in the inputs' order, each as soon as those
    before it are complete."""
    assert job.request.embed is not None
    dimensions, scope = job.request.embed.dimensions, job.request.owner.cache_scope
    tasks = [
        asyncio.ensure_future(_vector(llm, f"{job.key}.{index}", ids, dimensions, scope))
        for index, ids in enumerate(job.inputs)
    ]
    try:
        for index, task in enumerate(tasks, 1):
            finish = "stop" if index == len(tasks) else None
            if not on_step(base.Step((), finish, vectors=(await task,))):
                return
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _vector(
    llm: Any, key: str, ids: Sequence[int], dimensions: int | None = None, scope: str = "warm-up"
) -> bytes:
    from vllm import PoolingParams

    params = PoolingParams(task="embed", dimensions=dimensions)
    # The timing of a shared prefix cache would reveal one tenant's prompts to another.
    prompt = {"type": "token", "prompt_token_ids": list(ids), "cache_salt": scope}
    async with contextlib.aclosing(llm.encode(prompt, params, key)) as outputs:
        async for out in outputs:  # closing the generator aborts the request
            if out.finished:
                return to_bytes(out.outputs.data)
    raise base.Transient("vLLM ended this request without a vector")


def to_bytes(data: Any) -> bytes:
    """A vector (a tensor of one dimension) as the log holds it.

    Raises:
        Transient: it is not a vector, or not finite (float16 overflows): JSON has no such number.
    """
    if data.ndim != 1:
        raise base.Transient("vLLM made no vector")
    vector = data.float().cpu()
    if not bool(vector.isfinite().all()):
        raise base.Transient("vLLM made a vector that is not finite")
    return bytes(vector.numpy().astype("<f4").tobytes())
