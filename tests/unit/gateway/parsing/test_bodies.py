"""What a client may ask, and how it is told what it may not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis
import hypothesis.strategies as st
import msgspec
import pytest

from gateway.parsing import chat_api, command, responses_api
from tailrace.protocol import errors
from tailrace.settings.catalog import Catalog
from tailrace.settings.shapes import Pool
from tests.support import cases

POOLS = Catalog(
    (
        Pool("default", ("small", "org/other"), max_model_len=100, default_output_tokens=40),
        Pool("big", ("large",), max_model_len=8192, default_output_tokens=1024),
    )
)


def responses(body: dict[str, Any], *, websocket: bool = False) -> command.Create:
    return responses_api.parse({"input": "hi", **body}, POOLS, websocket=websocket)


def chat(body: dict[str, Any]) -> command.Create:
    return chat_api.parse({"messages": [{"role": "user", "content": "hi"}], **body}, POOLS)


class TestConversation:
    @cases.each(
        ("named", "behind"),
        [
            ("conv_1", None),
            ({"id": "conv_1"}, None),
            ({"id": "conv_1", "parent": "resp_1"}, command.Parent("resp_1")),
            ({"id": "conv_1", "parent": None}, command.Parent(None)),
        ],
    )
    def test_a_turn_follows_the_head_or_the_node_that_is_named(
        self, named: Any, behind: command.Parent | None
    ) -> None:
        create = responses({"conversation": named})
        assert (create.conversation, create.parent) == ("conv_1", behind)
        count_request = responses_api.parse_count({"input": "hi", "conversation": named}, POOLS)
        assert count_request.parent == behind

    def test_behind_a_node_no_input_is_needed(self) -> None:
        body = {"conversation": {"id": "conv_1", "parent": "resp_1"}}
        assert responses_api.parse(body, POOLS).turn == ()

    def test_a_fork_has_its_parent_already(self) -> None:
        fork = {"response_id": "resp_1", "at": 1}
        body = {"fork": fork, "conversation": {"id": "conv_1", "parent": "resp_1"}}
        with pytest.raises(errors.ApiError) as error:
            responses_api.parse(body, POOLS)
        assert (error.value.status, error.value.param) == (400, "conversation.parent")

    def test_another_parent_is_another_request_to_an_idempotency_key(self) -> None:
        parents: list[dict[str, Any]] = [{}, {"parent": None}, {"parent": "resp_1"}]
        bodies = [{"conversation": {"id": "conv_1", **parent}} for parent in parents]
        assert len({command.body_digest(body) for body in bodies}) == 3


class TestAccepted:
    def test_a_bare_question_gets_the_default_model_and_its_defaults(self) -> None:
        create = responses_api.parse({"input": "hi"}, POOLS)
        assert (create.model, create.pool, create.priority) == ("small", "default", "interactive")
        assert (create.store, create.background, create.stream) == (True, False, False)
        assert create.input == [{"role": "user", "content": "hi"}]
        assert create.sampling.max_tokens == 40
        assert create.max_output_tokens is None

    def test_a_pool_says_how_to_sample_for_those_who_do_not(self) -> None:
        pools = Catalog(
            (Pool("default", ("tiny",), 8192, 1024, default_temperature=0.2, default_top_p=0.9),)
        )
        bare = responses_api.parse({"input": "hi"}, pools).sampling
        sampling = responses_api.parse(
            {"input": "hi", "temperature": 1, "top_p": 0.5}, pools
        ).sampling
        assert (bare.temperature, bare.top_p) == (0.2, 0.9)
        assert (sampling.temperature, sampling.top_p) == (1.0, 0.5)

    def test_the_model_chooses_the_pool(self) -> None:
        create = responses({"model": "large", "max_output_tokens": 8192})
        assert (create.pool, create.sampling.max_tokens, create.max_output_tokens) == (
            "big",
            8192,
            8192,
        )

    def test_a_pool_says_how_to_sample_when_the_request_does_not(self) -> None:
        pools = Catalog((Pool("p", ("m",), 100, 40, default_temperature=0.6, default_top_p=0.9),))
        sampling = responses_api.parse({"input": "x"}, pools).sampling
        assert (sampling.temperature, sampling.top_p) == (0.6, 0.9)
        explicit_sampling = responses_api.parse(
            {"input": "x", "temperature": 0, "top_p": 1}, pools
        ).sampling
        assert (explicit_sampling.temperature, explicit_sampling.top_p) == (0.0, 1.0)

    def test_items_of_all_roles_become_messages_and_developer_is_system(self) -> None:
        items = [
            {"role": "developer", "content": "be brief"},
            {
                "type": "message",
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "a"},
                    {"type": "input_text", "text": "b"},
                ],
            },
            {
                "type": "message",
                "id": "msg_1",
                "status": "completed",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "c", "annotations": []}],
            },
            {"role": "user", "content": "d"},
        ]
        create = responses({"input": items})
        assert [(m["role"], m["content"]) for m in create.input] == [
            ("system", "be brief"),
            ("user", "ab"),
            ("assistant", "c"),
            ("user", "d"),
        ]
        assert create.items[1]["content"] == [{"type": "input_text", "text": "ab"}]
        assert create.items[2]["content"][0]["type"] == "output_text"

    @cases.each(
        "body",
        [
            {
                "stream_options": {"include_obfuscation": True},
                "client_metadata": {"a": [1]},
                "anything": {"deep": {"er": 1}},
            },
            {
                "tools": [],
                "tool_choice": "auto",
                "parallel_tool_calls": False,
                "reasoning": {"effort": "low"},
                "include": ["reasoning.encrypted_content"],
            },
            {
                "text": {"format": {"type": "text"}, "verbosity": "low"},
                "truncation": "disabled",
                "service_tier": "auto",
                "max_tool_calls": 3,
            },
            dict.fromkeys(
                (
                    "instructions",
                    "temperature",
                    "metadata",
                    "store",
                    "stream",
                    "tools",
                    "text",
                    "user",
                    "previous_response_id",
                    "include",
                )
            ),
        ],
    )
    def test_fields_that_clients_send_and_that_change_nothing_are_tolerated(
        self, body: dict[str, Any]
    ) -> None:
        assert responses(body).input == [{"role": "user", "content": "hi"}]

    def test_a_warm_up_needs_no_input(self) -> None:
        assert responses_api.parse({"generate": False}, POOLS, websocket=True).input == []

    def test_a_continuation_needs_no_input(self) -> None:
        assert (
            responses_api.parse({"previous_response_id": "resp_x", "input": []}, POOLS).previous
            == "resp_x"
        )

    def test_stream_true_in_a_socket_frame_is_ignored_and_false_too(self) -> None:
        assert responses({"stream": False}, websocket=True).stream
        assert responses({"stream": "whatever", "stream_options": 1}, websocket=True).stream

    def test_generate_false_means_nothing_over_http(self) -> None:
        assert responses({"generate": False}).generate

    def test_flex_is_the_batch_class(self) -> None:
        assert responses({"service_tier": "flex"}).priority == "batch"

    def test_an_identity_in_the_body_reaches_no_field(self) -> None:
        create = responses(
            {
                "owner": {"issuer": "mallory"},
                "own": "1",
                "partition": 3,
                "rid": "resp_1",
            }
        )
        assert "mallory" not in repr(create)
        assert create.priority == "interactive"

    def test_chat_speaks_its_own_names(self) -> None:
        create = chat(
            {
                "max_completion_tokens": 7,
                "stop": "END",
                "seed": 3,
                "stream": True,
                "stream_options": {"include_usage": True},
                "n": 1,
            }
        )
        assert (create.sampling.max_tokens, create.sampling.stop, create.sampling.seed) == (
            7,
            ("END",),
            3,
        )
        assert create.stream
        assert create.usage_in_stream

    def test_chat_takes_the_older_name_of_the_token_bound(self) -> None:
        assert chat({"max_tokens": 9}).sampling.max_tokens == 9

    @cases.each("parse", [chat, responses])
    @cases.each("name", ["seed", "top_k", "min_tokens"])
    def test_a_whole_number_is_an_integer_however_it_is_written(
        self, parse: Callable[[dict[str, Any]], command.Create], name: str
    ) -> None:
        create = parse({name: 5.0})
        assert create == parse({name: 5})
        assert type(getattr(create.sampling, name)) is int

    def test_a_whole_number_keeps_its_bounds(self) -> None:
        assert responses({"max_output_tokens": 9.0}).max_output_tokens == 9
        for body in ({"max_output_tokens": 101.0}, {"max_output_tokens": 1e300}, {"seed": 1e300}):
            with pytest.raises(errors.ApiError) as error:
                responses(body)
            assert error.value.param in body

    def test_logit_bias_within_its_bounds(self) -> None:
        assert chat({"logit_bias": {"5": -100, "6": 0.5}}).sampling.logit_bias == {
            "5": -100.0,
            "6": 0.5,
        }


REFUSED_RESPONSES: list[tuple[dict[str, Any], str | None, str | None]] = [
    ({"input": None}, "input", "missing_required_parameter"),
    ({"input": []}, "input", "missing_required_parameter"),
    ({"input": 5}, "input", "invalid_type"),
    ({"input": [5]}, "input[0]", "invalid_type"),
    ({"input": [{"content": "x"}]}, "input[0].role", "missing_required_parameter"),
    ({"input": [{"role": "user"}]}, "input[0].content", "missing_required_parameter"),
    ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role", "unsupported_value"),
    ({"input": [{"role": ["user"], "content": "x"}]}, "input[0].role", "unsupported_value"),
    ({"input": [{"role": "user", "content": 5}]}, "input[0].content", "invalid_type"),
    (
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
        "input[0].content[0].image_url",
        "invalid_value",
    ),
    (
        {"input": [{"role": "user", "content": [{"type": "input_file", "file_url": "x"}]}]},
        "input[0].content[0].file_url",
        "unsupported_parameter",
    ),
    (
        {"input": [{"role": "user", "content": [{"type": "input_text", "text": 1}]}]},
        "input[0].content[0].text",
        "invalid_type",
    ),
    (
        {"input": [{"role": "user", "content": [{"type": "input_text", "text": "x"}] * 65}]},
        "input[0].content",
        "invalid_type",
    ),
    ({"input": [{"role": "user", "content": "x"}] * 513}, "input", "invalid_value"),
    ({"input": "x" * 1601}, "input", "context_length_exceeded"),
    ({"model": 5}, "model", "invalid_type"),
    ({"tool_choice": "required"}, "tool_choice", "invalid_value"),
    ({"tool_choice": {"type": "function", "name": "f"}}, "tool_choice", "invalid_value"),
    ({"conversation": 5}, "conversation", "invalid_type"),
    ({"conversation": {}}, "conversation.id", "missing_required_parameter"),
    ({"conversation": {"id": []}}, "conversation.id", "invalid_type"),
    (
        {"conversation": "conv_1", "previous_response_id": "resp_1"},
        "conversation",
        "mutually_exclusive_parameters",
    ),
    ({"conversation": "conv_1", "store": False}, "store", "invalid_value"),
    ({"conversation": {"parent": None}}, "conversation.id", "missing_required_parameter"),
    ({"conversation": {"id": "conv_1", "parent": 5}}, "conversation.parent", "invalid_type"),
    ({"if_busy": "wait"}, "if_busy", "unsupported_value"),
    ({"if_busy": ["queue"]}, "if_busy", "unsupported_value"),
    ({"prompt": {"id": "pmpt_1"}}, "prompt", "unsupported_parameter"),
    ({"text": "x"}, "text", "invalid_type"),
    ({"truncation": "oldest"}, "truncation", "invalid_value"),
    ({"truncation": 7}, "truncation", "invalid_type"),
    ({"include": "x"}, "include", "invalid_type"),
    ({"max_output_tokens": 0}, "max_output_tokens", "invalid_value"),
    ({"max_output_tokens": -1}, "max_output_tokens", "invalid_value"),
    ({"max_output_tokens": 101}, "max_output_tokens", "invalid_value"),
    ({"max_output_tokens": 10**400}, "max_output_tokens", "invalid_value"),
    ({"max_output_tokens": 1.5}, "max_output_tokens", "invalid_type"),
    ({"max_output_tokens": True}, "max_output_tokens", "invalid_type"),
    ({"max_output_tokens": "5"}, "max_output_tokens", "invalid_type"),
    ({"temperature": 2.01}, "temperature", "invalid_value"),
    ({"temperature": -0.1}, "temperature", "invalid_value"),
    ({"temperature": True}, "temperature", "invalid_type"),
    ({"temperature": "1"}, "temperature", "invalid_type"),
    ({"top_p": 0}, "top_p", "invalid_value"),
    ({"top_p": 1.5}, "top_p", "invalid_value"),
    ({"presence_penalty": 2.5}, "presence_penalty", "invalid_value"),
    ({"frequency_penalty": -3}, "frequency_penalty", "invalid_value"),
    ({"deadline_ms": 0}, "deadline_ms", "invalid_value"),
    ({"deadline_ms": 600_001}, "deadline_ms", "invalid_value"),
    ({"deadline_ms": "60000"}, "deadline_ms", "invalid_type"),
    ({"cached_answers": "no"}, "cached_answers", "invalid_type"),
    ({"cached_answers": 0}, "cached_answers", "invalid_type"),
    ({"store": "yes"}, "store", "invalid_type"),
    ({"store": 1}, "store", "invalid_type"),
    ({"stream": "true"}, "stream", "invalid_type"),
    ({"background": True, "store": False}, "background", "invalid_value"),
    ({"metadata": {str(i): "x" for i in range(17)}}, "metadata", "invalid_value"),
    ({"metadata": {"k" * 65: "x"}}, "metadata", "invalid_value"),
    ({"metadata": {"k": "x" * 513}}, "metadata", "invalid_value"),
    ({"metadata": {"k": 5}}, "metadata", "invalid_type"),
    ({"metadata": []}, "metadata", "invalid_type"),
    ({"instructions": 5}, "instructions", "invalid_type"),
    ({"instructions": "x" * 1601}, "instructions", "invalid_value"),
    ({"previous_response_id": 5}, "previous_response_id", "invalid_type"),
    ({"previous_response_id": "r" * 513}, "previous_response_id", "invalid_value"),
    ({"user": "u" * 513}, "user", "invalid_value"),
    ({"seed": 2**63}, "seed", "invalid_value"),
    ({"seed": 0.5}, "seed", "invalid_type"),
    ({"service_tier": 1}, "service_tier", "invalid_type"),
]

REFUSED_CHAT: list[tuple[dict[str, Any], str | None, str | None]] = [
    ({"messages": None}, "messages", "missing_required_parameter"),
    ({"messages": []}, "messages", "missing_required_parameter"),
    ({"messages": "hi"}, "messages", "invalid_type"),
    ({"messages": [{"role": "user", "content": "x"}] * 513}, "messages", "invalid_value"),
    (
        {"messages": [{"role": "tool", "tool_call_id": "c", "content": "x"}]},
        "messages[0].tool_call_id",
        "invalid_value",
    ),
    (
        {
            "messages": [
                {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
            ]
        },
        "messages[0].content[0].image_url.url",
        "invalid_value",
    ),
    ({"n": 10**9}, "n", "invalid_value"),
    ({"top_logprobs": 5}, "top_logprobs", "invalid_value"),
    ({"functions": [{"name": "f"}]}, "functions", "unsupported_parameter"),
    ({"audio": {"voice": "x"}}, "audio", "unsupported_parameter"),
    ({"modalities": ["text", "audio"]}, "modalities", "unsupported_value"),
    ({"stop": ["a", "b", "c", "d", "e"]}, "stop", "invalid_value"),
    ({"stop": "x" * 65}, "stop", "invalid_value"),
    ({"stop": ""}, "stop", "invalid_value"),
    ({"stop": [1]}, "stop", "invalid_type"),
    ({"logit_bias": {str(i): 1 for i in range(301)}}, "logit_bias", "invalid_value"),
    ({"logit_bias": {"the": 1}}, "logit_bias", "invalid_value"),
    ({"logit_bias": {"-1": 1}}, "logit_bias", "invalid_value"),
    ({"logit_bias": {"12345678": 1}}, "logit_bias", "invalid_value"),
    ({"logit_bias": {"1": 101}}, "logit_bias", "invalid_value"),
    ({"logit_bias": {"1": "x"}}, "logit_bias", "invalid_value"),
    ({"logit_bias": [1]}, "logit_bias", "invalid_type"),
    ({"max_completion_tokens": 0}, "max_completion_tokens", "invalid_value"),
    ({"max_tokens": 101}, "max_tokens", "invalid_value"),
    ({"stream_options": []}, "stream_options", "invalid_type"),
]


MESSAGES: list[tuple[dict[str, Any], str]] = [
    ({"store": 1}, "Invalid type for 'store': expected a boolean."),
    ({"service_tier": 1}, "Invalid type for 'service_tier': expected a string."),
    ({"temperature": "1"}, "Invalid type for 'temperature': expected a number."),
    ({"temperature": 2.01}, "Invalid 'temperature': expected a value from 0.0 to 2.0."),
    ({"temperature": -1}, "Invalid 'temperature': expected a value from 0.0 to 2.0."),
    ({"temperature": 10**400}, "Invalid 'temperature': expected a value from 0.0 to 2.0."),
    ({"top_p": 0}, "Invalid 'top_p': expected a value above 0 and at most 1."),
    ({"top_p": 1.5}, "Invalid 'top_p': expected a value from 0.0 to 1.0."),
    ({"top_p": -1}, "Invalid 'top_p': expected a value from 0.0 to 1.0."),
    ({"presence_penalty": 3}, "Invalid 'presence_penalty': expected a value from -2.0 to 2.0."),
    ({"frequency_penalty": -3}, "Invalid 'frequency_penalty': expected a value from -2.0 to 2.0."),
    ({"seed": 0.5}, "Invalid type for 'seed': expected an integer."),
    ({"seed": 2**63}, "Invalid 'seed': expected a 64-bit integer."),
    ({"seed": -(2**70)}, "Invalid 'seed': expected a 64-bit integer."),
    ({"user": 5}, "Invalid type for 'user': expected a string."),
    ({"user": "\U0001f600" * 513}, "Invalid 'user': expected at most 512 characters."),
    (
        {"prompt_cache_key": "x" * 513},
        "Invalid 'prompt_cache_key': expected at most 512 characters.",
    ),
    ({"stream": "true"}, "Invalid type for 'stream': expected a boolean."),
]
MESSAGES_RESPONSES: list[tuple[dict[str, Any], str]] = [
    ({"max_output_tokens": 1.5}, "Invalid type for 'max_output_tokens': expected an integer."),
    ({"max_output_tokens": 0}, "Invalid 'max_output_tokens': expected a value from 1 to 100."),
    ({"max_output_tokens": 2**70}, "Invalid 'max_output_tokens': expected a value from 1 to 100."),
    ({"instructions": "x" * 1601}, "Invalid 'instructions': expected at most 1600 characters."),
    ({"background": 1}, "Invalid type for 'background': expected a boolean."),
    ({"parallel_tool_calls": 1}, "Invalid type for 'parallel_tool_calls': expected a boolean."),
    ({"text": "x"}, "Invalid type for 'text': expected an object."),
]
MESSAGES_CHAT: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": 101}, "Invalid 'max_tokens': expected a value from 1 to 100."),
    ({"stream_options": []}, "Invalid type for 'stream_options': expected an object."),
    (
        {"stream_options": {"include_usage": 1}},
        "Invalid type for 'include_usage': expected a boolean.",
    ),
]


class TestMessages:
    @cases.each(("body", "message"), [*MESSAGES, *MESSAGES_RESPONSES])
    def test_of_responses(self, body: dict[str, Any], message: str) -> None:
        with pytest.raises(errors.ApiError) as error:
            responses(body)
        assert error.value.message == message

    @cases.each(("body", "message"), [*MESSAGES, *MESSAGES_CHAT])
    def test_of_chat_completions(self, body: dict[str, Any], message: str) -> None:
        with pytest.raises(errors.ApiError) as error:
            chat(body)
        assert error.value.message == message

    @pytest.mark.parametrize(
        ("body", "param"),
        [({"generate": 1}, "generate"), ({"idempotency_key": "k" * 513}, "idempotency_key")],
    )
    def test_of_a_create_event(self, body: dict[str, Any], param: str) -> None:
        assert responses(body).generate, "over HTTP both fields mean nothing"
        with pytest.raises(errors.ApiError) as error:
            responses(body, websocket=True)
        assert error.value.param == param

    def test_labels_count_characters_and_bounds_are_allowed_values(self) -> None:
        create = responses(
            {
                "user": "\U0001f600" * 512,
                "temperature": 2,
                "top_p": 1,
                "presence_penalty": -2,
                "seed": -(2**63),
            }
        )
        assert create.user == "\U0001f600" * 512
        sampling = create.sampling
        assert (sampling.temperature, sampling.top_p, sampling.seed) == (2.0, 1.0, -(2**63))
        assert responses({"seed": 2**63 - 1}).sampling.seed == 2**63 - 1
        assert (create.deadline_ms, responses({"deadline_ms": 1}).deadline_ms) == (600_000, 1)


class TestRefused:
    @cases.each(("body", "param", "code"), REFUSED_RESPONSES)
    def test_responses(self, body: dict[str, Any], param: str, code: str) -> None:
        with pytest.raises(errors.ApiError) as error:
            responses(body)
        assert (error.value.status, error.value.param, error.value.code) == (400, param, code)

    @cases.each(("body", "param", "code"), REFUSED_CHAT)
    def test_chat(self, body: dict[str, Any], param: str, code: str) -> None:
        with pytest.raises(errors.ApiError) as error:
            chat(body)
        assert (error.value.status, error.value.param, error.value.code) == (400, param, code)

    def test_an_unknown_model_is_404(self) -> None:
        with pytest.raises(errors.ApiError) as error:
            responses({"model": "gpt-9"})
        assert (error.value.status, error.value.code) == (404, "model_not_found")

    def test_background_over_a_socket(self) -> None:
        with pytest.raises(errors.ApiError) as error:
            responses({"background": True}, websocket=True)
        assert error.value.param == "background"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4)
    ),
    max_leaves=10,
)


def test_a_compaction_needs_a_model_which_may_be_null() -> None:
    """As OpenAI's type has it."""
    with pytest.raises(errors.ApiError) as error:
        responses_api.parse_compact({"input": "hi"}, POOLS)
    assert (error.value.code, error.value.param) == ("missing_required_parameter", "model")
    assert responses_api.parse_compact({"input": "hi", "model": None}, POOLS).model == "small"
    assert responses_api.parse_compact({"input": "hi", "model": "large"}, POOLS).model == "large"


