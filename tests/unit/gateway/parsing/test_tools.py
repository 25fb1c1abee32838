"""Tools and the choice among them, in both APIs."""

from __future__ import annotations

from typing import Any

from gateway.parsing import tools
from tailrace.protocol import records
from tests.support import cases
from tests.unit.gateway.parsing.parsers import (
    chat,
    code_and_param,
    refused_chat,
    refused_responses,
    responses,
)

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
LOOSE = {"type": "object", "properties": {"n": {"type": "integer", "multipleOf": 2}}}
WEATHER = {"type": "function", "name": "get_weather", "parameters": CITY}
TIME = {"type": "function", "name": "get_time", "description": "now", "strict": True}
PATCH = {
    "type": "custom",
    "name": "apply",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: /a+/"},
}
CRM = {
    "type": "namespace",
    "name": "crm",
    "description": "customers",
    "tools": [{"type": "function", "name": "get", "strict": False, "parameters": LOOSE}],
}
SEARCH = {"type": "web_search", "external_web_access": True}


def of_chat(tool: dict[str, Any]) -> dict[str, Any]:
    kind = tool["type"]
    return {"type": kind, kind: {k: v for k, v in tool.items() if k != "type"}}


class TestTools:
    def test_functions_are_as_templates_take_them_and_strict_by_default(self) -> None:
        fields = responses({"tools": [WEATHER, TIME]}).tools
        assert fields.prompt == (
            {
                "type": "function",
                "function": {"name": "get_weather", "parameters": CITY, "strict": True},
            },
            {
                "type": "function",
                "function": {
                    "name": "get_time",
                    "description": "now",
                    "parameters": {"type": "object", "properties": {}},
                    "strict": True,
                },
            },
        )
        assert fields.echo[0] == {**WEATHER, "description": None, "strict": True}
        assert fields.choice == records.ToolChoice("auto")

    def test_both_apis_make_the_same_of_a_tool(self) -> None:
        own: list[dict[str, Any]] = [WEATHER, TIME, {"type": "custom", "name": "free"}]
        assert (
            chat({"tools": [of_chat(t) for t in own]}).tools.prompt
            == responses({"tools": own}).tools.prompt
        )

    def test_a_function_that_is_not_strict_may_have_any_schema(self) -> None:
        (tool,) = responses(
            {"tools": [{**WEATHER, "parameters": LOOSE, "strict": False}]}
        ).tools.prompt
        assert tool["function"]["strict"] is False
        assert tool["function"]["parameters"] == LOOSE

    def test_functions_share_what_the_engine_can_be_asked_for(self) -> None:
        """Where nothing is said, those that are too many are not strict; else they are named."""
        long = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 256}}}
        tools = [{"type": "function", "name": f"f{i}", "parameters": long} for i in range(6)]
        fields = responses({"tools": tools}).tools
        assert [tool["function"]["strict"] for tool in fields.prompt] == [True] * 4 + [False] * 2
        error = refused_responses({"tools": [{**tool, "strict": True} for tool in tools]})
        assert code_and_param(error) == (
            "tools[4].parameters.properties.a.maxLength",
            "unsupported_value",
        )

    def test_a_function_that_says_nothing_is_strict_only_if_its_schema_can_be_enforced(
        self,
    ) -> None:
        loose = {**WEATHER, "parameters": LOOSE}
        fields = responses({"tools": [loose, {**loose, "name": "b", "parameters": CITY}]}).tools
        assert [tool["function"]["strict"] for tool in fields.prompt] == [False, True]
        assert [tool["strict"] for tool in fields.echo] == [False, True]
        assert chat({"tools": [of_chat(loose)]}).tools.prompt[0] == fields.prompt[0]

    def test_a_namespace_is_flattened_and_shown_whole(self) -> None:
        fields = responses({"tools": [CRM]}).tools
        assert [t["function"]["name"] for t in fields.prompt] == ["crm__get"]
        assert fields.echo[0]["tools"][0]["name"] == "get"
        assert fields.hosted == ()

    def test_hosted_tools_are_left_out_named_and_shown_without_their_credentials(self) -> None:
        mcp = {
            "type": "mcp",
            "server_label": "x",
            "server_url": "https://x",
            "authorization": "secret",
            "headers": {"a": "secret"},
        }
        fields = responses(
            {"tools": [SEARCH, WEATHER, mcp, {"type": "web_search_2025_08_26"}, SEARCH]}
        ).tools
        assert len(fields.prompt) == 1
        assert fields.hosted == ("web_search", "mcp", "web_search_2025_08_26")
        assert fields.echo[0] == SEARCH
        assert responses({"tools": [SEARCH, WEATHER]}).headers == {
            "x-tailrace-tools-left-out": "web_search"
        }
        assert responses({"tools": [WEATHER]}).headers == {}
        assert "secret" not in repr(fields)

    def test_a_custom_tool_has_its_grammar(self) -> None:
        (tool,) = responses({"tools": [PATCH]}).tools.prompt
        assert tool == {"type": "custom", "custom": {"name": "apply", "format": PATCH["format"]}}
        nested = {
            "type": "custom",
            "custom": {
                "name": "apply",
                "format": {
                    "type": "grammar",
                    "grammar": {"syntax": "lark", "definition": "start: /a+/"},
                },
            },
        }
        assert chat({"tools": [nested]}).tools.prompt == (tool,)


