"""An idempotency key, and the digest that says which bodies ask for the same."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.parsing import command, responses_api
from tailrace.protocol import errors, events
from tailrace.settings.catalog import Catalog
from tailrace.settings.shapes import Pool
from tests.support import cases

CATALOG = Catalog((Pool("p", ("m",), 100, 40),))
CREATE = responses_api.parse({"input": "hi"}, CATALOG)
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}}


def test_a_key_from_the_header_is_bounded() -> None:
    assert command.with_key(CREATE, "k", {}).idempotency_key == "k"
    assert command.with_key(CREATE, None, {}).idempotency_key is None
    with pytest.raises(errors.ApiError):
        command.with_key(CREATE, "k" * 513, {})


@cases.each(
    "same",
    [
        {"model": "m", "input": "hi", "metadata": {"b": "2", "a": "1"}},
        {"metadata": {"a": "1", "b": "2"}, "input": "hi", "model": "m", "user": None},
        {"input": "hi", "model": "m", "metadata": {"a": "1", "b": "2"}, "stream": True},
        {
            "type": "response.create",
            "stream_id": "lane",
            "idempotency_key": "k",
            "input": "hi",
            "model": "m",
            "metadata": {"a": "1", "b": "2"},
        },
    ],
)
def test_the_digest_of_a_body_is_that_of_what_is_asked_for(same: dict[str, Any]) -> None:
    body = {"model": "m", "input": "hi", "metadata": {"a": "1", "b": "2"}}
    assert command.body_digest(same) == command.body_digest(body)


@cases.each(
    "other", [{"input": "ho"}, {"temperature": 0.5}, {"background": True}, {"x-unknown": 1}]
)
def test_the_digest_of_another_body_is_another_one(other: dict[str, Any]) -> None:
    body = {"model": "m", "input": "hi"}
    assert command.body_digest({**body, **other}) != command.body_digest(body)


def test_an_echo_leaves_out_what_the_response_object_has_anyway() -> None:
    output = events.echo("resp_1", 1, "m")
    defaults = {
        "tools": [],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "max_tool_calls": None,
        "reasoning": None,
        "top_logprobs": 0,
        "text": {"format": {"type": "text"}},
    }
    assert {name: output[name] for name in defaults} == defaults
    assert CREATE.echo == {}
    for request in ({"tools": [TOOL]}, {"text": {"verbosity": "low"}}):
        create = responses_api.parse({"input": "hi", **defaults, **request}, CATALOG)
        assert create.echo.keys() == request.keys()
