"""Texts of custom calls, names of parsers and what a template takes, without vLLM.
tests/contract/test_vllm.py reads whole answers with the real parsers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tailrace import telemetry
from tailrace.prompts import chat_template
from tailrace.protocol import events, records
from tests.support import cases
from worker.engines import base, scripted, vllm_items, vllm_parsers, vllm_template

TEXTS = ["", "plain", 'a "quote"\n\\ 日 😀', "\t\u0001", "{}"]


@cases.each("ascii_only", [True, False])
@cases.each("text", TEXTS)
def test_the_text_of_a_custom_call_does_not_depend_on_how_it_comes(
    text: str, ascii_only: bool
) -> None:
    arguments = json.dumps({"input": text}, ensure_ascii=ascii_only)
    for size in (1, 2, 3, len(arguments)):
        read = vllm_items.CustomInput()
        parts = [arguments[at : at + size] for at in range(0, len(arguments), size)]
        assert "".join(map(read.push, parts)) + read.finish() == text


def test_arguments_of_another_form_are_the_text_themselves() -> None:
    for text in ("just text", '{"other": 1}', "[1]", '{"inp'):
        read = vllm_items.CustomInput()
        assert "".join(map(read.push, text)) + read.finish() == text


def test_parsers_that_changed_are_not_used_and_none_that_is_named_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[dict[str, Any]] = []
    monkeypatch.setattr(telemetry, "log", lambda action, **more: told.append({"a": action, **more}))
    parser_names = vllm_parsers.Names("hermes", "qwen3")
    assert vllm_parsers.usable(parser_names, "auto", "auto", []) == parser_names
    assert vllm_parsers.usable(vllm_parsers.Names("", ""), "none", "auto", ["x"]).tools == ""
    assert told == []
    assert vllm_parsers.usable(parser_names, "auto", "auto", ["x"]) == vllm_parsers.Names("", "")
    assert told[0]["a"] is telemetry.Action.ENGINE_FALLBACK
    assert told[0]["changed"] == ["x"]
    for tools, reasoning in (("hermes", "auto"), ("auto", "qwen3")):
        with pytest.raises(base.EngineDead, match="x"):
            vllm_parsers.usable(parser_names, tools, reasoning, ["x"])


def test_a_parser_is_named_or_found_by_the_model_and_its_template() -> None:
    def of(kind: str, template: str, tools: str = "auto", reasoning: str = "auto") -> Any:
        return vllm_parsers.names(tools, reasoning, kind, template)

    assert of("qwen2", "<tool_call>") == vllm_parsers.Names("hermes", "")
    assert of("qwen3_moe", "<function= </think>") == vllm_parsers.Names("qwen3_xml", "qwen3")
    assert of("llama", "nothing") == vllm_parsers.Names("", "")
    assert of("llama", "<tool_call>", "none", "none") == vllm_parsers.Names("", "")
    assert of("llama", "", "pythonic", "olmo3") == vllm_parsers.Names("pythonic", "olmo3", True)
    thinking = vllm_parsers.names("auto", "auto", "llama", "", opens_thinking=True)
    assert thinking == vllm_parsers.Names("", "deepseek_r1")


class Tokenizer:
    """A chat template that takes some variables."""

    def __init__(self, *takes: str) -> None:
        self.takes = takes
        self.chat_template = "t"

    def apply_chat_template(self, messages: Any, *, tokenize: bool, **variables: Any) -> Any:
        shown = {name: v for name, v in variables.items() if name in self.takes}
        text = f"{messages[-1]['content']} {json.dumps(shown)}"
        return list(text.encode()) if tokenize else text

    def encode(self, text: str, **_options: Any) -> list[int]:
        return list(text.encode())


def request(**more: Any) -> records.Request:
    rid = "resp_" + "0" * 32
    return records.Request(
        rid,
        records.Owner("i", "s"),
        "m",
        [{"role": "user", "content": "?"}],
        records.Sampling(9),
        events.echo(rid, 0, "m", metadata={}),
        **more,
    )


def test_a_template_that_ignores_tools_is_found_out() -> None:
    assert not vllm_template.Template(Tokenizer()).takes_tools
    assert vllm_template.Template(Tokenizer("tools")).takes_tools


@cases.each(
    ("takes", "effort", "variables"),
    [
        (["enable_thinking"], "none", {"enable_thinking": False}),
        (["enable_thinking"], "high", {"enable_thinking": True}),
        (["reasoning_effort"], "medium", {"reasoning_effort": "medium"}),
        (["reasoning_effort"], "xhigh", {"reasoning_effort": "high"}),
        (["reasoning_effort", "thinking"], "minimal", {"thinking": False}),
        ([], "none", {}),
    ],
)
def test_an_effort_becomes_what_the_template_takes(
    takes: list[str], effort: str, variables: dict[str, Any]
) -> None:
    template = vllm_template.Template(Tokenizer(*takes))
    assert template.variables(request(reasoning={"effort": effort})) == variables
    assert template.variables(request(reasoning={"summary": "auto"})) == {}


def test_an_effort_is_refused_where_the_template_has_no_use_for_it() -> None:
    with pytest.raises(base.Refused, match=r"reasoning\.effort"):
        vllm_template.Template(Tokenizer()).render(request(reasoning={"effort": "low"}))


def test_calls_and_outputs_are_put_as_templates_take_them() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    custom = {"id": "c2", "type": "custom", "custom": {"name": "x", "input": "text"}}
    broken = {"id": "c3", "type": "function", "function": {"name": "f", "arguments": "no JSON"}}
    messages = chat_template.messages(
        [
            {"role": "developer", "content": [{"type": "input_text", "text": "Be short."}]},
            {"role": "assistant", "content": "", "tool_calls": [call, custom, broken]},
            {"role": "tool", "tool_call_id": "c2", "content": "done"},
        ]
    )
    assert messages[0] == {"role": "system", "content": "Be short."}
    assert [c["function"]["arguments"] for c in messages[1]["tool_calls"]] == [
        {"a": 1},
        {"input": "text"},
        {"arguments": "no JSON"},
    ]
    assert messages[2] == {"role": "tool", "content": "done", "tool_call_id": "c2", "name": "x"}


def test_a_custom_tool_is_shown_as_a_function_of_one_text() -> None:
    grammar = {"type": "grammar", "syntax": "regex", "definition": "[a-z]+"}
    custom = {"name": "x", "description": "about", "format": grammar}
    shown = chat_template.tool_for_template({"type": "custom", "custom": custom})["function"]
    assert shown["name"] == "x"
    assert list(shown["parameters"]["properties"]) == ["input"]
    assert "about" in shown["description"]
    assert "[a-z]+" in shown["description"]


class Thinking:
    """A parser that keeps all text to itself, of a model that thinks first. Its prompt does not say
    that the thinking is over."""

    tool_parser = None

    def __init__(self, behind: bool) -> None:
        self.behind = behind
        self.reasoning_parser = self

    def is_reasoning_end(self, _ids: list[int]) -> bool:
        return False

    def parse_delta(self, *_what: Any, **_how: Any) -> None:
        return None


def test_a_text_that_is_continued_is_no_reasoning() -> None:
    made: list[Thinking] = []

    def new_parser(behind: bool) -> Thinking:
        made.append(Thinking(behind))
        return made[-1]

    characters = scripted.Detokenizer()
    kit = vllm_items.Kit(new_parser, None, (), characters, (), (), None, False, in_message=True)
    parser = vllm_items.Items(kit)
    pieces = [piece for token in scripted.text_ids("It goes on") for piece in parser.push(token)]
    pieces += parser.finish()
    assert "".join(piece.text for piece in pieces) == "It goes on"
    assert {piece.kind for piece in pieces} == {"m"}
    assert [each.behind for each in made] == [True]
