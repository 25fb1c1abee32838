"""The model `auto` behind a dialogue, by its messages (the rules alone: test_model_choice.py)."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from gateway.parsing import auto_model, chat_api, command, responses_api
from tailrace.protocol import errors
from tailrace.settings import catalog
from tests.support import cases

OFFERED = catalog.from_file(
    {
        "pools": {
            "small": {"models": ["s"], "aliases": ["fast"], "output_limit": 50},
            "large": {"models": ["l"], "classes": ["interactive"]},
            "seeing": {"models": ["v"]},
        },
        "auto": [
            {"model": "v", "features": ["images"]},
            {"model": "fast", "max_prompt_tokens": 100},
            {"model": "l", "max_prompt_tokens": 1000},
        ],
    }
)
BEFORE: dict[str, Any] = {"previous_response_id": "resp_x"}


def parse(models: catalog.Catalog = OFFERED, **body: Any) -> command.Create:
    return auto_model.parse_auto({"model": "auto", **body}, models, responses_api.parse)


def dialogue(characters: int) -> list[dict[str, Any]]:
    """A dialogue of so many characters."""
    half = characters // 2
    return [
        {"role": "user", "content": "x" * half},
        {"role": "assistant", "content": "y" * (characters - half)},
    ]


def decide(create: command.Create, before: list[dict[str, Any]]) -> command.Create:
    assert create.pending is not None
    concrete = create.pending.decide(before)
    assert concrete.pending is None
    return concrete


@cases.each("before", [BEFORE, {"conversation": "conv_x"}], ids=["previous", "conv"])
@cases.each(("characters", "pool"), [(0, "small"), (200, "small"), (360, "small"), (361, "large")])
def test_what_comes_before_counts_as_the_body_does(
    before: dict[str, Any], characters: int, pool: str
) -> None:
    create = decide(parse(input="z" * 40, **before), dialogue(characters))
    assert (create.pool, create.model) == (pool, {"small": "s", "large": "l"}[pool])
    assert create.input == [{"role": "user", "content": "z" * 40}]


def test_calls_and_reasoning_that_come_before_count_too() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "x" * 500}}
    answer = [{"role": "assistant", "content": "", "tool_calls": [call]}]
    reasoning = [{"role": "assistant", "content": "", "reasoning_content": "x" * 500}]
    for before in (answer, reasoning):
        assert decide(parse(input="z", **BEFORE), before).model == "l"


def test_an_image_that_was_shown_before_needs_a_model_that_sees() -> None:
    part = {"type": "image", "sha256": "0", "width": 40, "height": 40, "data": "AAAA"}
    question = [{"role": "user", "content": [part]}]
    assert decide(parse(input="z", **BEFORE), question).model == "v"


def test_a_dialogue_that_no_rule_takes_is_refused_with_its_whole_length() -> None:
    with pytest.raises(errors.ApiError) as error:
        decide(parse(input="z" * 4, **BEFORE), dialogue(4_000))
    assert (error.value.status, error.value.param) == (400, "model")
    assert "about 1001 tokens" in error.value.message


def test_what_the_chosen_pool_takes_is_not_refused_for_another_one() -> None:
    """The short input alone would be answered by the small model, which writes no long answers."""
    create = parse(input="z", max_output_tokens=500, **BEFORE)
    assert decide(create, dialogue(400)).sampling.max_tokens == 500
    with pytest.raises(errors.ApiError) as error:
        decide(create, dialogue(4))
    assert error.value.param == "max_output_tokens"
    # The large one takes no batches.
    create = parse(input="z", service_tier="flex", **BEFORE)
    assert decide(create, dialogue(4)).priority == "batch"
    with pytest.raises(errors.ApiError) as error:
        decide(create, dialogue(400))
    assert error.value.param == "service_tier"


def test_what_no_pool_takes_is_refused_before_anything_is_looked_for() -> None:
    with pytest.raises(errors.ApiError) as error:
        parse(input="z", temperature=7, **BEFORE)
    assert error.value.param == "temperature"
    with pytest.raises(errors.ApiError) as error:
        parse(catalog.from_file({**FILE, "auto": FILE["auto"][1:]}), input="z" * 4_004, **BEFORE)
    assert (error.value.param, "about 1001 tokens" in error.value.message) == ("model", True)


FILE: dict[str, Any] = {
    "pools": {"small": {"models": ["s"]}, "large": {"models": ["l"]}},
    "auto": [
        {"model": "l", "features": ["tools"]},
        {"model": "s", "max_prompt_tokens": 1000},
    ],
}


def test_only_a_body_that_something_comes_before_waits_for_it() -> None:
    fork = {"response_id": "resp_x", "at": 1}
    assert parse(input="z").pending is None
    assert parse(fork=fork).pending is None
    assert parse(fork=fork, conversation="conv_x").pending is None
    assert parse(model="s", input="z", **BEFORE).pending is None
    by_tools = catalog.from_file({**FILE, "auto": [FILE["auto"][0], {"model": "s"}]})
    assert parse(by_tools, input="z", **BEFORE).pending is None
    body = {"model": "auto", "messages": [{"role": "user", "content": "z"}], **BEFORE}
    assert chat_api.parse(body, OFFERED).pending is None


def test_a_key_stands_for_the_body_whichever_model_answers() -> None:
    parse = functools.partial(responses_api.parse, websocket=True)
    body = {"model": "auto", "input": "z", "idempotency_key": "k", **BEFORE}
    create = auto_model.parse_auto(body, OFFERED, parse)
    assert create.pending is not None
    digests = {each.body_digest for each in create.pending.candidates()}
    assert {create.body_digest, *digests} == {command.body_digest(body)}


def test_the_candidates_are_all_that_a_longer_dialogue_may_come_to() -> None:
    def models(**body: Any) -> list[str]:
        create = parse(**body, **BEFORE)
        assert create.pending is not None
        return [each.model for each in create.pending.candidates()]

    assert models(input="z") == ["s", "l", "v"]
    assert models(input="z" * 500) == ["l", "v"]
    assert models(input="z", max_output_tokens=500) == ["l", "v"]


def test_a_count_and_a_summary_are_by_the_whole_dialogue_too() -> None:
    for parse in (responses_api.parse_count, responses_api.parse_compact):
        body = {"model": "auto", "input": "z", **BEFORE}
        create = auto_model.reading(parse)(body, OFFERED)
        assert (decide(create, dialogue(4)).model, decide(create, dialogue(400)).model) == (
            "s",
            "l",
        )
        assert decide(create, dialogue(400)).turn == create.turn
