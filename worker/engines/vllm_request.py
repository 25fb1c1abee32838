"""The request of one attempt to vLLM: the prompt and the sampling parameters.

To vLLM the accepted ids of former attempts are a part of the prompt. So parameters that count
output tokens are corrected by their number here.
"""

from __future__ import annotations

from typing import Any

from worker.engines import base, vllm_formats, vllm_grammar


def prompt(job: base.GenerationInput) -> dict[str, Any]:
    """The model's input: the prompt and all accepted ids, in vLLM's form."""
    return {
        "type": "token",
        "prompt_token_ids": [*job.prompt_ids, *job.output_so_far],
        # The timing of a shared prefix cache would reveal one tenant's prompts to another.
        "cache_salt": job.request.owner.cache_scope,
    }


def sampling(job: base.GenerationInput, constraint: Any = None, under_it: int = 0) -> Any:
    """vLLM's `SamplingParams` of this attempt: one delta per step, without text. `constraint`:
    vLLM's `StructuredOutputsParams`; the last `under_it` accepted ids were made under it."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    s, count = job.request.sampling, len(job.output_so_far)
    return SamplingParams(
        max_tokens=job.max_tokens,
        min_tokens=min(max(0, s.min_tokens - count + job.copied), job.max_tokens),
        ignore_eos=s.ignore_eos,
        temperature=s.temperature,
        top_p=s.top_p,
        top_k=s.top_k,
        min_p=s.min_p,
        presence_penalty=s.presence_penalty,
        frequency_penalty=s.frequency_penalty,
        repetition_penalty=s.repetition_penalty,
        seed=None if s.seed is None else s.seed + count,
        logit_bias={int(k): v for k, v in s.logit_bias.items()} or None,
        logprobs=s.logprobs,
        structured_outputs=constraint,
        extra_args=vllm_grammar.arguments(under_it),
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
    )


def canary(count: int) -> Any:
    """For an answer that can only be `vllm_grammar.CANARY`; the prompt ends with `count` ids of
    it."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    text = vllm_grammar.CANARY
    return SamplingParams(
        max_tokens=len(text) + 1,
        temperature=0.0,
        structured_outputs=vllm_formats.constraint({"type": "choice", "choices": [text]}),
        extra_args=vllm_grammar.arguments(count),
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
    )
