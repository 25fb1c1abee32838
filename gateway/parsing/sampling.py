"""How the engine picks tokens, and how many: bounds of the sampling parameters (pure)."""

from __future__ import annotations

import math
from typing import Annotated, Final

from msgspec import Meta

from gateway.parsing.json_body import Body
from tailrace.protocol import errors
from tailrace.settings.shapes import Pool

MAX_STOPS: Final = 4
MAX_STOP_CHARS: Final = 64
MAX_LOGIT_BIAS: Final = 300

# Of scalar fields; `shared_fields` names them.
TopP = Annotated[float, Meta(gt=0.0, le=1.0)]
Temperature = Annotated[float, Meta(ge=0.0, le=2.0)]
Penalty = Annotated[float, Meta(ge=-2.0, le=2.0)]
Seed = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]


def token_bound(value: int | None, name: str, pool: Pool) -> int | None:
    """A number of tokens to generate, which the pool bounds.

    Raises:
        errors.ApiError: not from 1 to the model's length.
    """
    if value is not None and not 1 <= value <= pool.max_model_len:
        raise errors.out_of_range(name, 1, pool.max_model_len)
    return value


def stops(body: Body) -> tuple[str, ...]:
    """The stop strings.

    Raises:
        errors.ApiError: 400 naming the field.
    """
    value = body.get("stop")
    if value is None:
        return ()
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, list) or not all(isinstance(s, str) for s in found):
        raise errors.invalid_type("stop", "a string or an array of strings")
    if len(found) > MAX_STOPS or not all(0 < len(s) <= MAX_STOP_CHARS for s in found):
        raise errors.invalid_value(
            "stop",
            (
                f"Invalid 'stop': expected at most {MAX_STOPS} sequences of 1 to "
                f"{MAX_STOP_CHARS} characters."
            ),
        )
    return tuple(found)


def logit_bias(body: Body) -> dict[str, float]:
    """The bias of token ids, which are decimal text.

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
