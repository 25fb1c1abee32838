"""Calls and JSON compared with vLLM's own server, in turn: same model, engine settings and client.

The model has random weights and a template that knows tools, so the engine costs almost nothing
and answers end by their length alone. Grammars do the same on both sides; what differs is the path
of the model's output: parsing in the worker, marks in the log, events.

vLLM's own server lets a forced call have endless whitespace between its members, which the worker
does not. A random model there would write little else, and that costs the grammar almost nothing.
So in this case tokens of nothing but whitespace are forbidden to both.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, Final

from bench import load, measure, stacks, whole_path
from tailrace.local import paths

NAME: Final = "items"
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
FIELDS: Final[dict[str, dict[str, Any]]] = {
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
    settings = {
        **whole_path.SETTINGS,
        "TAILRACE_TOOL_PARSER": PARSER,
        # The other side has none, and would show reasoning as text.
        "TAILRACE_REASONING_PARSER": "none",
    }
    with stacks.together(
        stacks.tailrace(plan.scratch, engine="vllm", model=str(folder), settings=settings),
        stacks.vllm_server(plan.scratch, folder, folder.name, tool_parser=PARSER),
    ) as both:
        bias_fields = {"logit_bias": dict.fromkeys(_whitespace(folder), -100)}
        fields = {**FIELDS, CALL: FIELDS[CALL] | bias_fields}

        def cases(*streams: int) -> list[whole_path.Case]:
            return [
                (f"{case}, {count} streams", _closed(more, count, plan.pick(2, 3)))
                for case, more in fields.items()
                for count in streams
            ]

        yield from whole_path.in_turn(
            NAME, plan.rounds, both, cases(*plan.pick((16,), (1, 16, 64))), cases(16)
        )


def _closed(
    more: dict[str, Any], streams: int, each: int
) -> Callable[[stacks.Side], Coroutine[Any, Any, load.Result]]:
    def run_case(side: stacks.Side) -> Coroutine[Any, Any, load.Result]:
        # Greedy, the toy says only newlines to tools. Whitespace is shown when text follows.
        return load.closed_loop(
            whole_path.sender(side, TOKENS, temperature=1, **more), streams, each
        )

    return run_case


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