REFUSED: list[tuple[Any, str, str]] = [
    (5, "tools", "invalid_type"),
    ({}, "tools", "invalid_type"),
    ([5], "tools[0]", "invalid_type"),
    ([{}], "tools[0].type", "missing_required_parameter"),
    ([{"type": "fuction", "name": "f"}], "tools[0].type", "unsupported_value"),
    ([{"type": ["function"]}], "tools[0].type", "unsupported_value"),
    ([{"type": "function"}], "tools[0].name", "missing_required_parameter"),
    ([{"type": "function", "function": 5}], "tools[0].function", "invalid_type"),
    (
        [{"type": "function", "function": {}}],
        "tools[0].function.name",
        "missing_required_parameter",
    ),
    ([{**WEATHER, "name": 5}], "tools[0].name", "invalid_type"),
    ([{**WEATHER, "name": "a b"}], "tools[0].name", "invalid_value"),
    ([{**WEATHER, "name": "a" * 129}], "tools[0].name", "invalid_value"),
    ([{**WEATHER, "name": ""}], "tools[0].name", "invalid_value"),
    ([{**WEATHER, "name": "é"}], "tools[0].name", "invalid_value"),
    ([{**WEATHER, "description": 5}], "tools[0].description", "invalid_type"),
    ([{**WEATHER, "strict": "yes"}], "tools[0].strict", "invalid_type"),
    ([{**WEATHER, "parameters": "x"}], "tools[0].parameters", "invalid_type"),
    ([{**WEATHER, "parameters": [], "strict": False}], "tools[0].parameters", "invalid_type"),
    ([{**WEATHER, "parameters": {"type": "string"}}], "tools[0].parameters.type", "invalid_value"),
    (
        [{**WEATHER, "parameters": LOOSE, "strict": True}],
        "tools[0].parameters.properties.n.multipleOf",
        "unsupported_value",
    ),
    (
        [of_chat({**WEATHER, "parameters": LOOSE, "strict": True})],
        "tools[0].function.parameters.properties.n.multipleOf",
        "unsupported_value",
    ),
    ([WEATHER, WEATHER], "tools[1].name", "invalid_value"),
    ([CRM, {"type": "function", "name": "crm__get"}], "tools[1].name", "invalid_value"),
    ([{**CRM, "name": None}], "tools[0].name", "missing_required_parameter"),
    ([{**CRM, "tools": None}], "tools[0].tools", "missing_required_parameter"),
    ([{**CRM, "tools": {}}], "tools[0].tools", "invalid_type"),
    ([{**CRM, "tools": [5]}], "tools[0].tools[0]", "invalid_type"),
    ([{**CRM, "tools": [SEARCH]}], "tools[0].tools[0].type", "unsupported_value"),
    (
        [
            {
                **CRM,
                "tools": [{"type": "function", "name": "f", "parameters": LOOSE, "strict": True}],
            }
        ],
        "tools[0].tools[0].parameters.properties.n.multipleOf",
        "unsupported_value",
    ),
    ([{**PATCH, "format": 5}], "tools[0].format", "invalid_type"),
    ([{**PATCH, "format": {"type": "x"}}], "tools[0].format.type", "unsupported_value"),
    (
        [{**PATCH, "format": {"type": "grammar", "syntax": "ebnf", "definition": "x"}}],
        "tools[0].format.syntax",
        "unsupported_value",
    ),
    (
        [{**PATCH, "format": {"type": "grammar", "syntax": "lark"}}],
        "tools[0].format.definition",
        "invalid_type",
    ),
    (
        [{**PATCH, "format": {"type": "grammar", "syntax": "lark", "definition": "x\0"}}],
        "tools[0].format.definition",
        "invalid_value",
    ),
    (
        [{**PATCH, "format": {"type": "grammar", "syntax": "regex", "definition": "(?=x)"}}],
        "tools[0].format.definition",
        "unsupported_value",
    ),
    ([SEARCH] * 129, "tools", "invalid_value"),
    (
        [
            {
                **CRM,
                "tools": [{"type": "function", "name": f"f{i}"} for i in range(129)],
            }
        ],
        "tools",
        "invalid_value",
    ),
    ([{**WEATHER, "description": "x" * tools.MAX_TOOLS_BYTES}], "tools", "invalid_value"),
]


