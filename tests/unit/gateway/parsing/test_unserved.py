"""Every field of OpenAI's APIs is decided: taken, a hint, or refused by name."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from openai.types import completion_create_params as text_params
from openai.types.chat import completion_create_params as chat_params
from openai.types.responses import response_create_params

from gateway.parsing import completions_api
from tailrace.protocol import errors
from tests.support import cases
from tests.unit.gateway.parsing.parsers import (
    POOLS,
    QUESTION,
    chat,
    code_and_param,
    refused_chat,
    refused_responses,
    responses,
)

Decision = Literal["taken", "hint", "refused"]
EVERYWHERE: dict[str, Decision] = {
    **dict.fromkeys(
        ("model", "stream", "temperature", "top_p", "user"),
        "taken",
    ),
    "stream_options": "taken",
}
OF_BOTH: dict[str, Decision] = {
    **EVERYWHERE,
    **dict.fromkeys(
        (
            "metadata",
            "parallel_tool_calls",
            "prompt_cache_key",
            "safety_identifier",
            "service_tier",
            "store",
            "tool_choice",
            "tools",
            "top_logprobs",
        ),
        "taken",
    ),
    "prompt_cache_options": "hint",
    "prompt_cache_retention": "hint",
    "moderation": "refused",
}
SAMPLED: dict[str, Decision] = dict.fromkeys(
    ("frequency_penalty", "presence_penalty", "logit_bias", "seed", "stop"), "taken"
)
RESPONSES: dict[str, Decision] = {
    **OF_BOTH,
    **dict.fromkeys(
        (
            "background",
            "include",
            "conversation",
            "input",
            "instructions",
            "max_output_tokens",
            "max_tool_calls",
            "previous_response_id",
            "reasoning",
            "text",
            "truncation",  # "disabled"
        ),
        "taken",
    ),
    "image": "hint",
    "access_programs": "refused",
    "context_management": "refused",
    "prompt": "refused",
}
CHAT: dict[str, Decision] = {
    **OF_BOTH,
    **SAMPLED,
    **dict.fromkeys(
        (
            "logprobs",
            "max_completion_tokens",
            "max_tokens",
            "messages",
            "modalities",  # ["text"]
            "n",
            "reasoning_effort",
            "response_format",
            "verbosity",
        ),
        "taken",
    ),
    "audio": "refused",
    "function_call": "refused",
    "functions": "refused",
    "prediction": "hint",
    "web_search_options": "refused",
}
TEXT: dict[str, Decision] = {
    **EVERYWHERE,
    **SAMPLED,
    **dict.fromkeys(("best_of", "echo", "logprobs", "max_tokens", "n", "prompt"), "taken"),
    "suffix": "refused",
}
# What their types hold; nothing else is asked of the values of fields that are not taken.
VALUES: dict[str, Any] = {
    "context_management": [{"type": "compaction"}],
    "functions": [{"name": "f"}],
    "function_call": "auto",
    "image": {"context_compression": "auto"},
    "prediction": {"type": "content", "content": "x"},
    "prompt_cache_retention": "24h",
    "suffix": "x",
}
DECIDED = {"responses": RESPONSES, "chat": CHAT, "text": TEXT}
DECLARED: dict[str, list[Any]] = {
    "responses": [
        response_create_params.ResponseCreateParamsNonStreaming,
        response_create_params.ResponseCreateParamsStreaming,
    ],
    "chat": [
        chat_params.CompletionCreateParamsNonStreaming,
        chat_params.CompletionCreateParamsStreaming,
    ],
    "text": [
        text_params.CompletionCreateParamsNonStreaming,
        text_params.CompletionCreateParamsStreaming,
    ],
}


def parse(api: str, fields: dict[str, Any]) -> Any:
    match api:
        case "responses":
            return responses(fields)
        case "chat":
            return chat(fields)
    return completions_api.parse({"prompt": "hi", **fields}, POOLS)


@cases.each("api", DECIDED)
def test_every_field_that_openai_declares_is_decided(api: str) -> None:
    declarations = {name for kind in DECLARED[api] for name in kind.__annotations__}
    declarations |= {
        name for kind in DECLARED[api] for b in kind.__orig_bases__ for name in b.__annotations__
    }
    assert declarations == set(DECIDED[api])


@cases.each(
    ("api", "name", "decision"),
    [(api, *row) for api, rows in DECIDED.items() for row in rows.items() if row[1] != "taken"],
)
def test_what_is_not_taken_is_refused_by_name_or_changes_nothing(
    api: str, name: str, decision: Decision
) -> None:
    body = {name: VALUES.get(name, {"mode": "x"})}
    if decision == "hint":
        assert parse(api, body) == parse(api, {})
        return
    with pytest.raises(errors.ApiError) as error:
        parse(api, body)
    assert code_and_param(error.value) == (name, "unsupported_parameter")


@cases.each(
    ("name", "value", "nothing"),
    [
        ("best_of", 3, 1),
        ("use_beam_search", True, False),
        ("length_penalty", 0.5, 1.0),
        ("stop_token_ids", [5], []),
        ("include_stop_str_in_output", True, False),
        ("bad_words", ["x"], []),
        ("allowed_token_ids", [1], None),
        ("prompt_logprobs", 0, None),
        ("skip_special_tokens", False, True),
        ("chat_template", "{{ x }}", None),
        ("documents", [{"text": "x"}], []),
        ("continue_final_message", True, False),
        ("add_generation_prompt", False, True),
        ("use_beam_search", 1, None),
        ("echo", True, False),
        ("include_reasoning", False, True),
        ("watermarking", True, False),
        ("priority", -1, 0),
        ("request_id", "mine", None),
        ("cache_salt", "secret", None),
        ("vllm_xargs", {"x": 1}, {}),
        ("kv_transfer_params", {"x": 1}, {}),
        ("return_prompt_text", True, False),
        ("prompt_embeds", ["AA=="], []),
        ("enable_response_messages", True, False),
    ],
)
def test_fields_of_vllms_server_are_refused_unless_they_ask_for_nothing(
    name: str, value: Any, nothing: Any
) -> None:
    for refuse in (refused_responses, refused_chat):
        assert code_and_param(refuse({name: value})) == (name, "unsupported_parameter")
    assert chat({name: nothing}) == chat({})
    assert responses({name: nothing}) == responses({})


def test_special_tokens_stand_before_a_prompt_that_is_a_text() -> None:
    """Symptom: the completions API took false, which it does not do, and refused true."""
    request = {"prompt": "hi", "add_special_tokens": True}
    plain = completions_api.parse({"prompt": "hi"}, POOLS)
    assert completions_api.parse(request, POOLS) == plain
    with pytest.raises(errors.ApiError) as error:
        completions_api.parse({**request, "add_special_tokens": False}, POOLS)
    assert code_and_param(error.value) == ("add_special_tokens", "unsupported_parameter")


class TestTemplates:
    """Clients of vLLM turn a model's thinking off by a variable of its template."""

    @pytest.mark.parametrize("name", ["enable_thinking", "thinking"])
    def test_no_thinking_is_the_effort_none(self, name: str) -> None:
        body = {"chat_template_kwargs": {name: False}}
        assert chat(body).reasoning == chat({"reasoning_effort": "none"}).reasoning
        create = responses({"reasoning": {"effort": "none"}}).reasoning
        assert responses(body).reasoning == create
        assert responses({**body, "reasoning": {"effort": "low"}}).reasoning != create

    def test_thinking_and_nothing_are_the_models_own_way(self) -> None:
        for variables in ({"enable_thinking": True}, {"enable_thinking": None}, {}, None):
            assert chat({"chat_template_kwargs": variables}).reasoning is None

    def test_the_effort_goes_first(self) -> None:
        both = {"reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": False}}
        assert chat(both).reasoning == chat({"reasoning_effort": "low"}).reasoning

    def test_others_are_refused_by_name(self) -> None:
        for variables, code in (
            ({"tone": 1}, "unsupported_parameter"),
            ({"thinking": 1}, "invalid_type"),
        ):
            error = refused_chat({"messages": QUESTION, "chat_template_kwargs": variables})
            assert code_and_param(error) == (f"chat_template_kwargs.{next(iter(variables))}", code)
