"""Items: tokens of calls, of reasoning, of a JSON format, and with log probabilities, each beside
as many tokens of plain text, in turn, on one deployment with the scripted engine.

So it shows what marks, parsing and more events per answer cost; the engine's own grammar is not in
it. A value for a schema has tokens of its own (brackets and names), so both sides are compared by
token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import uvloop

from bench import load, measure, scripted, stacks

NAME: Final = "items"
OVER, UNDER = "with items", "plain"
PLOTS: Final = ("tokens_per_s", "cpu_servers_us_per_token", "first_p50_ms")
TOKENS: Final = 200
PACE_MS: Final = 4.0  # so that the engine is no bound and frames are as in use
NOTES: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"title": {"type": "string"}, "notes": {"type": "string"}},
    "required": ["title", "notes"],
    "additionalProperties": False,
}
TOOLS: Final = [{"type": "function", "name": "write", "parameters": NOTES, "strict": True}]
# What is asked for, and the line of the question that makes the engine do it.
CASES: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "tools offered": ("say {}", {"tools": TOOLS}),
    "one call": ("call write {}", {"tools": TOOLS}),
    "reasoning": ("think {}", {"reasoning": {"effort": "low"}}),
    "format": (
        "json {}",
        {"text": {"format": {"type": "json_schema", "name": "notes", "schema": NOTES}}},
    ),
    "log probabilities, 5 likely": (
        "",
        {"include": ["message.output_text.logprobs"], "top_logprobs": 5},
    ),
}


def run(plan: measure.Plan, shared: Callable[[], stacks.Side]) -> Iterator[measure.Row]:
    """Rows of both sides, in the order A B, B A."""
    side = shared()
    for number in range(plan.rounds):
        for case, (command, fields) in CASES.items():
            for streams in plan.pick((16,), (1, 16, 64)):
                each = plan.pick(2, 3)
                sides = {OVER: _asking(side, command, fields), UNDER: _asking(side, "", {})}
                for name in (OVER, UNDER) if number % 2 == 0 else (UNDER, OVER):
                    with side.meter() as meter:
                        result = uvloop.run(load.closed(sides[name], streams, each))
                    values = {**result.values(), **meter.per(result.tokens, "us_per_token")}
                    yield measure.Row(NAME, f"{case}, {streams} streams", name, number, values)


def _asking(side: stacks.Side, command: str, fields: dict[str, Any]) -> load.Ask:
    async def ask(number: int, due: float) -> load.Answer:
        body = scripted.body(side, number, TOKENS, PACE_MS, stream=True, **fields)
        body["input"] += f"\n{command.format(TOKENS)}"
        if command:
            body["max_output_tokens"] = 2 * TOKENS
        return await load.stream(side.url, "POST", "/v1/responses", side.headers, body, due)

    return ask
