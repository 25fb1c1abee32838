"""Another model continues the text of a response whose model is gone (pure; log rule §25)."""

from __future__ import annotations

from typing import Final

import msgspec

from tailrace.protocol import fold, records

CHARACTERS: Final = "unicode"  # the tokenizer of an engine whose ids are characters


def request_allows(request: records.Request) -> bool:
    """Whether another model may continue its answer. It may not if the answer is more than its text
    (a grammar, calls, log probabilities), if the request names ids, or if it is not a dialogue."""
    constraints = request.fork, request.embed, request.format
    sampling = request.sampling
    return (
        request.generate
        and constraints == (None, None, None)
        and not request.raw
        and not request.tools
        and not request.continue_final
        and not sampling.logit_bias
        and sampling.logprobs is None
    )


def state_allows(state: fold.Fold) -> bool:
    """Whether another model can continue the accepted part: some ids, all of plain text."""
    _, tokenizer, parser = state.model
    return state.next > 0 and not parser and not state.mark_count and tokenizer != CHARACTERS


def prompt(request: records.Request, text: str) -> records.Request:
    """The request whose prompt ends with `text`, the accepted answer so far. Without any text it
    is the request itself."""
    if not text:
        return request
    answer = {"role": "assistant", "content": text}
    return msgspec.structs.replace(
        request, messages=[*request.messages, answer], continue_final=True
    )
