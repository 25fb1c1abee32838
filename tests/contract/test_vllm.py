"""What the vLLM engine does beyond the contract of all engines, on a toy model that knows tools.

The last test runs this module again in the engine environment, once for each way in which the
engine reads vLLM's output (tests/contract/test_engines.py).
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest
import pytest_asyncio

from tailrace.protocol import events, records
from tests.support import engine_environment, schemas, toy_tools
from worker.engines import base

if TYPE_CHECKING:
    from worker.engines import vllm

WAYS = ["vllm", "vllm_public_api"]
EXACT = ["vllm_public_api"]  # float32: prefill and decode round alike
pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(600)]

if engine_environment.HERE:

    @pytest.fixture(scope="module")
    def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
        made = tmp_path_factory.mktemp("model") / "toy-tools"
        toy_tools.build(engine_environment.MODEL, made)
        return made

    @pytest_asyncio.fixture(scope="module", loop_scope="module", params=WAYS)
    async def engine(request: pytest.FixtureRequest, folder: Path) -> AsyncIterator[vllm.VLLM]:
        from worker.engines import vllm

        public = request.param == "vllm_public_api"
        made = vllm.VLLM(
            model=str(folder),
            capacity=16,
            max_model_len=2048,
            public_api=public,
            cpu_dtype="float32" if public else "bfloat16",
        )
        await made.start()
        yield made
        await made.shutdown()

    def ask(text: str = "Say hello.", max_tokens: int = 24, **more: Any) -> records.Request:
        rid = f"resp_{os.urandom(16).hex()}"
        of_request = records.Request.__struct_fields__
        fields = {k: v for k, v in more.items() if k in of_request}
        sampling = {k: v for k, v in more.items() if k not in of_request}
        return records.Request(
            rid,
            records.Owner("i", "s"),
            "m",
            [{"role": "user", "content": text}],
            records.Sampling(max_tokens, **{"temperature": 0.0, **sampling}),
            events.echo(rid, 0, "m", metadata={}),
            **fields,
        )

    async def steps_of(
        engine: base.Engine, request: records.Request, accepted: Sequence[int] = ()
    ) -> list[base.Step]:
        """All steps of an attempt that continues behind `accepted`."""
        found: list[base.Step] = []

        def keep(step: base.Step) -> bool:
            found.append(step)
            return True

        prompt = await engine.encode(request)
        left = request.sampling.max_tokens - len(accepted)
        token = os.urandom(16).hex()
        await engine.generate(
            base.GenerationInput(request, token, prompt, list(accepted), left), keep
        )
        return found

    async def answer(
        engine: base.Engine, request: records.Request, accepted: Sequence[int] = ()
    ) -> list[int]:
        return [i for step in await steps_of(engine, request, accepted) for i in step.ids]

    def text_of(engine: base.Engine, ids: Sequence[int]) -> str:
        detokenizer = engine.detokenizer()
        return detokenizer.push(ids) + detokenizer.flush()

    # ---- sampling --------------------------------------------------------------------------------

    async def test_the_least_number_of_tokens_holds_over_a_takeover(engine: vllm.VLLM) -> None:
        [end] = sorted(engine.stop_ids)[:1]
        wants_to_end: dict[str, Any] = {"logit_bias": {str(end): 100.0}}
        assert await answer(engine, ask(**wants_to_end)) == [end]
        request = ask(**wants_to_end, min_tokens=6)
        whole = await answer(engine, request)
        assert len(whole) == 7
        assert whole[-1] == end
        assert whole[:4] + await answer(engine, request, whole[:4]) == whole

    async def test_an_end_that_is_ignored_is_a_token_like_others(engine: vllm.VLLM) -> None:
        [end] = sorted(engine.stop_ids)[:1]
        request = ask(logit_bias={str(end): 100.0}, ignore_eos=True, max_tokens=5)
        assert await answer(engine, request) == [end] * 5

    @pytest.mark.parametrize("bound", [{"top_k": 1}, {"min_p": 1.0}])
    async def test_bounds_that_leave_one_token_make_a_hot_answer_the_greedy_one(
        engine: vllm.VLLM, bound: dict[str, Any]
    ) -> None:
        hot: dict[str, Any] = {"temperature": 2.0, "seed": 7}
        greedy = await answer(engine, ask())
        assert await answer(engine, ask(**hot)) != greedy
        assert await answer(engine, ask(**hot, **bound)) == greedy

    async def test_a_penalty_on_repetitions_counts_what_former_attempts_said(
        engine: vllm.VLLM,
    ) -> None:
        [favourite, *_] = await answer(engine, ask(max_tokens=2))
        insists: dict[str, Any] = {"logit_bias": {str(favourite): 40.0}, "max_tokens": 6}
        assert await answer(engine, ask(**insists)) == [favourite] * 6
        request = ask(**insists, repetition_penalty=2.0)
        whole = await answer(engine, request)
        again = whole[:3] + await answer(engine, request, whole[:3])
        assert again == whole

    # ---- log probabilities -----------------------------------------------------------------------

    @pytest.mark.parametrize("count", [0, 1, 20])
    async def test_every_token_has_its_log_probability_and_the_likeliest_ones(
        engine: vllm.VLLM, count: int
    ) -> None:
        found = await steps_of(engine, ask(logprobs=count, max_tokens=8))
        assert all(len(step.ids) == len(step.logprobs) for step in found)
        lps = [lp for step in found for lp in step.logprobs]
        assert len(lps) == 8
        for lp in lps:
            assert len(lp.top) == count
            odds = [one.logprob for one in lp.top]
            assert odds == sorted(odds, reverse=True)
            assert sum(map(math.exp, odds)) < 1.0001
            if count:
                assert (lp.top[0].token, lp.top[0].logprob) == (lp.token, lp.logprob)
        assert not any(s.logprobs for s in await steps_of(engine, ask(max_tokens=3)))

    async def test_bytes_of_tokens_that_are_half_a_character_make_the_text(
        engine: vllm.VLLM,
    ) -> None:
        text = "日😀é ok\n"
        ids = engine.token_ids(text)
        lps: list[records.Lp] = []
        for n, token in enumerate(ids):  # each said because nothing else may be
            request = ask(logprobs=2, logit_bias={str(token): 100.0}, max_tokens=n + 1)
            [step, *_] = [s for s in await steps_of(engine, request, ids[:n]) if s.ids]
            assert list(step.ids) == [token]
            lps += step.logprobs
        said = b"".join(bytes.fromhex(lp.raw) if lp.raw else lp.token.encode() for lp in lps)
        assert said.decode() == text
        assert any(lp.raw for lp in lps), "a character of this text has several tokens"

    async def test_a_marker_is_no_text_of_the_answer(engine: vllm.VLLM) -> None:
        [end] = sorted(engine.stop_ids)[:1]
        [step, *_] = await steps_of(engine, ask(logprobs=1, logit_bias={str(end): 100.0}))
        [lp] = step.logprobs
        assert (lp.token, lp.raw) == ("", "")
        assert lp.top

    # ---- formats ---------------------------------------------------------------------------------

    async def test_an_answer_has_the_format_that_was_asked_for(engine: vllm.VLLM) -> None:
        weather = {"choices": ["sunny", "rainy"], "type": "choice"}
        assert text_of(engine, await answer(engine, ask(format=weather))) in ("sunny", "rainy")
        digits = {"type": "regex", "pattern": "[0-9]{3}-[0-9]{2}"}
        assert re.fullmatch(
            "[0-9]{3}-[0-9]{2}", text_of(engine, await answer(engine, ask(format=digits)))
        )
        ebnf = {"type": "grammar", "definition": 'root ::= "a" ("b" | "c") "d"'}
        assert text_of(engine, await answer(engine, ask(format=ebnf))) in ("abd", "acd")
        thing = {"type": "json_object"}
        found = text_of(engine, await answer(engine, ask(format=thing, max_tokens=400)))
        assert found.startswith("{")

    async def test_structured_answers_are_announced_as_resumable(engine: vllm.VLLM) -> None:
        assert {"logprobs", "formats", "formats_resumable"} <= engine.features

    @pytest.mark.parametrize("engine", EXACT, indirect=True)
    @pytest.mark.parametrize("name", schemas.SOME)
    async def test_a_json_answer_that_is_continued_anywhere_is_the_uninterrupted_one(
        engine: vllm.VLLM, name: str
    ) -> None:
        """And it is valid for its schema, where it came to its end."""
        schema = schemas.SCHEMAS[name]
        request = ask(format={"type": "json_schema", "schema": schema}, max_tokens=120)
        whole = await answer(engine, request)
        said = text_of(engine, whole)
        if whole[-1] in engine.stop_ids:
            jsonschema.validate(json.loads(said), schema)
        else:
            assert name in schemas.ENDLESS, said
        cuts = range(1, len(whole))
        rests = await asyncio.gather(*[answer(engine, request, whole[:k]) for k in cuts])
        for k, rest in zip(cuts, rests, strict=True):
            assert whole[:k] + rest == whole, (k, text_of(engine, whole[:k] + rest), said)

    async def test_accepted_tokens_that_do_not_fit_the_format_cannot_be_continued(
        engine: vllm.VLLM,
    ) -> None:
        request = ask(format={"type": "regex", "pattern": "[0-9]{8}"})
        with pytest.raises(base.NotResumable):
            await answer(engine, request, engine.token_ids("abc"))
        assert await answer(engine, ask(max_tokens=2)), "the engine serves the next one"

    async def test_without_the_plugin_a_structured_answer_is_not_continued(
        engine: vllm.VLLM, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        request = ask(format={"type": "regex", "pattern": "[0-9]{8}"})
        whole = await answer(engine, request)
        monkeypatch.setattr(engine, "features", engine.features - {"formats_resumable"})
        with pytest.raises(base.NotResumable):
            await answer(engine, request, whole[:3])

    async def test_a_format_that_the_engine_does_not_know_is_refused(engine: vllm.VLLM) -> None:
        schema = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
        for bad in (
            {"type": "json_schema", "schema": schema},
            {"type": "grammar", "definition": "root ::= ("},
        ):
            with pytest.raises(base.Refused) as caught:
                await answer(engine, ask(format=bad))
            assert caught.value.code == "invalid_prompt"


@pytest.mark.engine
@pytest.mark.skipif(engine_environment.HERE, reason="this is the engine environment")
@pytest.mark.parametrize("way", WAYS)
async def test_vllm_does_this_in_its_own_environment(way: str) -> None:
    await engine_environment.run_again("tests/contract/test_vllm.py", "-k", f"[{way}")
