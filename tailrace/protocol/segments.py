"""Another model continues the text of a response whose own one is gone (pure; log rule §25)."""

from __future__ import annotations

from typing import Final

import msgspec

from tailrace.protocol import fold, records

CHARACTERS: Final = "unicode"  # the tokenizer of an engine whose ids are characters


def allowed(request: records.Request) -> bool:
    """Whether another model may continue its answer: not what its text alone does not say (a
    grammar, calls, log probabilities), not what names ids, and only an answer to a dialogue."""
    bound = request.fork, request.embed, request.format
    sampling = request.sampling
    return (
        request.generate
        and bound == (None, None, None)
        and not request.raw
        and not request.tools
        and not request.continue_final
        and not sampling.logit_bias
        and sampling.logprobs is None
    )


def possible(state: fold.Fold) -> bool:
    """Whether another model can continue what a response has: some ids, of plain text alone."""
    _, tokenizer, parser = state.model
    return state.next > 0 and not parser and not state.mark_count and tokenizer != CHARACTERS


def prompt(request: records.Request, text: str) -> records.Request:
    """The request whose prompt ends with `text`, the accepted answer so far. Without any text it
    is the request itself."""
    if not text:
        return request
    said = {"role": "assistant", "content": text}
    return msgspec.structs.replace(request, messages=[*request.messages, said], continue_final=True)
