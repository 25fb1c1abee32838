"""What clients of drills ask for beyond text: tools, reasoning, formats, log probabilities, images.
The scripted engine obeys the commands; words are counted in tokens that depend on all before them,
images too."""

from __future__ import annotations

import random
from typing import Any, Final

from tests.support import pictures

PLACE: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer", "minimum": 1},
        "notes": {"type": "array", "items": {"type": "string"}, "minItems": 2},
    },
    "required": ["city", "days", "notes"],
    "additionalProperties": False,
}
TOOLS: Final[list[dict[str, Any]]] = [
    {"type": "function", "name": "weather", "parameters": PLACE, "strict": True},
    {"type": "function", "name": "time", "parameters": None, "strict": False},
    {"type": "custom", "name": "shell"},
]
FORMAT: Final = {"format": {"type": "json_schema", "name": "place", "schema": PLACE}}
FILLING: Final = 200_000  # bytes after a picture's end that no compression makes fewer
SEALED: Final = ["reasoning.encrypted_content"]
LOGPROBS: Final = ["message.output_text.logprobs"]

# Reasoning, a message, calls of both kinds and a message again: every change of kind.
EVERYTHING: Final[dict[str, Any]] = {
    "commands": (
        "think 60\nsay 40\ncall weather 200\ncall shell 60\nsay 60\n"
        'call time {"zone":"天"}\ncall weather 200'
    ),
    "tools": TOOLS,
    "reasoning": {"effort": "low", "summary": "auto"},
    "include": [*LOGPROBS, *SEALED],
    "top_logprobs": 2,
}


def images(rng: random.Random) -> list[bytes]:
    """One to three files, one in four of them large."""
    return [
        pictures.png(rng.getrandbits(16)) + (rng.randbytes(FILLING) if rng.random() < 0.25 else b"")
        for _ in range(rng.randrange(1, 4))
    ]


def draw(rng: random.Random, tokens: int) -> dict[str, Any]:
    """Arguments of `Crowd.ask` for one request with about so many tokens."""
    found: dict[str, Any] = {}
    commands = []
    if rng.random() < 0.4:
        found["reasoning"] = {
            "effort": rng.choice(("low", "high")),
            "summary": rng.choice((None, "auto")),
        }
        commands.append(f"think {rng.randrange(1, tokens)}")
    if rng.random() < 0.3:
        found |= {"text": FORMAT}
        commands.append(f"json {tokens}")
    else:
        found["tools"] = TOOLS
        if rng.random() < 0.2:
            found["tool_choice"] = rng.choice(("required", {"type": "function", "name": "weather"}))
        if rng.random() < 0.2:
            found["parallel_tool_calls"] = False
        if rng.random() < 0.3:
            found["stop"] = [f" {rng.choice('bdfg')}a{rng.choice('klmn')}e"]
        for _ in range(rng.randrange(1, 4)):
            what = rng.choice(("call weather", "call shell", "say", 'call time {"zone":"天"}'))
            given = "" if what.endswith("}") else f" {rng.randrange(1, tokens)}"
            commands.append(what + given)
    include = []
    if rng.random() < 0.3:
        include += LOGPROBS
        found["top_logprobs"] = rng.randrange(4)
    if "reasoning" in found and rng.random() < 0.5:
        include += SEALED
    if include:
        found["include"] = include
    return {**found, "commands": "\n".join(commands)}
