"""The table of fields that an engine may not take: complete, and each trial uses its own row."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from gateway.parsing import chat_api, command, formats, sampling, shared_fields
from tailrace.protocol import engine_fields, features, records
from tests.contract import test_vllm_fields
from tests.support import cases
from tests.unit.gateway.parsing.parsers import chat, responses
from tests.unit.gateway.requests.test_requirements import request_of

# Fields of the API that ask an engine for nothing of its own: how long an answer is, how many there
# are, what they are called, where they go, and what the worker does by itself.
NOT_THE_ENGINES: Final = frozenset(
    [
        "model",
        "stream",
        "stream_options",
        "user",
        "n",
        "max_tokens",
        "max_completion_tokens",
        "max_output_tokens",
        "messages",
        "input",
        "prompt",
        "echo",
        "instructions",
        "background",
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "include",
        "prompt_cache_key",
        "previous_response_id",
        "truncation",
        "deadline_ms",
        "degrade",
        "cached_answers",
    ]
)
FUNCTION: Final = {"type": "function", "function": {"name": "now"}}
CUSTOM: Final = {"type": "custom", "custom": {"name": "note"}}
SYNTAX: Final = {"syntax": "regex", "definition": "[a-z]+"}
WITH_GRAMMAR: Final = {
    "type": "custom",
    "custom": {"name": "note", "format": {"type": "grammar", "grammar": SYNTAX}},
}
SCHEMA: Final = {"type": "object", "properties": {}, "additionalProperties": False}

# Of a Chat Completions body: the fields that ask for something, and the rows that they use.
ASKED: Final[list[tuple[dict[str, Any], list[str]]]] = [
    ({}, []),
    ({"temperature": 0}, ["temperature"]),
    ({"top_p": 0.5}, ["top_p"]),
    ({"top_k": 5}, ["top_k"]),
    ({"min_p": 0.2}, ["min_p"]),
    ({"presence_penalty": 1}, ["presence_penalty"]),
    ({"frequency_penalty": -1}, ["frequency_penalty"]),
    ({"repetition_penalty": 1.2}, ["repetition_penalty"]),
    ({"logit_bias": {"7": -5}}, ["logit_bias"]),
    ({"seed": 0}, ["seed"]),
    ({"stop": "end"}, ["stop"]),
    ({"min_tokens": 3}, ["min_tokens"]),
    ({"ignore_eos": True}, ["ignore_eos"]),
    ({"logprobs": True}, ["logprobs"]),
    ({"logprobs": True, "top_logprobs": 2}, ["logprobs", "top_logprobs"]),
    ({"response_format": {"type": "json_object"}}, ["json_object"]),
    ({"guided_json": SCHEMA}, ["json_schema"]),
    ({"structured_outputs": {"regex": "a+"}}, ["regex"]),
    ({"guided_choice": ["a"]}, ["choice"]),
    ({"guided_grammar": 'root ::= "a"'}, ["grammar"]),
    ({"tools": [FUNCTION]}, ["tools"]),
    ({"tools": [FUNCTION], "parallel_tool_calls": False}, ["tools"]),
    ({"tools": [FUNCTION], "tool_choice": "required"}, ["tools", "tool_choice"]),
    ({"tools": [CUSTOM]}, ["tools", "custom_tools"]),
    ({"tools": [WITH_GRAMMAR]}, ["tools", "custom_tool_grammars"]),
    ({"reasoning_effort": "high"}, ["effort"]),
    ({"chat_template_kwargs": {"enable_thinking": False}}, []),
]


def used(create: command.Create) -> list[str]:
    return [row.name for row in engine_fields.rows_for(request_of(create))]


@cases.each(("body", "rows"), ASKED)
def test_a_field_of_the_api_uses_its_row(body: dict[str, Any], rows: list[str]) -> None:
    assert used(chat(body)) == rows


def test_each_row_is_one_that_clients_can_ask_for() -> None:
    assert {name for _, rows in ASKED for name in rows} == {r.name for r in engine_fields.TABLE}


def test_every_sampling_parameter_has_a_row() -> None:
    """A parameter that is added has to be tried, too."""
    rows = {row.name for row in engine_fields.TABLE}
    assert {*records.Sampling.__struct_fields__} - rows == {"max_tokens"}


def test_every_kind_of_format_has_a_row() -> None:
    kinds = {"json_schema"} | set(formats.STRUCTURED) - {"json"}
    assert kinds == {row.name for row in engine_fields.TABLE if row.member == "format"}


def test_every_field_that_the_api_takes_is_tried_or_known_to_ask_an_engine_for_nothing() -> None:
    decided = test_vllm_fields.DECIDED.values()
    taken = {name for api in decided for name, decision in api.items() if decision == "taken"}
    taken |= {*shared_fields.SharedFields.__struct_fields__, *chat_api.Fields.__struct_fields__}
    asked = {name for body, rows in ASKED if rows for name in body}
    other = {
        "max_tool_calls",  # counted by the worker
        "chat_template_kwargs",  # its switches are an effort
        "reasoning",  # `reasoning_effort` of Responses
        "text",  # `response_format` of Responses
    }
    assert taken - asked - other - NOT_THE_ENGINES == set()


def test_each_trial_uses_its_row_and_needs_nothing_but_the_features_of_its_field() -> None:
    with cases.collected() as case:
        for row in engine_fields.TABLE:
            with case(row.name):
                request = engine_fields.trial(row)
                assert row in engine_fields.rows_for(request)
                assert request.sampling.max_tokens <= engine_fields.MAX_TOKENS
                assert {n.field for n in features.needs_of(request)} <= {"tools", row.member}
                assert msgspec.json.decode(msgspec.json.encode(request), type=records.Request)
    assert engine_fields.rows_for(engine_fields.trial()) == []


def test_the_most_log_probabilities_that_the_api_takes_are_tried() -> None:
    assert engine_fields.MOST_LOGPROBS == sampling.MAX_TOP_LOGPROBS


def test_a_warm_up_and_embeddings_use_no_row() -> None:
    request = request_of(responses({"temperature": 0}))
    assert engine_fields.rows_for(request)
    for change in ({"generate": False}, {"embed": records.Embed(["a"])}):
        assert engine_fields.rows_for(msgspec.structs.replace(request, **change)) == []
