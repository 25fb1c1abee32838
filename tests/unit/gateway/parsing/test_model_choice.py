"""Which pool and model answer: aliases, and the rules of `auto`."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.parsing import chat_api, command, completions_api, embeddings_api, responses_api
from tailrace.protocol import errors
from tailrace.settings import catalog
from tests.support import cases

OFFERED = catalog.from_file(
    {
        "pools": {
            "small": {
                "models": ["s"],
                "aliases": ["fast"],
                "max_model_len": 1000,
                "output_limit": 50,
                "truncation": "auto",
                "classes": ["batch", "interactive"],
            },
            "seeing": {"models": ["v"], "cache": "none"},
            "large": {"models": ["l"], "classes": ["interactive"]},
        },
        "auto": [
            {"model": "v", "features": ["images"]},
            {"model": "l", "features": ["tools"]},
            {"model": "l", "features": ["json", "reasoning"]},
            {"model": "fast", "max_prompt_tokens": 100},
            {"model": "l", "max_prompt_tokens": 1000},
        ],
    }
)
PLAIN = catalog.Catalog(OFFERED.pools)
SHORT, LONG, LONGEST = "x" * 396, "x" * 404, "x" * 4004
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}
PIXEL = "data:image/png;base64," + "A" * 10_000
CHAT = {"response_format": {"type": "json_object"}}
SCHEMA = {"type": "json_schema", "name": "n", "schema": {"type": "object"}}


def responses(**body: Any) -> command.Create:
    return responses_api.parse({"model": "auto", **body}, OFFERED)


@cases.each(
    ("body", "model"),
    [
        ({"input": SHORT}, "s"),
        ({"input": LONG}, "l"),
        ({"input": "x", "instructions": LONG}, "l"),
        ({"input": "x", "tools": [TOOL]}, "l"),
        ({"input": "x", "tools": [TOOL], "tool_choice": "none"}, "s"),
        ({"input": "x", "text": {"format": SCHEMA}}, "s"),
        ({"input": "x", "reasoning": {"effort": "low"}}, "s"),
        ({"input": "x", "reasoning": {"effort": "low"}, "text": {"format": SCHEMA}}, "l"),
        ({"input": "x", "reasoning": {"effort": "none"}, "text": {"format": SCHEMA}}, "s"),
    ],
)
def test_the_first_rule_that_fits(body: dict[str, Any], model: str) -> None:
    create = responses(**body)
    assert (create.model, create.echo.get("model", model)) == (model, model)
    assert create.pool == {"s": "small", "l": "large"}[model]


def test_an_image_is_seen_in_the_middle_of_a_conversation() -> None:
    output = [{"type": "image_url", "image_url": {"url": PIXEL}}]
    body = {"model": "auto", "messages": [{"role": "user", "content": output}]}
    with pytest.raises(errors.ApiError) as error:
        chat_api.parse(body, OFFERED)  # it is no picture, which is looked at later
    assert error.value.param != "model"
    from gateway.parsing import model_choice

    assert model_choice.for_text(body, OFFERED)[1] == "v"
    assert model_choice.prompt_tokens(body) < 5_000


def test_all_three_apis_know_it_and_embeddings_do_not() -> None:
    question = [{"role": "user", "content": LONG}]
    assert chat_api.parse({"model": "auto", "messages": question}, OFFERED).model == "l"
    question = [{"role": "user", "content": SHORT}]
    body = {"model": "auto", "messages": question, "reasoning_effort": "high", **CHAT}
    assert chat_api.parse(body, OFFERED).model == "l"
    request = completions_api.parse({"model": "auto", "prompt": [SHORT, SHORT]}, OFFERED)
    assert {each.model for each in request.creates} == {"l"}
    with pytest.raises(errors.ApiError) as error:
        embeddings_api.parse({"model": "auto", "input": "x"}, OFFERED)
    assert error.value.status == 404


def test_no_rule_fits() -> None:
    with pytest.raises(errors.ApiError) as error:
        responses(input=LONGEST)
    assert (error.value.status, error.value.param) == (400, "model")
    assert "about 1001 tokens" in error.value.message


def test_without_rules_auto_is_an_unknown_model() -> None:
    with pytest.raises(errors.ApiError) as error:
        responses_api.parse({"model": "auto", "input": "x"}, PLAIN)
    assert error.value.status == 404


def test_an_alias_is_answered_by_the_pools_model() -> None:
    create = responses(model="fast", input="x")
    assert (create.model, create.pool) == ("s", "small")


def test_the_pool_says_what_a_request_that_says_nothing_gets() -> None:
    create = responses(model="s", input="x")
    assert (create.truncate, create.priority, create.sampling.max_tokens) == (True, "batch", 50)
    assert create.cached
    command_ = responses(model="s", input="x", truncation="disabled", service_tier="default")
    assert (command_.truncate, command_.priority) == (False, "interactive")
    assert not responses(model="v", input="x").cached
    count_request = responses_api.parse_count({"model": "s", "input": "x"}, OFFERED)
    assert not count_request.truncate
    assert not responses_api.parse_compact({"model": "s", "input": "x"}, OFFERED).truncate
    fork = {"response_id": "resp_x", "at": 1}
    assert not responses_api.parse({"model": "s", "fork": fork}, OFFERED).truncate


def test_the_pool_bounds_answers_and_classes() -> None:
    with pytest.raises(errors.ApiError) as error:
        responses(model="s", input="x", max_output_tokens=51)
    assert error.value.param == "max_output_tokens"
    with pytest.raises(errors.ApiError) as error:
        responses(model="l", input="x", service_tier="flex")
    assert error.value.param == "service_tier"