def test_one_message_that_is_too_long_is_said_to_be() -> None:
    """To leave out others, or to begin a new conversation, cannot help."""
    with pytest.raises(errors.ApiError) as error:
        responses({"input": "x" * 1601})
    assert (error.value.code, error.value.param) == ("context_length_exceeded", "input")
    assert error.value.message == (
        "One message alone has 1601 characters, which is more than this model's context window "
        "holds (100 tokens, at most 1600 characters). Please shorten it or split it up."
    )
    turns = [{"role": "user", "content": "x" * 900}, {"role": "user", "content": "y" * 900}]
    with pytest.raises(errors.ApiError, match="Your input exceeds"):
        responses({"input": turns})


FIELDS = sorted(
    {name for body, _, _ in (*REFUSED_RESPONSES, *REFUSED_CHAT) for name in body}
    | {"generate", "safety_identifier", "idempotency_key"}
)


@hypothesis.given(st.dictionaries(st.sampled_from(FIELDS), json_values, max_size=6), st.booleans())
def test_any_body_is_either_a_command_that_fits_a_record_or_a_clear_refusal(
    body: dict[str, Any], websocket: bool
) -> None:
    for make in (
        lambda: responses_api.parse(body, POOLS, websocket=websocket),
        lambda: chat_api.parse(body, POOLS),
    ):
        outcome = outcome_of(make)
        if isinstance(outcome, errors.ApiError):
            assert outcome.status in (400, 404)
            msgspec.json.encode(errors.ws_event(outcome))
        else:
            assert 1 <= outcome.sampling.max_tokens <= 8192
            msgspec.json.encode(outcome)


def outcome_of(
    make: Callable[[], command.Create],
) -> command.Create | errors.ApiError:
    try:
        return make()
    except errors.ApiError as error:
        return error
