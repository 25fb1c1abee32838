"""What every engine must do.

vLLM's cases are collected in the engine environment (tests/contract/test_engine_environment.py),
with each way in which the engine reads vLLM's output (tests/support/model_engines.py).
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from tailrace.protocol import events, records
from tests.support import engine_environment, model_engines, openai_server
from tests.support.model_engines import REAL, REAL_NATIVE, REAL_PUBLIC, cases
from tests.support.waiting import eventually
from worker.engines import base, openai, scripted

HAVE_VLLM = engine_environment.HERE
MAX_MODEL_LEN = 1024
VLLM = cases(REAL, REAL_PUBLIC)
EXACT = VLLM if HAVE_VLLM else ["scripted"]  # a continued answer equals the uninterrupted one
PROMPTS = ["Count to twenty.", "Tell a story about the sea.", "List the planets."]
# Nats between a token and the model's best one. Two computations of the same logits in bfloat16
# differ by less than this (measured: 0.25), a token that follows another prefix by more.
NEAR_TIE = 1.0

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(900),
    *([pytest.mark.engine] if HAVE_VLLM else []),
]


@pytest_asyncio.fixture(loop_scope="session", params=VLLM if HAVE_VLLM else ["scripted", "openai"])
async def engine(
    request: pytest.FixtureRequest, engines: model_engines.Engines
) -> AsyncIterator[base.Engine]:
    made: base.Engine
    if isinstance(request.param, model_engines.Variant):
        yield (await engines.acquire(request.param)).engine
        return
    if request.param == "openai":
        async with openai_server.Server() as server:
            made = openai.OpenAI(url=server.url, model="m", capacity=16)
            await made.start()
            yield made
            await made.shutdown()
        return
    made = scripted.Scripted(capacity=16, max_model_len=MAX_MODEL_LEN)
    await made.start()
    yield made
    await made.shutdown()


def ask(
    text: str = "Say hello 5",
    *,
    max_tokens: int = 40,
    logit_bias: dict[str, float] | None = None,
    ignore_eos: bool = False,
    **cues: Any,
) -> records.Request:
    rid = f"resp_{os.urandom(16).hex()}"
    metadata = {"script_tokens": "60", "script_pace_ms": "1", **cues}
    echo = events.echo(rid, 0, "m", metadata=metadata)
    messages = [{"role": "user", "content": text}]
    return records.Request(
        rid,
        records.Owner("i", "s"),
        "m",
        messages,
        records.Sampling(
            max_tokens, temperature=0.0, logit_bias=logit_bias or {}, ignore_eos=ignore_eos
        ),
        echo,
    )


async def job(
    engine: base.Engine, request: records.Request, before: list[int] | None = None
) -> base.GenerationInput:
    so_far = before or []
    left = request.sampling.max_tokens - (len(so_far) if engine.ids_are_tokens else 0)
    return base.GenerationInput(
        request, os.urandom(16).hex(), await engine.encode(request), so_far, left
    )


async def collect(engine: base.Engine, made: base.GenerationInput) -> tuple[list[int], str | None]:
    ids: list[int] = []
    finish: str | None = None

    def on_step(step: base.Step) -> bool:
        nonlocal finish, ids
        assert finish is None, "nothing comes after the finish"
        ids += step.ids
        finish = step.finish
        return True

    await engine.generate(made, on_step)
    return ids, finish


async def started(engine: base.Engine, request: records.Request) -> asyncio.Task[None]:
    """A generation that has made its first step and goes on."""
    stepping = asyncio.Event()

    def on_step(step: base.Step) -> bool:
        stepping.set()
        return True

    task = asyncio.create_task(engine.generate(await job(engine, request), on_step))
    async with asyncio.timeout(60):
        await stepping.wait()
    return task


async def empty(engine: base.Engine) -> None:
    """Wait until no request is inside the engine."""

    async def nothing() -> bool:
        if isinstance(engine, scripted.Scripted):
            return engine.running == 0
        if not HAVE_VLLM:
            return True  # the server does not say
        # vLLM counts at each step, so there has to be one.
        await collect(engine, await job(engine, ask(max_tokens=1)))
        return model_engines.inside() == 0

    await eventually(nothing, "the engine is empty", within_s=10)


def text_of(engine: base.Engine, ids: list[int]) -> str:
    detokenizer = engine.detokenizer()
    return detokenizer.push(ids) + detokenizer.flush()


async def test_an_answer_ends_with_a_reason_and_has_text(engine: base.Engine) -> None:
    request = ask()
    ids, finish = await collect(engine, await job(engine, request))
    assert finish in ("stop", "length")
    assert ids
    assert all(0 <= i < 2**32 for i in ids)
    assert text_of(engine, ids).strip()


async def test_greedy_answers_repeat(engine: base.Engine) -> None:
    request = ask()
    assert await collect(engine, await job(engine, request)) == await collect(
        engine, await job(engine, request)
    )


async def test_max_tokens_bounds_the_answer_and_is_named(engine: base.Engine) -> None:
    request = ask("Tell a long story 60", max_tokens=3)
    ids, finish = await collect(engine, await job(engine, request))
    assert finish == "length"
    if engine.ids_are_tokens:
        assert len(ids) == 3
    else:
        assert text_of(engine, ids).split() == ["wörd0", "wörd1", "wörd2"]


@pytest.mark.parametrize("engine", EXACT, indirect=True)
async def test_a_greedy_answer_is_continued_as_if_it_had_not_been_interrupted(
    engine: base.Engine,
) -> None:
    requests = [ask(text, max_tokens=30) for text in PROMPTS[:2]]
    answers = [await collect(engine, await job(engine, request)) for request in requests]

    async def check(request: records.Request, answer: tuple[list[int], str | None], k: int) -> None:
        whole, finish = answer
        rest = await collect(engine, await job(engine, request, whole[:k]))
        assert rest == (whole[k:], finish)

    await asyncio.gather(
        *[
            check(request, answer, k)
            for request, answer in zip(requests, answers, strict=True)
            for k in sorted({1, 7, len(answer[0]) // 2, len(answer[0]) - 1})
        ]
    )


if not HAVE_VLLM:

    @pytest.mark.parametrize("engine", ["openai"], indirect=True)
    async def test_an_engine_that_cannot_continue_refuses_to(engine: base.Engine) -> None:
        with pytest.raises(base.NotResumable):
            await collect(engine, await job(engine, ask(), [104, 105]))


async def test_wanting_no_more_or_cancelling_the_task_stops_the_engine(engine: base.Engine) -> None:
    request = ask("slow story 5000", max_tokens=1900, ignore_eos=True, script_tokens="5000")
    steps: list[base.Step] = []

    def on_step(step: base.Step) -> bool:
        steps.append(step)
        return len(steps) < 3

    await engine.generate(await job(engine, request), on_step)
    assert len(steps) == 3

    reader = await started(engine, request)
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    await empty(engine)


async def test_a_prompt_that_does_not_fit_is_refused_with_the_apis_code(
    engine: base.Engine,
) -> None:
    if not engine.ids_are_tokens:
        return  # the server counts
    with pytest.raises(base.Refused) as caught:
        await engine.encode(ask("word " * 6_000))
    assert caught.value.code == "context_length_exceeded"


async def test_text_does_not_depend_on_how_ids_are_cut_and_holds_no_half_character(
    engine: base.Engine,
) -> None:
    request = ask("Reply with emoji: 😀 30", max_tokens=40)
    ids, _ = await collect(engine, await job(engine, request))
    whole = text_of(engine, ids)
    for size in (1, 2, 3, 7):
        detokenizer = engine.detokenizer()
        pieces = [detokenizer.push(ids[at : at + size]) for at in range(0, len(ids), size)]
        assert all("\ufffd" not in piece for piece in pieces)
        assert "".join(pieces) + detokenizer.flush() == whole


async def test_as_many_as_its_capacity_run_at_once(engine: base.Engine) -> None:
    requests = [
        ask(f"Say the number {i} and then {i + 5}", max_tokens=8) for i in range(engine.capacity)
    ]
    answers = await asyncio.gather(*[collect(engine, await job(engine, r)) for r in requests])
    assert all(finish in ("stop", "length") for _, finish in answers)


async def test_what_identifies_the_model_is_known_once_it_started(engine: base.Engine) -> None:
    assert engine.model_rev
    assert engine.tokenizer_digest
    assert engine.capacity == 16
    assert not engine.dead.is_set()


if HAVE_VLLM:

    async def surprises(engine: base.Engine, ids: list[int], start: int) -> list[float]:
        """For each id from `start` on: how many nats it is behind the id that the model likes best
        after exactly the ids before it. One prefill without the prefix cache computes them all."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        sampling = SamplingParams(
            max_tokens=1,
            prompt_logprobs=1,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        llm: Any = engine._llm  # type: ignore[attr-defined]
        prompt = {"type": "token", "prompt_token_ids": ids}
        [found] = [out async for out in llm.generate(prompt, sampling, os.urandom(8).hex())]
        assert len(found.prompt_logprobs) == len(ids)
        return [
            max(one.logprob for one in likely.values()) - likely[made].logprob
            for made, likely in zip(ids[start:], found.prompt_logprobs[start:], strict=True)
        ]

    @pytest.mark.parametrize("engine", cases(REAL, REAL_PUBLIC, REAL_NATIVE), indirect=True)
    async def test_a_continued_answer_is_what_the_model_says_to_exactly_the_accepted_prefix(
        engine: base.Engine,
    ) -> None:
        """Not: what the interrupted worker would have said. A takeover reads the accepted tokens as
        prompt. Prefill and decode round bfloat16 differently, and so do other batches and other
        machines: of two tokens that the model likes equally, the other may come."""

        async def check(text: str, prompt: list[int], before: list[int]) -> None:
            more = await job(engine, ask(text, max_tokens=len(before) + 8), before)
            rest, _ = await collect(engine, more)
            prefix = [*prompt, *before]
            behind = await surprises(engine, [*prefix, *rest], len(prefix))
            assert max(behind) < NEAR_TIE, (text, len(before), behind)

        requests = [ask(text) for text in PROMPTS]
        prompts = [await engine.encode(request) for request in requests]
        answers = await asyncio.gather(*[collect(engine, await job(engine, r)) for r in requests])
        await asyncio.gather(
            *[
                check(text, prompt, whole[:k])
                for text, prompt, (whole, _) in zip(PROMPTS, prompts, answers, strict=True)
                for k in range(1, len(whole), 8)
            ]
        )

    async def test_vllms_output_is_read_in_the_way_that_was_chosen(
        engine: base.Engine, request: pytest.FixtureRequest
    ) -> None:
        variant: model_engines.Variant = request.node.callspec.params["engine"]
        assert engine.internals is not variant.public_api  # type: ignore[attr-defined]

    async def test_vllm_stops_at_each_of_the_models_end_tokens(engine: base.Engine) -> None:
        assert engine.stop_ids
        for end in engine.stop_ids:
            request = ask("Say hi.", logit_bias={str(end): 100.0})
            assert await collect(engine, await job(engine, request)) == ([end], "stop")

    async def test_vllm_counts_cached_prompt_tokens(engine: base.Engine) -> None:
        long = ask("Here are some facts. " * 60 + "Now say only the word yes.", max_tokens=8)
        assert await cached_tokens(engine, long) == 0
        assert await cached_tokens(engine, long) > 100

    async def cached_tokens(engine: base.Engine, request: records.Request) -> int:
        """Prompt tokens of one answer that the engine had in its cache."""
        steps: list[base.Step] = []

        def on_step(step: base.Step) -> bool:
            steps.append(step)
            return True

        await engine.generate(await job(engine, request), on_step)
        assert len(steps) > 1, "steps come one by one"
        found = steps[-1].cached_tokens
        assert found is not None
        return found

    async def test_vllm_shares_a_cached_prompt_within_one_tenant_only(engine: base.Engine) -> None:
        """How fast an answer begins would tell one tenant what another has asked."""
        long = ask("What the board has decided. " * 60 + "Now say yes.", max_tokens=8)

        async def cached(owner: records.Owner) -> int:
            return await cached_tokens(engine, msgspec.structs.replace(long, owner=owner))

        assert await cached(records.Owner("i", "ann", "acme")) == 0
        assert await cached(records.Owner("i", "bob", "acme")) > 100
        for foreign in (
            records.Owner("i", "ann", "other"),
            records.Owner("i", "ann"),
            records.Owner("i", "acme"),
            records.Owner("another issuer", "ann", "acme"),
        ):
            assert await cached(foreign) == 0, foreign

    async def test_vllm_refuses_bad_sampling(engine: base.Engine) -> None:
        bad = ask(logit_bias={"99999999": 5.0})
        with pytest.raises(base.Refused):
            await collect(engine, await job(engine, bad))

    async def test_vllm_notices_the_death_of_its_engine_process(
        engine_to_kill: base.Engine,
    ) -> None:
        engine = engine_to_kill
        reading = await started(engine, ask("Tell a very long story.", max_tokens=900))
        for child in multiprocessing.active_children():
            child.kill()
        with pytest.raises(base.EngineDead):
            await reading
        async with asyncio.timeout(10):
            await engine.dead.wait()
