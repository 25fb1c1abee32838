"""What a request may require of an engine, field by field, and how a worker tries each (pure).

`TABLE` is the one list. A worker runs a small request of each row before it takes requests
(`worker.trials.field_trials`), and publishes the names of those that its engine does not take.
Gateways and workers find the rows that a request uses with `rows_for`. A member of
`records.Sampling` or a kind of format that has no row fails a test.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from tailrace.protocol import records

MAX_TOKENS: Final = 4  # of an answer that is only a trial
# The longest list that the API takes: an engine may be limited to fewer.
MOST_LOGPROBS: Final = 20
_OWNER: Final = records.Owner("tailrace", "trial")
_USUAL: Final = records.Sampling(1)
_SCHEMA: Final = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}
_TOOL: Final = {
    "type": "function",
    "function": {
        "name": "ring_bell",
        "description": "Rings the bell.",
        "parameters": {"type": "object", "properties": {}, "additionalProperties": False},
        "strict": True,
    },
}


class EngineField(NamedTuple):
    """One field or format.

    Attributes:
        name: what heartbeats, results and log lines call it.
        member: of the request (a dotted path) that asks for it.
        applies: whether a request uses it.
        trial: members of a request that does, with ordinary values.
    """

    name: str
    member: str
    applies: Callable[[records.Request], bool]
    trial: Mapping[str, Any]


def _sampling(name: str, value: Any) -> EngineField:
    usual = getattr(_USUAL, name)
    return EngineField(
        name,
        name,
        lambda request: getattr(request.sampling, name) != usual,
        {"sampling": records.Sampling(MAX_TOKENS, **{name: value})},
    )


def _format(kind: str, **more: Any) -> EngineField:
    return EngineField(
        kind,
        "format",
        lambda request: request.format is not None and request.format["type"] == kind,
        {"format": {"type": kind, **more}},
    )


def _custom(name: str, form: Mapping[str, Any]) -> EngineField:
    def applies(request: records.Request) -> bool:
        return any(_custom_format(tool) == form["type"] for tool in request.tools)

    tool = {"name": "note", "description": "Takes a note.", "format": form}
    return EngineField(name, "tools", applies, {"tools": [{"type": "custom", "custom": tool}]})


def _custom_format(tool: Mapping[str, Any]) -> str | None:
    """The kind of a custom tool's input; None for another tool."""
    if tool.get("type") != "custom":
        return None
    return str((tool["custom"].get("format") or {}).get("type", "text"))


TABLE: Final[tuple[EngineField, ...]] = (
    _sampling("temperature", 0.7),
    _sampling("top_p", 0.9),
    _sampling("top_k", 20),
    _sampling("min_p", 0.05),
    _sampling("presence_penalty", 0.5),
    _sampling("frequency_penalty", 0.5),
    _sampling("repetition_penalty", 1.1),
    _sampling("logit_bias", {"1": 1.0}),
    _sampling("seed", 7),
    _sampling("stop", ("###",)),
    _sampling("min_tokens", 2),
    _sampling("ignore_eos", True),
    _sampling("logprobs", 0),
    EngineField(
        "top_logprobs",
        "logprobs",
        lambda request: bool(request.sampling.logprobs),
        {"sampling": records.Sampling(MAX_TOKENS, logprobs=MOST_LOGPROBS)},
    ),
    _format("json_schema", schema=_SCHEMA, strict=True),
    _format("json_object"),
    _format("regex", pattern="[a-z]{1,8}"),
    _format("choice", choices=["yes", "no"]),
    _format("grammar", definition='root ::= "yes" | "no"'),
    EngineField("tools", "tools", lambda request: bool(request.tools), {"tools": [_TOOL]}),
    EngineField(
        "tool_choice",
        "tool_choice",
        lambda request: request.tool_choice.mode == "required",
        {"tools": [_TOOL], "tool_choice": records.ToolChoice("required")},
    ),
    _custom("custom_tools", {"type": "text"}),
    _custom(
        "custom_tool_grammars",
        {"type": "grammar", "syntax": "regex", "definition": "[a-z]{1,8}"},
    ),
    EngineField(
        "effort",
        "reasoning.effort",
        lambda request: (request.reasoning or {}).get("effort") not in (None, "none"),
        {"reasoning": {"effort": "low"}},
    ),
)


def rows_for(request: records.Request) -> list[EngineField]:
    """The rows that a request uses."""
    if request.embed is not None or not request.generate:
        return []
    return [row for row in TABLE if row.applies(request)]


def trial(row: EngineField | None = None) -> records.Request:
    """A small request that uses a row; None: a plain one."""
    plain = records.Request(
        rid="trial",
        owner=_OWNER,
        model="",
        messages=[{"role": "user", "content": "Hello."}],
        sampling=records.Sampling(MAX_TOKENS),
        echo={},
        store=False,
    )
    return plain if row is None else msgspec.structs.replace(plain, **row.trial)


def digest() -> str:
    """A digest of all trials: results under another digest do not count."""
    trials = [msgspec.json.encode([row.name, row.trial]) for row in TABLE]
    return hashlib.blake2b(b"\n".join(trials), digest_size=8).hexdigest()
