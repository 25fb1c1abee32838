"""Bounds of the sampling parameters and of the number of tokens (pure)."""

from __future__ import annotations

import math
from typing import Annotated, Final

from msgspec import Meta

from gateway.parsing.command import MAX_DEADLINE_MS
from gateway.parsing.json_body import Body
from tailrace.protocol import errors, records
from tailrace.settings.shapes import Pool

MAX_STOPS: Final = 4
MAX_STOP_CHARS: Final = 64
MAX_LOGIT_BIAS: Final = 300
MAX_TOP_LOGPROBS: Final = 20
MAX_TOP_K: Final = 2**31 - 1

# Types of scalar fields in `shared_fields`.
TopP = Annotated[float, Meta(gt=0.0, le=1.0)]
Temperature = Annotated[float, Meta(ge=0.0, le=2.0)]
Penalty = Annotated[float, Meta(ge=-2.0, le=2.0)]
MinP = Annotated[float, Meta(ge=0.0, le=1.0)]
RepetitionPenalty = Annotated[float, Meta(gt=0.0, le=10.0)]
Deadline = Annotated[int, Meta(ge=1, le=MAX_DEADLINE_MS)]
Seed = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]


def top_k(value: int | None) -> int:
    """The number of likeliest tokens; 0 for all. Clients of vLLM also write -1 for all.

    Raises:
        errors.ApiError: it is out of range.
    """
    if value is not None and not -1 <= value <= MAX_TOP_K:
        raise errors.out_of_range("top_k", -1, MAX_TOP_K)
    return max(0, value or 0)


def min_tokens(value: int | None, max_tokens: int) -> int:
    """
    Raises:
        errors.ApiError: not from 0 to the bound of the answer.
    """
    if value is not None and not 0 <= value <= max_tokens:
        raise errors.out_of_range("min_tokens", 0, max_tokens)
    return value or 0


def top_logprobs(value: int | None, name: str = "top_logprobs") -> int:
    """
    Raises:
        errors.ApiError: not a number of tokens that engines support.
    """
    if value is not None and not 0 <= value <= MAX_TOP_LOGPROBS:
        raise errors.out_of_range(name, 0, MAX_TOP_LOGPROBS)
    return value or 0


def token_bound(value: int | None, name: str, pool: Pool) -> int | None:
    """A number of tokens to generate, bounded by the pool.

    Raises:
        errors.ApiError: not from 1 to the pool's longest answer.
    """
    if value is not None and not 1 <= value <= pool.longest_answer:
        raise errors.out_of_range(name, 1, pool.longest_answer)
    return value


def stops(body: Body) -> tuple[str, ...]:
    """The stop strings.

    Raises:
        errors.ApiError: 400 naming the field.
    """
    value = body.get("stop")
    if value is None:
        return ()
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(s, str) for s in texts):
        raise errors.invalid_type("stop", "a string or an array of strings")
    if len(texts) > MAX_STOPS or not all(0 < len(s) <= MAX_STOP_CHARS for s in texts):
        raise errors.invalid_value(
            "stop",
            (
                f"Invalid 'stop': expected at most {MAX_STOPS} sequences of 1 to "
                f"{MAX_STOP_CHARS} characters."
            ),
        )
    return tuple(texts)


def logit_bias(body: Body) -> dict[str, float]:
    """The bias by token id; ids are decimal text.

    Raises:
        errors.ApiError: 400 naming the field.
    """
    value = body.get("logit_bias")
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise errors.invalid_type("logit_bias", "an object of token ids and numbers")
    if len(value) > MAX_LOGIT_BIAS:
        raise errors.invalid_value(
            "logit_bias", f"Invalid 'logit_bias': expected at most {MAX_LOGIT_BIAS} entries."
        )
    for token, bias in value.items():
        if not (token.isascii() and token.isdigit() and len(token) <= 7):
            raise errors.invalid_value(
                "logit_bias", "Invalid 'logit_bias': keys must be token ids."
            )
        if type(bias) not in (int, float) or not math.isfinite(bias) or not -100 <= bias <= 100:
            raise errors.invalid_value(
                "logit_bias", "Invalid 'logit_bias': values must be numbers from -100 to 100."
            )
    return {token: float(bias) for token, bias in value.items()}


def check_beside_format(parameters: records.Sampling, what: str) -> None:
    """Check that no field makes a text continue after the end of its format, where the engine has
    no allowed token. (A stop string may end it earlier: that is the client's choice.) `what`: the
    format, for the message.

    Raises:
        errors.ApiError: 400 naming the field.
    """
    for name in ("min_tokens", "ignore_eos"):
        if getattr(parameters, name):
            raise errors.invalid_value(name, f"'{name}' cannot be used with {what}.")
