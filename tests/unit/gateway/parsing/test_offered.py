"""The switch: what parses and is not served is refused, each feature by itself."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.parsing import chat_api, offered, responses_api
from gateway.parsing.offered import Feature
from tailrace.protocol import errors
from tests.unit.gateway.parsing.asked import POOLS, QUESTION

CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
TOOL = {"type": "function", "function": {"name": "f"}}
REFERENCE = {"type": "item_reference", "id": "msg_1"}

RESPONSES: list[tuple[Feature, dict[str, Any], str]] = [
    (Feature.TOOLS, {"tools": [TOOL]}, "tools"),
    (Feature.TOOLS, {"tools": [{"type": "web_search"}]}, "tools"),
    (Feature.FORMATS, {"text": {"format": {"type": "json_object"}}}, "text.format"),
    (Feature.FORMATS, {"guided_choice": ["a"]}, "guided_choice"),
    (Feature.ITEMS, {"input": [*QUESTION, CALL]}, "input[1].type"),
    (Feature.REFERENCES, {"input": [*QUESTION, REFERENCE]}, "input[1].type"),
    (Feature.LOGPROBS, {"top_logprobs": 1}, "top_logprobs"),
    (Feature.LOGPROBS, {"include": ["message.output_text.logprobs"]}, "include"),
]
CHAT: list[tuple[Feature, dict[str, Any], str]] = [
    (Feature.TOOLS, {"tools": [TOOL]}, "tools"),
    (Feature.FORMATS, {"response_format": {"type": "json_object"}}, "response_format"),
    (Feature.LOGPROBS, {"logprobs": True}, "logprobs"),
    (Feature.CHOICES, {"n": 2}, "n"),
]


@pytest.mark.parametrize(("feature", "body", "param"), RESPONSES)
def test_of_responses(feature: Feature, body: dict[str, Any], param: str) -> None:
    asked = {"input": "hi", **body}
    responses_api.parse(asked, POOLS, serving=offered.EVERYTHING)
    with pytest.raises(errors.ApiError) as refused:
        responses_api.parse(asked, POOLS, serving=offered.EVERYTHING - {feature})
    assert refused.value.param == param


@pytest.mark.parametrize(("feature", "body", "param"), CHAT)
def test_of_chat(feature: Feature, body: dict[str, Any], param: str) -> None:
    asked = {"messages": QUESTION, **body}
    chat_api.parse(asked, POOLS, serving=offered.EVERYTHING)
    with pytest.raises(errors.ApiError) as refused:
        chat_api.parse(asked, POOLS, serving=offered.EVERYTHING - {feature})
    assert refused.value.param == param
