"""`POST /v1/completions`: what is asked, and the answers as the official client reads them."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from openai.types import Completion

from gateway.answers import text_completions
from gateway.parsing import completions_api
from tailrace.protocol import errors, features, records
from tests.support import cases
from tests.support.gateway_parts import CATALOG
from tests.unit.gateway.answers.test_chat_items import RIDS, series


def parse(body: dict[str, Any]) -> completions_api.CompletionRequest:
    return completions_api.parse(body, CATALOG)


def test_a_prompt_is_one_message_without_a_template() -> None:
    command_ = parse({"prompt": "Once", "logprobs": 3, "stop": "."})
    (create,) = command_.creates
    assert create.input == [{"role": "user", "content": "Once"}]
    assert create.raw
    assert create.sampling == records.Sampling(16, stop=(".",), logprobs=3)


def test_several_prompts_with_several_choices() -> None:
    command_ = parse({"prompt": ["a", "b"], "n": 3})
    assert [create.choices for create in command_.creates] == [6, 6]
    assert command_.prompts == ["a", "b"]


@cases.each(
    ("body", "param", "code"),
    [
        ({}, "prompt", "missing_required_parameter"),
        ({"prompt": ""}, "prompt", "invalid_value"),
        ({"prompt": []}, "prompt", "invalid_type"),
        ({"prompt": [1, 2]}, "prompt", "unsupported_value"),
        ({"prompt": [[1, 2]]}, "prompt", "unsupported_value"),
        ({"prompt": {"a": 1}}, "prompt", "invalid_type"),
        ({"prompt": ["a"] * 9}, "prompt", "invalid_value"),
        ({"prompt": ["a"] * 3, "n": 3}, "prompt", "invalid_value"),
        ({"prompt": "a", "n": 9}, "n", "invalid_value"),
        ({"prompt": "a", "suffix": "b"}, "suffix", "unsupported_parameter"),
        ({"prompt": "a", "echo": True, "logprobs": 0}, "echo", "unsupported_value"),
        ({"prompt": "a", "best_of": 2}, "best_of", "unsupported_value"),
        ({"prompt": "a", "logprobs": 21}, "logprobs", "invalid_value"),
        ({"prompt": "a", "logprobs": True}, "logprobs", "invalid_type"),
        ({"prompt": "a", "tools": [{"type": "function"}]}, "tools", "unsupported_parameter"),
    ],
)
def test_refused_by_name(body: dict[str, Any], param: str, code: str) -> None:
    with pytest.raises(errors.ApiError) as error:
        parse(body)
    assert (error.value.status, error.value.param, error.value.code) == (400, param, code)


def chunks(body: bytes) -> list[dict[str, Any]]:
    return [json.loads(line.removeprefix("data: ")) for line in body.decode().split("\n\n") if line]


@pytest.mark.parametrize("echo", [False, True])
def test_the_stream_and_the_whole_answer_say_the_same(echo: bool) -> None:
    texts = ["One", "Two!", "Three", "4"]
    output = [
        series(text, [2] * 9, logprobs=not echo, rid=rid)
        for text, rid in zip(texts, RIDS, strict=False)
    ]
    echoes: list[dict[str, Any]] = [{"id": r, "created_at": 7, "model": "m"} for r in RIDS[:4]]
    stream = text_completions.Stream(
        echoes, ["p", "qq"], include_usage=True, logprobs=not echo, echo=echo
    )
    body = b"".join(
        stream.encode_choice((i, event)) for i, each in enumerate(output) for event in each
    )
    # As the client makes them: its type of a whole answer knows no finish_reason of null.
    chunk_list = [Completion.construct(**chunk) for chunk in chunks(body)]
    finals = [each[-1].response for each in output]
    whole = Completion.model_validate_json(
        msgspec.json.encode(
            text_completions.completion([f for f in finals if f], ["p", "qq"], echo=echo)
        ),
        strict=True,
    )
    before = ["p", "p", "qq", "qq"] if echo else [""] * 4
    assert [choice.text for choice in whole.choices] == [
        b + t for b, t in zip(before, texts, strict=True)
    ]
    for index, choice in enumerate(whole.choices):
        mine = [c for chunk in chunk_list for c in chunk.choices if c.index == index]
        assert "".join(c.text for c in mine) == choice.text
        assert mine[-1].finish_reason == choice.finish_reason == "stop"
        offsets = [o for c in mine if c.logprobs for o in c.logprobs.text_offset or ()]
        if echo:
            assert choice.logprobs is None
        else:
            assert choice.logprobs is not None
            assert choice.logprobs.text_offset == offsets == list(range(len(choice.text)))
            assert choice.logprobs.tokens == list(choice.text)
            assert choice.logprobs.token_logprobs == [-0.25] * len(choice.text)
    assert whole.usage == chunk_list[-1].usage
    assert whole.usage is not None
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (4, 13)
    assert {chunk.id for chunk in chunk_list} == {whole.id}


def test_a_raw_request_has_version_2_and_needs_the_feature() -> None:
    request = records.Request(
        RIDS[0],
        records.Owner("i", "s"),
        "m",
        [{"role": "user", "content": "x"}],
        records.Sampling(1),
        {},
        raw=True,
    )
    assert records.version_of(request) == records.VERSION_2
    assert features.needs_of(request) == [features.Need("raw_prompts", "prompt")]
    assert records.decode_request(records.encode(request)) == msgspec.structs.replace(request, v=2)


def test_an_answer_of_no_tokens_is_refused_by_name() -> None:
    with pytest.raises(errors.ApiError) as error:
        parse({"prompt": "Once", "max_tokens": 0, "echo": True})
    assert (error.value.status, error.value.param) == (400, "max_tokens")
    assert error.value.code == "unsupported_value"
    assert "echo" in error.value.message
