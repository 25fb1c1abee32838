"""One request through `AsyncLLM.generate`, without vLLM. tests/contract/test_engines.py has the
real one."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import pytest

from worker.engines import base, vllm_public


class Llm:
    """AsyncLLM.generate, which gives `made` as (ids, finish reason). Closing it aborts."""

    def __init__(self, *made: tuple[list[int], str | None]) -> None:
        self.asked: tuple[Any, ...] = ()
        self.aborted = False
        self._made = made

    async def generate(
        self, prompt: Any, sampling: Any, key: str
    ) -> AsyncGenerator[SimpleNamespace, None]:
        self.asked = (prompt, sampling, key)
        try:
            for ids, finish in self._made:
                one = SimpleNamespace(token_ids=ids, finish_reason=finish, logprobs=None)
                yield SimpleNamespace(outputs=[one], num_cached_tokens=7)
        except GeneratorExit:
            self.aborted = True
            raise


async def test_each_output_is_one_step_and_the_finish_is_the_last() -> None:
    llm = Llm(([1, 2], None), ([3], "length"))
    steps: list[base.Step] = []

    def keep(step: base.Step) -> bool:
        steps.append(step)
        return True

    await vllm_public.run(llm, {"p": 1}, "s", "k", keep)
    assert steps == [base.Step([1, 2], None, 7), base.Step([3], "length", 7)]
    assert llm.asked == ({"p": 1}, "s", "k")


async def test_wanting_no_more_closes_the_generator_which_aborts() -> None:
    llm = Llm(([1], None), ([2], None))
    steps: list[base.Step] = []

    def one(step: base.Step) -> bool:
        steps.append(step)
        return False

    await vllm_public.run(llm, {}, None, "k", one)
    assert len(steps) == 1
    assert llm.aborted


@pytest.mark.parametrize("reason", ["error", "abort"])
async def test_a_request_that_vllm_gave_up_may_be_tried_again(reason: str) -> None:
    with pytest.raises(base.Transient, match=reason):
        await vllm_public.run(Llm(([], reason)), {}, None, "k", lambda _step: True)


def test_a_models_own_reasons_are_stop_and_only_the_length_is_length() -> None:
    reasons = [vllm_public.to_step((), reason, None).finish for reason in (None, "stop", "length")]
    assert reasons == [None, "stop", "length"]
    assert vllm_public.to_step((), "repetition", None).finish == "stop"
