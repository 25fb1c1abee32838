"""Sampling beyond OpenAI's fields, log probabilities, choices and reasoning."""

from __future__ import annotations

from typing import Any

from gateway.parsing.reasoning import Reasoning
from tailrace.protocol import records
from tests.support import cases
from tests.unit.gateway.parsing.parsers import (
    chat,
    code_and_param,
    refused_chat,
    refused_responses,
    responses,
)


def test_what_clients_of_vllm_send_is_read() -> None:
    body = {
        "top_k": 40,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "min_tokens": 3,
        "ignore_eos": True,
    }
    for fields in (responses(body).sampling, chat(body).sampling):
        assert {name: getattr(fields, name) for name in body} == body
        assert fields.version == records.VERSION_2
    plain = responses({"top_k": -1, "min_p": 0, "repetition_penalty": 1}).sampling
    assert plain == responses({}).sampling


def test_log_probabilities() -> None:
    assert responses({}).sampling.logprobs is None
    assert responses({"include": ["message.output_text.logprobs"]}).sampling.logprobs == 0
    assert responses({"top_logprobs": 0}).sampling.logprobs is None
    assert (
        responses(
            {"top_logprobs": 20, "include": ["message.output_text.logprobs"]}
        ).sampling.logprobs
        == 20
    )
    assert responses({"top_logprobs": 5}).echo == {"top_logprobs": 5}
    assert chat({"logprobs": False}).sampling.logprobs is None
    assert chat({"logprobs": True}).sampling.logprobs == 0
    assert chat({"logprobs": True, "top_logprobs": 3}).sampling.logprobs == 3


def test_choices() -> None:
    assert chat({}).choices == 1
    assert chat({"n": 8}).choices == 8


def test_reasoning() -> None:
    assert responses({"reasoning": {"effort": None}}).reasoning is None
    assert responses({"reasoning": {"effort": "xhigh", "summary": "auto"}}).reasoning == (
        Reasoning("xhigh", "auto")
    )
    assert responses({"reasoning": {"generate_summary": "detailed"}}).reasoning == (
        Reasoning(None, "detailed")
    )
    create = chat({"reasoning_effort": "none"}).reasoning
    assert create == Reasoning("none")
    assert create.engine == {"effort": "none"}


BOTH: list[tuple[dict[str, Any], str, str]] = [
    ({"top_k": -2}, "top_k", "invalid_value"),
    ({"top_k": 2**31}, "top_k", "invalid_value"),
    ({"top_k": 1.5}, "top_k", "invalid_type"),
    ({"min_p": 1.1}, "min_p", "invalid_value"),
    ({"min_p": "x"}, "min_p", "invalid_type"),
    ({"repetition_penalty": 0}, "repetition_penalty", "invalid_value"),
    ({"repetition_penalty": 11}, "repetition_penalty", "invalid_value"),
    ({"min_tokens": -1}, "min_tokens", "invalid_value"),
    ({"min_tokens": 41}, "min_tokens", "invalid_value"),
    ({"ignore_eos": 1}, "ignore_eos", "invalid_type"),
    ({"top_logprobs": 21}, "top_logprobs", "invalid_value"),
    ({"top_logprobs": -1}, "top_logprobs", "invalid_value"),
    ({"top_logprobs": True}, "top_logprobs", "invalid_type"),
]


@cases.each(
    ("body", "param", "code"),
    [
        *BOTH,
        ({"reasoning": "low"}, "reasoning", "invalid_type"),
        ({"reasoning": {"effort": "a lot"}}, "reasoning.effort", "invalid_value"),
        ({"reasoning": {"effort": 5}}, "reasoning.effort", "invalid_type"),
        ({"reasoning": {"summary": "x"}}, "reasoning.summary", "invalid_value"),
        ({"reasoning": {"summary": "concise"}}, "reasoning.summary", "invalid_value"),
        ({"reasoning": {"generate_summary": []}}, "reasoning.generate_summary", "invalid_type"),
        ({"include": "x"}, "include", "invalid_type"),
    ],
)
def test_refused_of_responses(body: dict[str, Any], param: str, code: str) -> None:
    assert code_and_param(refused_responses(body)) == (param, code)


@cases.each(
    ("body", "param", "code"),
    [
        *BOTH,
        ({"logprobs": 5}, "logprobs", "invalid_type"),
        ({"top_logprobs": 3}, "top_logprobs", "invalid_value"),
        ({"n": 0}, "n", "invalid_value"),
        ({"n": 9}, "n", "invalid_value"),
        ({"n": "2"}, "n", "invalid_type"),
        ({"reasoning_effort": "a lot"}, "reasoning_effort", "invalid_value"),
        ({"functions": [{"name": "f"}]}, "functions", "unsupported_parameter"),
        ({"function_call": "auto"}, "function_call", "unsupported_parameter"),
    ],
)
def test_refused_of_chat(body: dict[str, Any], param: str, code: str) -> None:
    assert code_and_param(refused_chat(body)) == (param, code)


def test_what_is_deprecated_says_what_to_use() -> None:
    assert "'tools'" in refused_chat({"functions": [{"name": "f"}]}).message
    assert "'tool_choice'" in refused_chat({"function_call": {"name": "f"}}).message