@cases.each(("value", "param", "code"), REFUSED)
def test_a_refusal_names_the_tool_and_what_is_wrong_in_it(
    value: Any, param: str, code: str
) -> None:
    assert code_and_param(refused_responses({"tools": value})) == (param, code)
    assert code_and_param(refused_chat({"tools": value})) == (param, code)


def test_a_schema_that_cannot_be_enforced_says_how_to_go_on() -> None:
    error = refused_responses({"tools": [{**WEATHER, "parameters": LOOSE, "strict": True}]})
    assert "'multipleOf'" in error.message
    assert "'strict': false" in error.message


ALL = [WEATHER, TIME, CRM, PATCH, SEARCH]
CHOICES: list[tuple[Any, records.ToolChoice]] = [
    (None, records.ToolChoice("auto")),
    ("auto", records.ToolChoice("auto")),
    ("none", records.ToolChoice("none")),
    ("required", records.ToolChoice("required")),
    ({"type": "function", "name": "get_time"}, records.ToolChoice("required", ("get_time",))),
    (
        {"type": "function", "function": {"name": "get_time"}},
        records.ToolChoice("required", ("get_time",)),
    ),
    (
        {"type": "function", "name": "get", "namespace": "crm"},
        records.ToolChoice("required", ("crm__get",)),
    ),
    ({"type": "custom", "name": "apply"}, records.ToolChoice("required", ("apply",))),
    (
        {
            "type": "allowed_tools",
            "mode": "auto",
            "tools": [{"type": "function", "name": "get_time"}, {"type": "web_search"}],
        },
        records.ToolChoice("auto", ("get_time",)),
    ),
    (
        {
            "type": "allowed_tools",
            "allowed_tools": {
                "mode": "required",
                "tools": [
                    {"type": "function", "function": {"name": "get_time"}},
                    {"type": "namespace", "name": "crm"},
                ],
            },
        },
        records.ToolChoice("required", ("get_time", "crm__get")),
    ),
    (
        {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "web_search"}]},
        records.ToolChoice("none"),
    ),
]


@cases.each(("value", "choice"), CHOICES)
def test_what_may_be_called(value: Any, choice: records.ToolChoice) -> None:
    assert responses({"tools": ALL, "tool_choice": value}).tools.choice == choice
    assert chat({"tools": ALL, "tool_choice": value}).tools.choice == choice


