"""Every field of vLLM's own request types is decided: taken, a hint, or refused by name.

Clients of `vllm serve` send them. A version of vLLM with a field that is not in these tables fails
here, until somebody decides.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any, Final, Literal

import pytest

from gateway.parsing import chat_api, completions_api, responses_api
from tailrace.protocol import errors
from tests.support import engine_environment
from tests.support.gateway_parts import CATALOG

Decision = Literal["taken", "hint", "refused"]

_PROTOCOLS: Final = "vllm.entrypoints.openai"
TYPES: Final = {
    "chat": f"{_PROTOCOLS}.chat_completion.protocol:ChatCompletionRequest",
    "text": f"{_PROTOCOLS}.completion.protocol:CompletionRequest",
    "responses": f"{_PROTOCOLS}.responses.protocol:ResponsesRequest",
}


def _decided(**decisions: str) -> dict[str, Decision]:
    words: dict[str, Decision] = {"taken": "taken", "hint": "hint", "refused": "refused"}
    return {name: words[word] for word, names in decisions.items() for name in names.split()}


EVERYWHERE: Final = _decided(
    taken="""
        frequency_penalty ignore_eos logit_bias min_p model presence_penalty repetition_penalty seed
        stop stream structured_outputs temperature top_k top_p user
    """,
    hint="mm_payload return_mm_kwargs session_id",
    refused="""
        cache_salt ec_transfer_params include_stop_str_in_output kv_transfer_params priority
        request_id skip_special_tokens stop_token_ids vllm_xargs watermarking
    """,
)
OF_COMPLETIONS: Final = _decided(
    taken="logprobs max_tokens min_tokens n response_format stream_options",
    hint="return_token_offsets routed_experts_prompt_start stream_interval truncation_side",
    refused="""
        add_special_tokens allowed_token_ids bad_words length_penalty logprob_token_ids
        prompt_logprobs repetition_detection return_token_ids return_tokens_as_token_ids
        spaces_between_special_tokens thinking_token_budget truncate_prompt_tokens use_beam_search
    """,
)
DECIDED: Final[dict[str, dict[str, Decision]]] = {
    "chat": {
        **EVERYWHERE,
        **OF_COMPLETIONS,
        **_decided(
            taken="""
                chat_template_kwargs max_completion_tokens messages parallel_tool_calls
                reasoning_effort tool_choice tools top_logprobs
            """,
            refused="""
                add_generation_prompt chat_template continue_final_message documents echo
                include_reasoning media_io_kwargs mm_processor_kwargs return_prompt_text
            """,
        ),
    },
    "text": {
        **EVERYWHERE,
        **OF_COMPLETIONS,
        **_decided(taken="echo prompt", refused="prompt_embeds suffix"),
    },
    "responses": {
        **EVERYWHERE,
        **_decided(
            taken="""
                background chat_template_kwargs include input instructions max_output_tokens
                max_tool_calls metadata parallel_tool_calls previous_response_id prompt_cache_key
                reasoning service_tier store text tool_choice tools top_logprobs truncation
            """,
            refused="""
                enable_response_messages include_reasoning media_io_kwargs mm_processor_kwargs
                previous_input_messages prompt
            """,
        ),
    },
}
SOMETHING: Final[dict[str, Any]] = {"mode": "x"}  # whatever the field is
TYPED: Final[dict[str, Any]] = {"suffix": "x"}
A_NUMBER: Final = 7  # read where the field is one, and refused where it is none
BODIES: Final[dict[str, dict[str, Any]]] = {
    "chat": {"messages": [{"role": "user", "content": "hi"}]},
    "text": {"prompt": "hi"},
    "responses": {"input": "hi"},
}


def parsed(api: str, fields: dict[str, Any]) -> Any:
    body = {**BODIES[api], **fields}
    match api:
        case "chat":
            return chat_api.parse(body, CATALOG)
        case "text":
            return completions_api.parse(body, CATALOG)
    return responses_api.parse(body, CATALOG)


def rows(*decisions: Decision) -> list[tuple[str, str]]:
    return [
        (api, name)
        for api, fields in DECIDED.items()
        for name, decision in fields.items()
        if decision in decisions
    ]


if engine_environment.HERE:

    @pytest.fixture(scope="module")
    def declared() -> dict[str, dict[str, Any]]:
        """The fields of the installed vLLM with their defaults, by API."""
        return {api: dict(defaults(place)) for api, place in TYPES.items()}

    def defaults(place: str) -> Iterator[tuple[str, Any]]:
        """Each field and its default, None where JSON has none."""
        module, name = place.split(":")
        for field, info in getattr(importlib.import_module(module), name).model_fields.items():
            value = None if info.is_required() else info.get_default()
            yield field, value if isinstance(value, (bool, int, float, str, list)) else None

    @pytest.mark.engine
    @pytest.mark.parametrize("api", DECIDED)
    def test_every_field_that_vllm_declares_is_decided(
        declared: dict[str, dict[str, Any]], api: str
    ) -> None:
        undecided = set(declared[api]) - set(DECIDED[api])
        gone = set(DECIDED[api]) - set(declared[api])
        assert (undecided, gone) == (set(), set())

    @pytest.mark.engine
    def test_vllms_defaults_ask_for_nothing(declared: dict[str, dict[str, Any]]) -> None:
        """Clients write defaults out; `add_special_tokens` has another one for each API."""
        for api, name in rows("hint", "refused"):
            try:
                assert parsed(api, {name: declared[api][name]}) == parsed(api, {}), (api, name)
            except errors.ApiError as error:
                pytest.fail(f"{api}: {name}={declared[api][name]!r}: {error}")


def test_what_would_be_left_undone_is_refused_by_name() -> None:
    wrong = []
    for api, name in rows("refused"):
        try:
            wrong.append((api, name, parsed(api, {name: TYPED.get(name, SOMETHING)})))
        except errors.ApiError as error:
            if (error.status, error.param, error.code) != (400, name, "unsupported_parameter"):
                wrong.append((api, name, error))
    assert wrong == []


def test_hints_change_nothing() -> None:
    wrong = [
        (api, name)
        for api, name in rows("hint")
        if parsed(api, {name: SOMETHING}) != parsed(api, {})
    ]
    assert wrong == []


def test_what_is_taken_is_read() -> None:
    wrong = []
    for api, name in rows("taken"):
        param = None
        try:
            changed = parsed(api, {name: A_NUMBER}) != parsed(api, {})
        except errors.ApiError as refused:
            changed, param = False, refused.param
        if not changed and param != name:
            wrong.append((api, name))
    assert wrong == []
