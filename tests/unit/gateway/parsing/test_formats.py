"""What an answer's text must look like, in OpenAI's fields and in vLLM's."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.parsing import formats
from tests.support import cases
from tests.unit.gateway.parsing.parsers import (
    chat,
    code_and_param,
    refused_chat,
    refused_responses,
    responses,
)

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
BAD = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}


def of_responses(**members: Any) -> dict[str, Any]:
    return {"text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA, **members}}}


def of_chat(**members: Any) -> dict[str, Any]:
    return {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "n", "schema": SCHEMA, **members},
        }
    }


def test_both_apis_ask_for_the_same_schema() -> None:
    first, second = responses(of_responses()).format, chat(of_chat()).format
    assert first is not None
    assert second is not None
    assert (
        first.engine == second.engine == {"type": "json_schema", "schema": SCHEMA, "strict": True}
    )
    assert first.echo == {
        "type": "json_schema",
        "name": "n",
        "description": None,
        "schema": SCHEMA,
        "strict": True,
    }
    assert (first.param, second.param) == ("text.format", "response_format")
    assert responses(of_responses()).echo == {"text": {"format": first.echo}}


def test_text_is_no_format() -> None:
    assert responses({"text": {"format": {"type": "text"}}}).format is None
    assert chat({"response_format": {"type": "text"}}).format is None
    assert chat({"response_format": None}).format is None


def test_an_empty_schema_asks_for_json() -> None:
    for body in (of_responses(schema={}), {"text": {"format": {"type": "json_object"}}}):
        fields = responses(body).format
        assert fields is not None
        assert fields.engine == {"type": "json_object"}


@cases.each(
    ("body", "engine"),
    [
        ({"guided_json": SCHEMA}, {"type": "json_schema", "schema": SCHEMA, "strict": True}),
        (
            {"guided_json": '{"type":"null"}'},
            {"type": "json_schema", "schema": {"type": "null"}, "strict": True},
        ),
        ({"guided_regex": 'a"b'}, {"type": "regex", "pattern": 'a"b'}),
        ({"guided_choice": ["yes", "no"]}, {"type": "choice", "choices": ["yes", "no"]}),
        ({"guided_grammar": 'root ::= "a"'}, {"type": "grammar", "definition": 'root ::= "a"'}),
        (
            {"structured_outputs": {"json": SCHEMA}},
            {"type": "json_schema", "schema": SCHEMA, "strict": True},
        ),
        ({"structured_outputs": {"json_object": True}}, {"type": "json_object"}),
        (
            {"structured_outputs": {"choice": ["a"], "regex": None}},
            {"type": "choice", "choices": ["a"]},
        ),
    ],
)
def test_the_fields_of_vllm_are_formats(body: dict[str, Any], engine: dict[str, Any]) -> None:
    for fields in (responses(body).format, chat(body).format):
        assert fields is not None
        assert fields.engine == engine


@pytest.mark.parametrize("body", [{"guided_json": None}, {"structured_outputs": {}}])
def test_of_vllm_nothing_is_asked(body: dict[str, Any]) -> None:
    assert responses(body).format is None


BOTH: list[tuple[dict[str, Any], str, str]] = [
    ({"guided_json": "{"}, "guided_json", "invalid_value"),
    ({"guided_json": 5}, "guided_json", "invalid_type"),
    ({"guided_json": BAD}, "guided_json.uniqueItems", "unsupported_value"),
    ({"guided_regex": 5}, "guided_regex", "invalid_type"),
    ({"guided_regex": "(?!a)"}, "guided_regex", "unsupported_value"),
    ({"guided_choice": "a"}, "guided_choice", "invalid_type"),
    ({"guided_choice": []}, "guided_choice", "invalid_value"),
    ({"guided_choice": [""]}, "guided_choice", "invalid_value"),
    ({"guided_choice": ["x" * 513]}, "guided_choice", "invalid_value"),
    ({"guided_grammar": ""}, "guided_grammar", "invalid_value"),
    ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice", "invalid_value"),
    ({"structured_outputs": 5}, "structured_outputs", "invalid_type"),
    (
        {"structured_outputs": {"json": BAD}},
        "structured_outputs.json.uniqueItems",
        "unsupported_value",
    ),
    ({"structured_outputs": {"json_object": 1}}, "structured_outputs.json_object", "invalid_type"),
    (
        {"structured_outputs": {"structural_tag": "x"}},
        "structured_outputs.structural_tag",
        "unsupported_parameter",
    ),
    (
        {"structured_outputs": {"whitespace_pattern": "x"}},
        "structured_outputs.whitespace_pattern",
        "unsupported_parameter",
    ),
    (
        {"structured_outputs": {"regex": "a", "choice": ["a"]}},
        "structured_outputs.choice",
        "invalid_value",
    ),
    ({"guided_choice": ["a"], "min_tokens": 2}, "min_tokens", "invalid_value"),
    ({"guided_choice": ["a"], "ignore_eos": True}, "ignore_eos", "invalid_value"),
]
RESPONSES: list[tuple[dict[str, Any], str, str]] = [
    ({"text": {"format": 5}}, "text.format", "invalid_type"),
    ({"text": {"format": {}}}, "text.format.type", "missing_required_parameter"),
    ({"text": {"format": {"type": "xml"}}}, "text.format.type", "unsupported_value"),
    ({"text": {"format": {"type": ["text"]}}}, "text.format.type", "unsupported_value"),
    (of_responses(name=None), "text.format.name", "missing_required_parameter"),
    (of_responses(name=5), "text.format.name", "invalid_type"),
    (of_responses(name="a b"), "text.format.name", "invalid_value"),
    (of_responses(name="a" * 65), "text.format.name", "invalid_value"),
    (of_responses(schema=None), "text.format.schema", "missing_required_parameter"),
    (of_responses(schema=5), "text.format.schema", "invalid_type"),
    (of_responses(schema=BAD), "text.format.schema.uniqueItems", "unsupported_value"),
    (of_responses(schema=BAD, strict=False), "text.format.schema.uniqueItems", "unsupported_value"),
    (of_responses(strict=1), "text.format.strict", "invalid_type"),
    (of_responses(description=5), "text.format.description", "invalid_type"),
    (of_responses(description="x" * 16_385), "text.format.description", "invalid_value"),
    ({**of_responses(), "guided_json": SCHEMA}, "guided_json", "invalid_value"),
    ({"text": {"verbosity": "loud"}}, "text.verbosity", "invalid_value"),
    ({"text": {"verbosity": 5}}, "text.verbosity", "invalid_type"),
]
CHAT: list[tuple[dict[str, Any], str, str]] = [
    ({"response_format": "json"}, "response_format", "invalid_type"),
    (
        {"response_format": {"type": "json_schema"}},
        "response_format.json_schema",
        "missing_required_parameter",
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": 5}},
        "response_format.json_schema",
        "invalid_type",
    ),
    (of_chat(name=None), "response_format.json_schema.name", "missing_required_parameter"),
    (
        of_chat(schema=BAD),
        "response_format.json_schema.schema.uniqueItems",
        "unsupported_value",
    ),
    ({"verbosity": "loud"}, "verbosity", "invalid_value"),
]


@cases.each(("body", "param", "code"), [*BOTH, *RESPONSES])
def test_refused_of_responses(body: dict[str, Any], param: str, code: str) -> None:
    assert code_and_param(refused_responses(body)) == (param, code)


@cases.each(("body", "param", "code"), [*BOTH, *CHAT])
def test_refused_of_chat(body: dict[str, Any], param: str, code: str) -> None:
    assert code_and_param(refused_chat(body)) == (param, code)


def test_a_grammar_is_bounded() -> None:
    assert formats.grammar("x" * formats.MAX_GRAMMAR_CHARS, "g")
    body = {"guided_grammar": "x" * (formats.MAX_GRAMMAR_CHARS + 1)}
    assert code_and_param(refused_chat(body)) == ("guided_grammar", "invalid_value")
