"""Calls and JSON beside vLLM's own server, in turn: same model, engine settings and client.

The model has random weights and a template that knows tools, so the engine costs almost nothing
and answers end by their length alone. Grammars do the same on both sides; what differs is the path
of what the model makes: parsing in the worker, marks in the log, events.

vLLM's own server lets a forced call have endless whitespace between its members, which the worker
does not. A random model there would write little else, and that costs the grammar almost nothing.
So in this case tokens of nothing but whitespace are forbidden to both.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import uvloop

from bench import load, measure, stacks, whole_path
from tailrace.local import paths

NAME: Final = "items_beside"
OVER, UNDER = stacks.OURS, stacks.THEIRS
PLOTS: Final = ("tokens_per_s", "cpu_servers_us_per_token", "first_p50_ms")
TOKENS: Final = 128
PARSER: Final = "hermes"
NOTES: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "maxLength": 80},
        "notes": {
            "type": "array",
            "items": {"type": "string", "maxLength": 80},
            "minItems": 40,
        },
    },
    "required": ["title", "notes"],
    "additionalProperties": False,
}
FUNCTION: Final = {"name": "write", "description": "Write.", "parameters": NOTES, "strict": True}
TOOLS: Final = [{"type": "function", "function": FUNCTION}]
# As byte-level tokenizers write space, newline, tab and carriage return.
WHITESPACE: Final = frozenset("ĠĊĉč")
CALL: Final = "one call"
CASES: Final[dict[str, dict[str, Any]]] = {
    "plain": {},
    "JSON schema": {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "notes", "schema": NOTES, "strict": True},
        }
    },
    "tools offered": {"tools": TOOLS},
    CALL: {
        "tools": TOOLS,
        "tool_choice": {"type": "function", "function": {"name": "write"}},
    },
}


def run(plan: measure.Plan, _shared: Callable[[], stacks.Side]) -> Iterator[measure.Row]:
    """Rows of both sides, in the order A B, B A. Raises stacks.NotHere."""
    folder = _model(plan.scratch)
    with stacks.together(
        stacks.tailrace(
            plan.scratch,
            engine="vllm",
            model=str(folder),
            settings={
                "TAILRACE_SESSION_TIMEOUT_MS": str(whole_path.FROZEN_MS),
                "TAILRACE_TOOL_PARSER": PARSER,
                # The other side has none, and would show as text what is reasoning here.
                "TAILRACE_REASONING_PARSER": "none",
            },
        ),
        stacks.vllm_server(plan.scratch, folder, folder.name, tool_parser=PARSER),
    ) as (ours, theirs):
        biased = {"logit_bias": dict.fromkeys(_whitespace(folder), -100)}
        cases = {**CASES, CALL: CASES[CALL] | biased}
        for number in range(-1, plan.rounds):
            for case, fields in cases.items():
                for streams in (16,) if number < 0 else plan.pick((16,), (1, 16, 64)):
                    each = plan.pick(2, 3)
                    for side in (ours, theirs) if number % 2 == 0 else (theirs, ours):
                        with stacks.frozen(theirs if side is ours else ours):
                            uvloop.run(load.closed(_ask(side, {}, 2), 1, 1))  # wakes it up
                            with side.meter() as meter:
                                asked = load.closed(_ask(side, fields, TOKENS), streams, each)
                                result = uvloop.run(asked)
                        values = {**result.values(), **meter.per(result.tokens, "us_per_token")}
                        if number >= 0:  # the first pass compiles grammars
                            name = f"{case}, {streams} streams"
                            yield measure.Row(NAME, name, side.name, number, values)


def _model(scratch: Path) -> Path:
    if not stacks.ENGINE_PYTHON.exists():
        raise stacks.NotHere("the engine environment (make install)")
    folder = scratch / "toy-tools"
    if not folder.exists():
        subprocess.run(
            [
                stacks.ENGINE_PYTHON,
                "-m",
                "tests.support.toy_tools",
                stacks.model_folder(),
                folder,
            ],
            cwd=paths.ROOT,
            env=stacks.environment(),
            check=True,
            timeout=300,
        )
    return folder


def _whitespace(folder: Path) -> list[str]:
    """Ids of the tokens that are nothing but whitespace, as `logit_bias` names them."""
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    return [str(i) for token, i in vocabulary.items() if token and set(token) <= WHITESPACE]


def _ask(side: stacks.Side, fields: dict[str, Any], tokens: int) -> load.Ask:
    async def ask(number: int, due: float) -> load.Answer:
        question = whole_path.PROMPTS[number % len(whole_path.PROMPTS)]
        body: dict[str, Any] = {
            "model": side.model,
            "messages": [{"role": "user", "content": question}],
            "max_tokens": tokens,
            # Greedy, the toy says only newlines to tools. Whitespace is shown when text follows.
            "temperature": 1,
            "stream": True,
            "stream_options": {"include_usage": True},
            **fields,
        }
        return await load.stream(side.url, "POST", "/v1/chat/completions", side.headers, body, due)

    return ask
