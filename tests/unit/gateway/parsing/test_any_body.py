"""Any JSON is a command or a documented error, in both APIs and with every feature."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import hypothesis
import hypothesis.strategies as st
import msgspec

from gateway.parsing import chat_api, command, json_body, responses_api
from tailrace.protocol import errors, records
from tests.unit.gateway.parsing.parsers import POOLS

CODES = {
    "context_length_exceeded",
    "invalid_json",
    "invalid_type",
    "invalid_value",
    "missing_required_parameter",
    "model_not_found",
    "unsupported_parameter",
    "unsupported_value",
}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "a": {"type": "integer", "minimum": 1, "exclusiveMaximum": 9},
        "b": {"anyOf": [{"$ref": "#/$defs/x"}, {"type": "null"}]},
        "c": {"type": "array", "items": {"type": "string", "pattern": "^a{1,3}$"}, "minItems": 1},
        "d": {"oneOf": [{"const": 1}, {"enum": ["x", "y"]}]},
        "e": {"type": "object", "propertyNames": {"maxLength": 3}},
    },
    "required": ["a"],
    "additionalProperties": False,
    "$defs": {"x": {"type": ["string", "integer"], "format": "date", "maximum": 3}},
}
FUNCTION = {"name": "f", "description": "d", "parameters": SCHEMA, "strict": True}
RESPONSES: dict[str, Any] = {
    "model": "small",
    "input": [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        {"type": "item_reference", "id": "msg_1"},
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [{"type": "summary_text", "text": "s"}],
            "content": [{"type": "reasoning_text", "text": "t"}],
            "encrypted_content": "x",
        },
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "namespace": "n"},
        {"type": "function_call_output", "call_id": "c", "output": "x"},
        {"type": "custom_tool_call", "call_id": "d", "name": "g", "input": "x"},
        {"type": "compaction", "id": "cmp_1", "encrypted_content": "x"},
    ],
    "tools": [
        {"type": "function", **FUNCTION},
        {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "f"}]},
        {"type": "web_search"},
        {
            "type": "custom",
            "name": "g",
            "format": {"type": "grammar", "syntax": "regex", "definition": "a"},
        },
    ],
    "tool_choice": {
        "type": "allowed_tools",
        "mode": "auto",
        "tools": [{"type": "function", "name": "f"}, {"type": "namespace", "name": "n"}],
    },
    "text": {
        "format": {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True},
        "verbosity": "low",
    },
    "reasoning": {"effort": "low", "summary": "auto"},
    "include": ["message.output_text.logprobs"],
    "top_logprobs": 3,
    "max_tool_calls": 3,
    "parallel_tool_calls": False,
    "top_k": 1,
    "min_p": 0.5,
    "repetition_penalty": 1.5,
    "logit_bias": {"1": 1},
    "metadata": {"a": "b"},
}
CHAT: dict[str, Any] = {
    "messages": [
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "t",
            "tool_calls": [
                {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}},
                {"id": "d", "type": "custom", "custom": {"name": "g", "input": "x"}},
            ],
        },
        {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "x"}]},
        {"role": "assistant", "content": None, "refusal": "no"},
    ],
    "tools": [{"type": "function", "function": FUNCTION}],
    "tool_choice": {"type": "function", "function": {"name": "f"}},
    "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}},
    "n": 2,
    "logprobs": True,
    "top_logprobs": 2,
    "reasoning_effort": "low",
    "verbosity": "low",
    "stream_options": {"include_usage": True},
}
VLLM: dict[str, Any] = {
    "messages": [{"role": "user", "content": "hi"}],
    "structured_outputs": {"choice": ["a", "b"]},
    "min_tokens": None,
    "ignore_eos": False,
}
OTHER: dict[str, Any] = {"input": "hi", "guided_json": json.dumps(SCHEMA), "stop": []}

Path = tuple[str | int, ...]


def paths(value: Any, path: Path = ()) -> Iterator[Path]:
    """The paths of all members."""
    members: list[tuple[str | int, Any]] = []
    if isinstance(value, dict):
        members = list(value.items())
    elif isinstance(value, list):
        members = list(enumerate(value))
    for name, each in members:
        yield (*path, name)
        yield from paths(each, (*path, name))


BASES = [RESPONSES, CHAT, VLLM, OTHER]
WORDS = sorted(
    {str(part) for base in BASES for path in paths(base) for part in path}
    | {"guided_regex", "guided_choice", "guided_grammar", "grammar", "multipleOf", "allOf", "not"}
    | {
        "type",
        "web_search",
        "mcp",
        "required",
        "auto",
        "function",
        "custom",
        "text",
        "#",
        "#/$defs/x",
    }
)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(WORDS)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=3)
    ),
    max_leaves=8,
)


@st.composite
def bodies(draw: st.DrawFn) -> dict[str, Any]:
    """A body that clients send, changed at some places."""
    body: dict[str, Any] = copy.deepcopy(draw(st.sampled_from(BASES)))
    for _ in range(draw(st.integers(0, 3))):
        every = list(paths(body))
        if not every:
            break
        *way, last = draw(st.sampled_from(every))
        place: Any = body
        for part in way:
            place = place[part]
        if draw(st.booleans()):
            place[last] = draw(values)
        elif isinstance(place, dict):
            place[draw(st.sampled_from(WORDS))] = place.pop(last)
        else:
            del place[last]
    return body


def check(body: dict[str, Any]) -> None:
    outcomes: list[command.Create | errors.ApiError] = []
    for parse in (responses_api.parse, chat_api.parse):
        try:
            outcomes.append(parse(body, POOLS))
        except errors.ApiError as error:
            outcomes.append(error)
    for outcome in outcomes:
        if isinstance(outcome, errors.ApiError):
            assert outcome.status in (400, 404)
            assert outcome.code in CODES
            assert outcome.param is None or len(outcome.param) < 2500
            msgspec.json.encode(errors.ws_event(outcome))
            continue
        # What becomes part of a record fits into one.
        copy = {
            "messages": outcome.input,
            "items": outcome.items,
            "tools": outcome.tools.prompt,
            "format": outcome.format.engine if outcome.format else None,
            "echo": outcome.echo,
        }
        assert depth(msgspec.json.decode(msgspec.json.encode(copy))) <= records.MAX_DEPTH - 4
        assert outcome.characters >= 0


def depth(value: Any) -> int:
    inner = (
        value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    )
    return 0 if inner is None else 1 + max((depth(each) for each in inner), default=0)


def test_the_bodies_themselves_are_commands() -> None:
    for body, parse in ((RESPONSES, responses_api.parse), (CHAT, chat_api.parse)):
        parse(body, POOLS)


@hypothesis.given(bodies())
@hypothesis.settings(max_examples=300, deadline=None)
def test_a_body_that_was_changed_is_a_command_or_a_documented_error(body: dict[str, Any]) -> None:
    check(json_body.decode(json.dumps(body)))


@hypothesis.given(st.dictionaries(st.sampled_from(WORDS), values, max_size=6))
def test_any_json_is_a_command_or_a_documented_error(body: dict[str, Any]) -> None:
    check({"input": "hi", "messages": [{"role": "user", "content": "hi"}], **body})


def test_a_deep_body_is_refused() -> None:
    deep = json.loads("[" * 300 + "]" * 300)
    for body in (
        {"tools": [{"type": "web_search", "filters": deep}]},
        {"tools": [{"type": "function", "name": "f", "parameters": {"items": deep}}]},
        {"guided_json": {"default": deep}},
        {
            "tools": [{"type": "function", "name": "f"}],
            "tool_choice": {
                "type": "allowed_tools",
                "mode": "auto",
                "tools": [{"type": "function", "name": "f", "x": deep}],
            },
        },
    ):
        check({"input": "hi", "messages": [{"role": "user", "content": "hi"}], **body})