def allowed(mode: Any, *names: Any) -> dict[str, Any]:
    return {"type": "allowed_tools", "mode": mode, "tools": list(names)}


REFUSED_CHOICES: list[tuple[Any, Any, str, str]] = [
    ([], "required", "tool_choice", "invalid_value"),
    (None, {"type": "function", "name": "f"}, "tool_choice", "invalid_value"),
    (ALL, "any", "tool_choice", "invalid_value"),
    (ALL, 5, "tool_choice", "invalid_type"),
    (ALL, [], "tool_choice", "invalid_type"),
    (ALL, {}, "tool_choice.type", "unsupported_value"),
    (ALL, {"type": "x"}, "tool_choice.type", "unsupported_value"),
    (ALL, {"type": ["x"]}, "tool_choice.type", "unsupported_value"),
    (ALL, {"type": "function"}, "tool_choice.name", "missing_required_parameter"),
    (ALL, {"type": "function", "name": "apply"}, "tool_choice", "invalid_value"),
    (ALL, {"type": "function", "name": "get"}, "tool_choice", "invalid_value"),
    (
        ALL,
        {"type": "function", "name": "get", "namespace": 5},
        "tool_choice.namespace",
        "invalid_type",
    ),
    (ALL, {"type": "web_search"}, "tool_choice", "unsupported_value"),
    (ALL, {"type": "web_search_preview_2025_03_11"}, "tool_choice", "unsupported_value"),
    ([SEARCH], "required", "tool_choice", "unsupported_value"),
    (ALL, allowed("required", SEARCH), "tool_choice.tools", "unsupported_value"),
    (ALL, allowed("none", WEATHER), "tool_choice.mode", "invalid_value"),
    (ALL, allowed(["auto"], WEATHER), "tool_choice.mode", "invalid_value"),
    (ALL, allowed("auto"), "tool_choice.tools", "invalid_type"),
    (ALL, allowed("auto", 5), "tool_choice.tools[0]", "invalid_type"),
    (
        ALL,
        allowed("auto", WEATHER, {"type": "function", "name": "x"}),
        "tool_choice.tools[1]",
        "invalid_value",
    ),
]


@cases.each(("offered", "value", "param", "code"), REFUSED_CHOICES)
def test_a_choice_that_cannot_be_made_is_refused(
    offered: Any, value: Any, param: str, code: str
) -> None:
    body = {"tools": offered, "tool_choice": value}
    assert code_and_param(refused_responses(body)) == (param, code)
    assert code_and_param(refused_chat(body)) == (param, code)


@cases.each(
    ("body", "param", "code"),
    [
        ({"parallel_tool_calls": 1}, "parallel_tool_calls", "invalid_type"),
        ({"max_tool_calls": 0}, "max_tool_calls", "invalid_value"),
        ({"max_tool_calls": 2**31}, "max_tool_calls", "invalid_value"),
        ({"max_tool_calls": "3"}, "max_tool_calls", "invalid_type"),
    ],
)
def test_numbers_of_calls(body: dict[str, Any], param: str, code: str) -> None:
    assert code_and_param(refused_responses(body)) == (param, code)


class TestEcho:
    def test_shows_what_was_asked(self) -> None:
        echo = responses(
            {
                "tools": [WEATHER, SEARCH],
                "tool_choice": {"type": "function", "name": "get_weather"},
                "parallel_tool_calls": False,
                "max_tool_calls": 3,
                "reasoning": {"effort": "low"},
                "text": {"verbosity": "high"},
            }
        ).echo
        assert echo == {
            "tools": [{**WEATHER, "description": None, "strict": True}, SEARCH],
            "tool_choice": {"type": "function", "name": "get_weather"},
            "parallel_tool_calls": False,
            "max_tool_calls": 3,
            "reasoning": {"effort": "low", "summary": None},
            "text": {"format": {"type": "text"}, "verbosity": "high"},
        }

    def test_says_nothing_of_what_was_not_asked(self) -> None:
        assert responses({}).echo == {}
        assert responses({"tools": [], "tool_choice": "auto", "text": {}}).echo == {}
