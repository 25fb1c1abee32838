"""The prompt of a request, without its oldest messages if it is too long for the model (log rule
§21)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from tailrace.protocol import records, truncation
from worker.engines import base

# An answer needs room too. At most this share of the model's length is kept free for it.
ANSWER_SHARE: Final = 4


class Prompt(NamedTuple):
    """A prompt's ids, and how many messages it lacks."""

    ids: list[int]
    dropped: int = 0


async def encode(engine: base.Engine, request: records.Request, prior_drop: int | None) -> Prompt:
    """The prompt of a request, with as few messages left out as possible.

    Args:
        request: with its files.
        prior_drop: how many the first claim leaves out; None before the first claim.

    Raises:
        Refused: it is too long even without all messages that may be left out, or cannot be served.
    """
    if not request.truncate:
        return Prompt(await engine.encode(request))
    if prior_drop is not None:
        return Prompt(await engine.encode(without_dropped(request, prior_drop)), prior_drop)
    answer_tokens = min(request.sampling.max_tokens, engine.max_model_len // ANSWER_SHARE)
    counts: Sequence[int] = truncation.counts(request.messages)
    # The longest prompt that fits so far. Fewer messages never make a longer prompt.
    best = await _fit(engine, request, 0, answer_tokens)
    if best is not None:
        return best
    least = await engine.encode(without_dropped(request, counts[-1]))  # the error states its length
    best = Prompt(least, counts[-1])
    low, high = 0, len(counts) - 1
    while high - low > 1:
        middle = (low + high) // 2
        candidate = await _fit(engine, request, counts[middle], answer_tokens)
        if candidate is None:
            low = middle
        else:
            best, high = candidate, middle
    return best


def without_dropped(request: records.Request, dropped: int) -> records.Request:
    """The request for the engine, without the dropped messages."""
    if not dropped:
        return request
    return msgspec.structs.replace(request, messages=truncation.prompt(request, dropped))


async def _fit(
    engine: base.Engine, request: records.Request, dropped: int, answer_tokens: int
) -> Prompt | None:
    """The prompt if it leaves room for `answer_tokens`, else None."""
    try:
        ids = await engine.encode(without_dropped(request, dropped))
    except base.Refused as error:
        if error.code != "context_length_exceeded":
            raise
        return None
    return Prompt(ids, dropped) if len(ids) + answer_tokens <= engine.max_model_len else None
