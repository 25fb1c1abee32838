"""Which requests may be answered by a former answer, and which of them are equal (pure; log rule
§24)."""

from __future__ import annotations

import hashlib

import msgspec

from tailrace.protocol import images, records


def repeatable(sampling: records.Sampling) -> bool:
    """Whether equal prompts get equal answers, which show nothing except their text."""
    return sampling.temperature == 0 and sampling.logprobs is None


def digest(request: records.Request) -> str | None:
    """A digest of all parts of a request that determine its answer, and of who may get the answer.
    None if the answer must be generated: the request is sampled, shows log probabilities or images,
    continues another response's tokens or text, generates nothing, or asks for a new answer.

    The maximum length is not part of it, unless messages are left out because of it: an answer
    that ended by itself is the same under any bound that it does not reach.
    """
    sampling = request.sampling
    own = request.fork is None and not request.continue_final
    plain = request.generate and own and request.embed is None
    if not (plain and request.cached_answers and repeatable(sampling)):
        return None
    if images.any_in(request.messages):
        return None
    # Members keep their order in this text: a template may show it to the model.
    inputs = [
        request.owner.cache_scope,
        request.model,
        request.messages,
        msgspec.structs.replace(sampling, max_tokens=sampling.max_tokens * request.truncate),
        [request.tools, request.tool_choice, request.parallel_tool_calls, request.max_tool_calls],
        [request.format, request.reasoning, request.raw, request.truncate],
    ]
    return hashlib.blake2b(msgspec.json.encode(inputs), digest_size=20).hexdigest()
