"""What a request needs of the deployment and of the pool's workers."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gateway.parsing import command, embeddings_api
from gateway.requests import requirements
from tailrace.protocol import errors, features, records
from tests.support import cases, pictures
from tests.unit.gateway.parsing.parsers import POOLS, chat, responses

TOOL = {"type": "function", "name": "now", "parameters": {"type": "object", "properties": {}}}
TOOLS = [{**TOOL, "parameters": {**TOOL["parameters"], "additionalProperties": False}}]  # type: ignore[dict-item]
CHAT_TOOLS = [{"type": "function", "function": {"name": "now"}}]
CALL = {"type": "function_call", "call_id": "c", "name": "now", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c", "output": "noon"}
DIALOGUE = {"input": [{"role": "user", "content": "when?"}, CALL, OUTPUT]}
JSON = {"type": "json_object"}
TEXT = {"type": "input_text", "text": "What is it?"}
URL = pictures.url(pictures.png(1))
IMAGE_MESSAGE = {"role": "user", "content": [TEXT, {"type": "input_image", "image_url": URL}]}
CHAT_IMAGE_MESSAGE = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": URL}}]}
ALL: dict[str, Any] = {"state": "ready", "features": sorted(features.ALL)}
NONE: dict[str, Any] = {"state": "ready", "features": []}

USES = [
    (responses({"tools": TOOLS}), "tools", True),
    (chat({"tools": CHAT_TOOLS}), "tools", True),
    (responses({"text": {"format": JSON}}), "text.format", True),
    (chat({"response_format": JSON}), "response_format", True),
    (responses({"include": ["message.output_text.logprobs"]}), "include", True),
    (chat({"logprobs": True, "top_logprobs": 2}), "logprobs", True),
    (chat({"top_k": 4}), "top_k", False),
    (responses({"ignore_eos": True}), "ignore_eos", False),
    (responses(DIALOGUE), "input[1]", False),
    (responses({"input": [IMAGE_MESSAGE]}), "input[0].content[1]", True),
    (chat({"messages": [CHAT_IMAGE_MESSAGE]}), "messages[0].content[0]", True),
]


def request_of(create: command.Create) -> records.Request:
    """What the request builder makes of it, as far as it matters here."""
    return records.Request(
        rid="r",
        owner=records.Owner("i", "s"),
        model=create.model,
        messages=create.input,
        sampling=create.sampling,
        echo={},
        tools=list(create.tools.prompt),
        tool_choice=create.tools.choice,
        format=create.format.engine if create.format else None,
        reasoning=create.reasoning.engine if create.reasoning else None,
    )


def refused(create: command.Create, newest: int, *workers: dict[str, Any]) -> errors.ApiError:
    with pytest.raises(errors.ApiError) as caught:
        requirements.check(create, request_of(create), newest=newest, workers=workers)
    assert caught.value.status == 400
    assert caught.value.code == "unsupported_parameter"
    return caught.value


@cases.each(("create", "param", "by_worker"), USES, ids=lambda v: str(v)[:20])
def test_each_use_is_refused_by_its_clients_name_of_it(
    create: command.Create, param: str, by_worker: bool
) -> None:
    error = refused(create, 1, ALL)
    assert error.param == param
    assert requirements.VARIABLE in error.message
    requirements.check(create, request_of(create), newest=2, workers=[NONE, ALL])
    if by_worker:
        assert refused(create, 2, NONE, NONE).param == param
        assert create.model in refused(create, 2, NONE).message
    else:
        requirements.check(create, request_of(create), newest=2, workers=[NONE])


@cases.each("workers", [[], [{"state": "loading", "features": []}], [{"state": "ready"}]])
def test_while_no_workers_features_are_known_the_request_waits(
    workers: list[dict[str, Any]],
) -> None:
    create = responses({"tools": TOOLS})
    requirements.check(create, request_of(create), newest=2, workers=workers)


def test_an_effort_of_reasoning_needs_a_model_that_can_vary_it() -> None:
    for create, param in (
        (responses({"reasoning": {"effort": "low"}}), "reasoning.effort"),
        (chat({"reasoning_effort": "low"}), "reasoning_effort"),
    ):
        assert refused(create, 2, NONE).param == param
        requirements.check(create, request_of(create), newest=2, workers=[ALL])
    for fields in ({"effort": "none"}, {"summary": "auto"}):
        create = responses({"reasoning": fields})
        requirements.check(create, request_of(create), newest=2, workers=[NONE])


def test_an_image_in_the_output_of_a_tool_needs_a_template_that_shows_it() -> None:
    view = {"type": "input_image", "image_url": URL}
    output = {**OUTPUT, "output": [TEXT, view]}
    create = responses({"input": [IMAGE_MESSAGE, CALL, output]})
    eyes = {"state": "ready", "features": ["images"]}
    assert refused(create, 2, eyes).param == "input[2].output[1]"
    assert "output of a tool" in refused(create, 2, eyes).message
    assert refused(create, 2, NONE).param == "input[0].content[1]"
    requirements.check(create, request_of(create), newest=2, workers=[ALL])


def test_a_plain_request_needs_nothing() -> None:
    create = responses({})
    assert request_of(create).version == records.VERSION
    requirements.check(create, request_of(create), newest=1, workers=[NONE])


EMBEDS: dict[str, Any] = {"state": "ready", "features": ["embeddings"]}
CUTS: dict[str, Any] = {"state": "ready", "features": ["dimensions", "embeddings"]}


def embedding(**more: Any) -> tuple[command.Create, records.Request]:
    body = {"input": "a", **more}
    (create,) = embeddings_api.parse(body, POOLS).creates
    return create, msgspec.structs.replace(request_of(create), embed=create.embed)


def refusal_param(
    request: tuple[command.Create, records.Request], *workers: dict[str, Any]
) -> str | None:
    """The field that is refused; None if nothing is."""
    try:
        requirements.check(*request, newest=2, workers=workers)
    except errors.ApiError as error:
        return error.param
    return None


@cases.each(
    ("workers", "embed", "fewer", "text"),
    [
        ((), None, None, None),
        ((NONE,), "model", "model", None),
        ((EMBEDS,), None, "dimensions", "model"),
        ((CUTS,), None, None, "model"),
        ((ALL,), None, None, None),
        ((EMBEDS, NONE), None, "dimensions", None),
        (({**EMBEDS, "state": "loading"},), None, None, None),
        (({"state": "ready"},), None, None, None),
        (({"state": "ready"}, EMBEDS), None, "dimensions", "model"),
    ],
    ids=str,
)
def test_a_pool_is_for_text_or_for_embeddings(
    workers: tuple[dict[str, Any], ...], embed: str | None, fewer: str | None, text: str | None
) -> None:
    assert refusal_param(embedding(), *workers) == embed
    assert refusal_param(embedding(dimensions=4), *workers) == fewer
    plain = responses({})
    assert refusal_param((plain, request_of(plain)), *workers) == text


def test_embeddings_need_records_of_version_2() -> None:
    create, request = embedding()
    with pytest.raises(errors.ApiError) as caught:
        requirements.check(create, request, newest=1, workers=[ALL])
    assert caught.value.param == "input"


def without(*names: str) -> dict[str, Any]:
    """A worker whose engine does not take these fields."""
    return {**ALL, "not_offered": [*names]}


@cases.each(
    ("create", "name", "param"),
    [
        (chat({"min_p": 0.1}), "min_p", "min_p"),
        (responses({"logit_bias": {"1": 1}}), "logit_bias", "logit_bias"),
        (responses({"text": {"format": JSON}}), "json_object", "text.format"),
        (chat({"guided_regex": "a+"}), "regex", "guided_regex"),
        (chat({"logprobs": True, "top_logprobs": 2}), "top_logprobs", "logprobs"),
        (responses({"top_logprobs": 2}), "top_logprobs", "top_logprobs"),
        (chat({"tools": CHAT_TOOLS, "tool_choice": "required"}), "tool_choice", "tool_choice"),
        (chat({"reasoning_effort": "low"}), "effort", "reasoning_effort"),
    ],
    ids=lambda v: str(v)[:20],
)
def test_a_field_that_no_engine_takes_is_refused_by_its_clients_name_of_it(
    create: command.Create, name: str, param: str
) -> None:
    error = refused(create, 2, without(name), without("seed", name))
    assert (error.param, name in error.message) == (param, True)
    plain = responses({})
    requirements.check(plain, request_of(plain), newest=2, workers=[without(name)])


def test_the_workers_are_found_that_can_do_all_of_a_request() -> None:
    create = chat({"min_p": 0.1, "seed": 1})
    one, other, older = without("min_p"), without("top_k"), ALL

    def able(*workers: dict[str, Any]) -> list[Any]:
        return [*requirements.check(create, request_of(create), newest=2, workers=workers)]

    assert able(one, other, older) == [other, older]
    assert able(other, older) == [other, older]
    assert refused(create, 2, one, without("seed")).param in ("min_p", "seed")
    assert able({**one, "state": "loading"}) == [{**one, "state": "loading"}]
