"""What a response costs, by the prices of the pools that answered it (pure)."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import NamedTuple

from tailrace.protocol import fold, records
from tailrace.settings.shapes import Price

Prices = Callable[[str], Price | None]
"""Gives the price of a model's tokens now; None where its pool has no price."""


class Cost(NamedTuple):
    """In billionths of the currency that prices are written in."""

    input_nano: int = 0
    output_nano: int = 0


def response_cost(request: records.Request, state: fold.Fold, price: Prices) -> Cost | None:
    """The cost of a response that has ended, whatever its status; None where a model that answered
    it has no price.

    The prompt is that of the first segment, because `usage` counts no other one (log rule §25).
    The tokens of each segment have the price of its own model. A cached answer costs nothing: no
    engine generated it.
    """
    assert state.ended is not None
    usage = state.ended.usage
    prices = [price(each.served or request.model) for each in state.former]
    prices.append(price(state.served or request.model))
    rates = [each for each in prices if each is not None]
    if len(rates) < len(prices):
        return None
    if state.answer_of:
        return Cost()
    # Bounded: a closing claim of an engine that cannot count tokens says that there are none.
    ends = [min(each.ids, usage.output_tokens) for each in state.former]
    ends = [0, *ends, usage.output_tokens]
    lengths = [end - begin for begin, end in itertools.pairwise(ends)]
    output = sum(each.output_nano(tokens) for each, tokens in zip(rates, lengths, strict=True))
    return Cost(rates[0].input_nano(usage.input_tokens), output)
