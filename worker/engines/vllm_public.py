"""Reads a request's output from vLLM through its public API, `AsyncLLM.generate`.

Every token of every response costs an output object, an event and the wake-up of a task. That is
about twice the cost of handling the token, so `vllm_internals` is used where it fits the version.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from tailrace.protocol import records
from worker.engines import base


class GaveUp(base.Transient):
    """vLLM ended a request without a result. `reason`: "error" or "abort"."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"vLLM ended this request with {reason!r}")
        self.reason = reason


Describe = Callable[[Sequence[int], Any], Sequence[records.Lp]]
"""Converts new ids and vLLM's log probabilities (None without ids) to the entries of a step."""


def nothing(_ids: Sequence[int], _logprobs: Any) -> Sequence[records.Lp]:
    """For requests without log probabilities."""
    return ()


def to_step(
    ids: Sequence[int],
    reason: str | None,
    cached_tokens: int | None,
    logprobs: Sequence[records.Lp] = (),
) -> base.Step:
    """One step from what vLLM reports.

    Raises:
        GaveUp: vLLM gave the request up.
    """
    if reason in ("error", "abort"):
        raise GaveUp(reason)
    finish = None if reason is None else "length" if reason == "length" else "stop"
    return base.Step(ids, finish, cached_tokens, logprobs=logprobs)


async def run(
    llm: Any,
    prompt: dict[str, Any],
    sampling: Any,
    key: str,
    on_step: base.OnStep,
    describe: Describe = nothing,
    **further: Any,
) -> None:
    """Run one request and call `on_step` with each step. `sampling` asks for deltas. `further` are
    arguments for vLLM.

    Raises:
        GaveUp: vLLM gave the request up.
    """
    async with contextlib.aclosing(llm.generate(prompt, sampling, key, **further)) as outputs:
        async for out in outputs:  # closing the generator aborts the request
            output = out.outputs[0]
            lps = describe(output.token_ids, output.logprobs)
            step = to_step(output.token_ids, output.finish_reason, out.num_cached_tokens, lps)
            if not on_step(step) or step.finish is not None:
                return
