"""What clients ask a real model of random weights for: text, reasoning, calls and formats. A bias
makes it begin a call or end its reasoning now and then; grammars do the rest."""

from __future__ import annotations

import random
from typing import Any, Final

from tests.support import schemas, toy_tools

# So that one of about 50 draws from all words is the wanted one.
NOW_AND_THEN: Final = 7.0
NO_EOS: Final = {"0": -100, "2": -100}  # such an answer ends by its length alone
_PLAN: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 60},
        "days": {"type": "integer", "minimum": 1, "maximum": 99},
        "steps": {
            "type": "array",
            "items": {"type": "string", "maxLength": 40},
            "minItems": 6,
            "maxItems": 12,
        },
    },
    "required": ["city", "days", "steps"],
    "additionalProperties": False,
}
TOOLS: Final[list[dict[str, Any]]] = [
    {"type": "function", "name": "plan", "parameters": _PLAN, "strict": True},
    {
        "type": "function",
        "name": "now",
        "parameters": schemas.SCHEMAS["one of some"],
        "strict": True,
    },
    {"type": "custom", "name": "shell"},
]
KINDS: Final = ("text", "call", "calls", "format", "reasoning and call", "reasoning and format")


def draw(rng: random.Random) -> dict[str, Any]:
    """Arguments of `Crowd.ask`."""
    bound = rng.randrange(150, 450)
    found: dict[str, Any] = {"tokens": bound, "max_output_tokens": bound, "temperature": 1.0}
    kind = rng.choice(KINDS)
    bias: dict[str, float] = {}
    if kind == "text":
        bias = {} if rng.random() < 0.3 else dict(NO_EOS)
    if "reasoning" in kind:
        bias[str(toy_tools.THINK_END)] = NOW_AND_THEN
    else:
        found["reasoning"] = {"effort": "none"}
    if "format" in kind:
        schema = _PLAN if rng.random() < 0.7 else schemas.SCHEMAS["list of objects"]
        found["text"] = {"format": {"type": "json_schema", "name": "plan", "schema": schema}}
    if "call" in kind:
        found["tools"] = TOOLS
        if kind == "calls":  # text, and calls in it
            bias |= {str(toy_tools.CALL): NOW_AND_THEN, **NO_EOS}
            found["max_tool_calls"] = rng.randrange(2, 5)
        else:
            named = {"type": "function", "name": "plan"}
            found["tool_choice"] = rng.choice(("required", named, named))
        if rng.random() < 0.2:
            found["parallel_tool_calls"] = False
    if rng.random() < 0.2:
        found |= {"include": ["message.output_text.logprobs"], "top_logprobs": rng.randrange(3)}
    return {**found, "logit_bias": bias}
