"""What the model is given: items of both APIs, and the chat messages that they become."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.parsing import conversation, input_items
from tailrace.protocol import errors
from tests.support import cases
from tests.unit.gateway.parsing.parsers import (
    QUESTION,
    chat,
    code_and_param,
    refused_chat,
    refused_responses,
    responses,
)

CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a":1}'}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "42"}
REASONING = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [{"type": "summary_text", "text": "s"}],
    "content": [{"type": "reasoning_text", "text": "hm"}],
}
CALL_MESSAGE = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}


def of(*items: Any) -> list[dict[str, Any]]:
    """Messages of a warm-up, in which calls need no output."""
    return responses({"input": list(items), "generate": False}, websocket=True).input


class TestMessages:
    def test_a_call_is_a_message_of_the_assistant_and_its_output_one_of_the_tool(self) -> None:
        assert of(*QUESTION, CALL, OUTPUT) == [
            *QUESTION,
            {"role": "assistant", "content": "", "tool_calls": [CALL_MESSAGE]},
            {"role": "tool", "tool_call_id": "c1", "content": "42"},
        ]

    def test_text_and_calls_of_one_answer_are_one_message(self) -> None:
        answer = {"role": "assistant", "content": "I look."}
        other = {**CALL, "call_id": "c2"}
        assert of(answer, CALL, other)[0]["tool_calls"] == [
            CALL_MESSAGE,
            {**CALL_MESSAGE, "id": "c2"},
        ]
        assert len(of(answer, CALL, other)) == 1

    def test_reasoning_belongs_to_the_answer_that_follows(self) -> None:
        (message,) = of(REASONING, CALL)
        assert message["reasoning_content"] == "hm"
        first, second = of({"role": "assistant", "content": "a"}, REASONING, CALL)
        assert "tool_calls" not in first
        assert (second["reasoning_content"], second["tool_calls"]) == ("hm", [CALL_MESSAGE])

    def test_reasoning_whose_text_is_its_summary_is_read_there(self) -> None:
        parts = [{"type": "summary_text", "text": "hm"}]
        summarized = {**REASONING, "summary": parts, "content": []}
        (message,) = of(summarized, CALL)
        assert message["reasoning_content"] == "hm"

    def test_reasoning_without_an_answer_says_nothing(self) -> None:
        assert of(REASONING, *QUESTION) == QUESTION

    def test_a_call_after_an_output_is_a_new_answer(self) -> None:
        roles = [m["role"] for m in of(CALL, OUTPUT, {**CALL, "call_id": "c2"})]
        assert roles == ["assistant", "tool", "assistant"]

    def test_a_namespace_is_part_of_the_name_as_the_model_knows_it(self) -> None:
        (message,) = of({**CALL, "namespace": "crm"})
        assert message["tool_calls"][0]["function"]["name"] == "crm__f"

    def test_custom_calls(self) -> None:
        messages = of(
            {"type": "custom_tool_call", "call_id": "c1", "name": "f", "input": "x"},
            {"type": "custom_tool_call_output", "call_id": "c1", "output": "y"},
        )
        assert messages[0]["tool_calls"] == [
            {"id": "c1", "type": "custom", "custom": {"name": "f", "input": "x"}}
        ]
        assert messages[1]["content"] == "y"

    def test_an_output_may_have_parts(self) -> None:
        parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
        assert of(CALL, {**OUTPUT, "output": parts})[-1]["content"] == "ab"

    def test_a_refusal_is_what_the_assistant_said(self) -> None:
        part = {"type": "refusal", "refusal": "no"}
        assert of({"role": "assistant", "content": [part]})[0]["content"] == "no"

    def test_both_apis_have_the_same_conversation(self) -> None:
        request = [
            *QUESTION,
            {
                "role": "assistant",
                "content": None,
                "reasoning_content": "hm",
                "tool_calls": [CALL_MESSAGE],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "42"},
            {"role": "assistant", "content": None, "refusal": "no"},
        ]
        own = [*QUESTION, REASONING, CALL, OUTPUT, {"role": "assistant", "content": "no"}]
        assert chat({"messages": request}).input == of(*own)

    def test_an_answer_of_thoughts_only_can_be_sent_back(self) -> None:
        """It is what a client gets of an answer that was cut short while the model thought."""
        thoughts = {"role": "assistant", "content": None, "reasoning_content": "hm"}
        chat_input = chat({"messages": [*QUESTION, thoughts, *QUESTION]}).input
        assert chat_input[1] == {"role": "assistant", "content": "", "reasoning_content": "hm"}

    @cases.each("members", [{}, {"type": None}, {"type": "function"}])
    def test_a_call_is_of_a_function_unless_it_says_otherwise(
        self, members: dict[str, Any]
    ) -> None:
        call = {name: value for name, value in CALL_MESSAGE.items() if name != "type"} | members
        answer = {"role": "assistant", "content": None, "tool_calls": [call]}
        assert chat({"messages": [*QUESTION, answer]}).input[1]["tool_calls"] == [CALL_MESSAGE]

    def test_an_answer_without_anything_is_refused(self) -> None:
        nothing: dict[str, Any] = {
            "role": "assistant",
            "content": None,
            "reasoning_content": "",
            "tool_calls": [],
        }
        error = refused_chat({"messages": [*QUESTION, nothing]})
        assert error.param == "messages[1].content"

    def test_all_that_is_said_counts(self) -> None:
        (message,) = of(REASONING, CALL)
        assert conversation.characters([message]) == len("hm" + "f" + '{"a":1}')


class TestUnresolved:
    def test_references_and_seals_wait_for_the_log_and_the_key(self) -> None:
        create = responses(
            {
                "input": [
                    {"type": "item_reference", "id": "msg_1"},
                    {"id": "rs_1"},
                    {"type": "reasoning", "summary": [], "encrypted_content": "xx"},
                    {"type": "compaction", "encrypted_content": "yy"},
                    {**REASONING, "encrypted_content": "zz"},
                    *QUESTION,
                ]
            }
        )
        assert [type(item).__name__ for item in conversation.to_resolve(create.turn)] == [
            "Reference",
            "Reference",
            "Reasoning",
            "Compaction",
            "Reasoning",
        ]
        assert create.input == QUESTION


class TestAnswered:
    def test_an_output_without_a_call_is_refused(self) -> None:
        assert code_and_param(refused_responses({"input": [OUTPUT]})) == (
            "input[0].call_id",
            "invalid_value",
        )
        assert code_and_param(refused_responses({"input": [OUTPUT, CALL]}))[0] == "input[0].call_id"
        message = {"role": "tool", "tool_call_id": "c1", "content": "x"}
        assert (
            code_and_param(refused_chat({"messages": [message]}))[0] == "messages[0].tool_call_id"
        )

    def test_a_call_of_an_earlier_turn_may_be_answered(self) -> None:
        create = responses({"input": [OUTPUT], "previous_response_id": "resp_1"})
        earlier = [{"role": "assistant", "content": "", "tool_calls": [CALL_MESSAGE]}]
        conversation.check_calls(create.turn, earlier, complete=True)

    def test_a_call_without_an_output_is_refused(self) -> None:
        parallel = [CALL, {**CALL, "call_id": "c2"}, OUTPUT]
        error = refused_responses({"input": [*QUESTION, *parallel]})
        assert code_and_param(error) == ("input", "invalid_value")
        assert error.message == "No tool output found for function call c2."
        warm_up = {"input": [*QUESTION, *parallel], "generate": False}
        assert len(responses(warm_up, websocket=True).turn) == 4

    def test_calls_of_an_answer_that_was_cut_short_need_no_output(self) -> None:
        earlier = [{"role": "assistant", "content": "", "tool_calls": [CALL_MESSAGE], "cut": True}]
        follows = responses({"input": QUESTION, "previous_response_id": "resp_1"}).turn
        assert conversation.check_calls(follows, earlier, complete=True) == {"c1"}
        answers = responses({"input": [OUTPUT], "previous_response_id": "resp_1"}).turn
        assert conversation.check_calls(answers, earlier, complete=True) == set()

    def test_outputs_of_several_calls_come_in_any_order(self) -> None:
        calls = [{**CALL, "call_id": name} for name in ("c1", "c2", "c3")]
        outputs = [{**OUTPUT, "call_id": name} for name in ("c3", "c1", "c2")]
        assert responses({"input": [*QUESTION, *calls, *outputs]}).turn

    def test_an_output_that_is_sent_twice_is_refused(self) -> None:
        error = refused_responses({"input": [CALL, OUTPUT, OUTPUT]})
        assert code_and_param(error) == ("input[2].call_id", "invalid_value")
        assert error.message == "Duplicate function call output with call_id c1."
        earlier: list[dict[str, Any]] = [
            {"role": "assistant", "content": "", "tool_calls": [CALL_MESSAGE]},
            {"role": "tool", "tool_call_id": "c1", "content": "x"},
        ]
        create = responses({"input": [OUTPUT], "previous_response_id": "resp_1"})
        with pytest.raises(errors.ApiError, match="Duplicate function call output"):
            conversation.check_calls(create.turn, earlier, complete=True)

    def test_a_call_that_is_sent_again_before_its_output_is_refused(self) -> None:
        """A client that continues a response and sends its output items once more."""
        earlier = [{"role": "assistant", "content": "", "tool_calls": [CALL_MESSAGE]}]
        create = responses({"input": [CALL, OUTPUT], "previous_response_id": "resp_1"})
        with pytest.raises(errors.ApiError, match="Duplicate item found with call_id c1"):
            conversation.check_calls(create.turn, earlier, complete=True)

    def test_an_id_may_be_used_again_by_a_later_turn(self) -> None:
        assert len(responses({"input": [CALL, OUTPUT, *QUESTION, CALL, OUTPUT]}).turn) == 5

    def test_a_reference_may_be_the_call(self) -> None:
        assert responses({"input": [{"type": "item_reference", "id": "fc_1"}, OUTPUT]}).turn


def test_items_are_shown_as_they_were_sent() -> None:
    custom = {"type": "custom_tool_call", "call_id": "c2", "name": "g", "input": "x"}
    answer = {"type": "custom_tool_call_output", "call_id": "c2", "output": "y"}
    payload: list[dict[str, Any]] = [
        {**CALL, "namespace": "crm"},
        OUTPUT,
        custom,
        answer,
        {**REASONING, "status": "completed"},
        {"role": "developer", "content": [{"type": "input_text", "text": "x"}]},
        {"type": "item_reference", "id": "msg_1"},
        {"type": "compaction", "id": "cmp_1", "encrypted_content": "z"},
    ]
    output = responses({"input": payload, "previous_response_id": "resp_1"}).items
    for item, original in zip(output, payload, strict=True):
        assert item == {**item, **original}


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"type": "web_search_call"}, ".type", "unsupported_value"),
    ({"type": ["message"]}, ".type", "unsupported_value"),
    ({**CALL, "call_id": None}, ".call_id", "missing_required_parameter"),
    ({**CALL, "call_id": 5}, ".call_id", "invalid_type"),
    ({**CALL, "call_id": ""}, ".call_id", "invalid_value"),
    ({**CALL, "call_id": "x" * 257}, ".call_id", "invalid_value"),
    ({**CALL, "name": None}, ".name", "missing_required_parameter"),
    ({**CALL, "arguments": {"a": 1}}, ".arguments", "invalid_type"),
    ({**CALL, "namespace": 5}, ".namespace", "invalid_type"),
    ({**CALL, "type": "custom_tool_call"}, ".input", "invalid_type"),
    ({**OUTPUT, "output": None}, ".output", "missing_required_parameter"),
    ({**OUTPUT, "output": 5}, ".output", "invalid_type"),
    (
        {**OUTPUT, "output": [{"type": "input_audio", "data": "x"}]},
        ".output[0].type",
        "unsupported_value",
    ),
    ({**REASONING, "content": "x"}, ".content", "invalid_type"),
    ({**REASONING, "content": [5]}, ".content[0]", "invalid_type"),
    ({**REASONING, "content": [{"type": "text"}]}, ".content[0].type", "unsupported_value"),
    (
        {**REASONING, "content": [{"type": "reasoning_text"}]},
        ".content[0].text",
        "invalid_type",
    ),
    ({**REASONING, "summary": [5]}, ".summary[0]", "invalid_type"),
    ({**REASONING, "id": 5}, ".id", "invalid_type"),
    ({**REASONING, "encrypted_content": 5}, ".encrypted_content", "invalid_type"),
    (
        {**REASONING, "encrypted_content": "x" * (input_items.MAX_SEALED_CHARS + 1)},
        ".encrypted_content",
        "invalid_value",
    ),
    ({"type": "item_reference"}, ".id", "missing_required_parameter"),
    ({"type": "compaction"}, ".encrypted_content", "invalid_type"),
    ({"type": "compaction", "id": 5, "encrypted_content": "x"}, ".id", "invalid_type"),
    (
        {"role": "user", "content": [{"type": "refusal", "refusal": "x"}]},
        ".content[0].type",
        "unsupported_value",
    ),
    (
        {"role": "assistant", "content": [{"type": "refusal"}]},
        ".content[0].refusal",
        "invalid_type",
    ),
    (
        {"role": "assistant", "content": "x", "tool_calls": [{"id": "c"}]},
        ".tool_calls",
        "unsupported_parameter",
    ),
]


@cases.each(("item", "path", "code"), REFUSED)
def test_an_item_is_refused_by_name(item: dict[str, Any], path: str, code: str) -> None:
    assert code_and_param(refused_responses({"input": [*QUESTION, item]})) == (
        f"input[1]{path}",
        code,
    )


def answer(**members: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": None, **members}


REFUSED_MESSAGES: list[tuple[dict[str, Any], str, str]] = [
    ({"role": "function", "name": "f", "content": "x"}, ".role", "unsupported_value"),
    (answer(function_call={"name": "f"}), ".function_call", "unsupported_parameter"),
    (answer(), ".content", "missing_required_parameter"),
    (answer(tool_calls=[]), ".content", "missing_required_parameter"),
    (answer(tool_calls={"id": "c"}), ".tool_calls", "invalid_type"),
    (answer(tool_calls=[CALL_MESSAGE] * 129), ".tool_calls", "invalid_type"),
    (answer(tool_calls=[5]), ".tool_calls[0]", "invalid_type"),
    (answer(tool_calls=[{"type": "x"}]), ".tool_calls[0].type", "unsupported_value"),
    (
        answer(tool_calls=[{"id": "c"}]),
        ".tool_calls[0].function",
        "missing_required_parameter",
    ),
    (answer(tool_calls=[{"id": "c", "function": 5}]), ".tool_calls[0].function", "invalid_type"),
    (
        answer(tool_calls=[{**CALL_MESSAGE, "id": None}]),
        ".tool_calls[0].id",
        "missing_required_parameter",
    ),
    (
        answer(tool_calls=[{"id": "c", "function": {"arguments": "{}"}}]),
        ".tool_calls[0].function.name",
        "missing_required_parameter",
    ),
    (
        answer(tool_calls=[{"id": "c", "function": {"name": "f", "arguments": {}}}]),
        ".tool_calls[0].function.arguments",
        "invalid_type",
    ),
    (
        answer(tool_calls=[{"id": "c", "type": "custom", "custom": {"name": "f"}}]),
        ".tool_calls[0].custom.input",
        "invalid_type",
    ),
    (answer(refusal=5), ".refusal", "invalid_type"),
    ({"role": "tool", "content": "x"}, ".tool_call_id", "missing_required_parameter"),
    ({"role": "tool", "tool_call_id": "c"}, ".content", "missing_required_parameter"),
]


@cases.each(("message", "path", "code"), REFUSED_MESSAGES)
def test_a_message_is_refused_by_name(message: dict[str, Any], path: str, code: str) -> None:
    error = refused_chat({"messages": [*QUESTION, message]})
    assert code_and_param(error) == (f"messages[1]{path}", code)
