"""`POST /v1/embeddings`: what is asked."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.parsing import embeddings_api
from tailrace.protocol import errors, records
from tests.support import cases
from tests.unit.gateway.parsing.parsers import POOLS

LONGEST = POOLS.pools[0].max_model_len


def parse(body: dict[str, Any]) -> embeddings_api.EmbeddingsRequest:
    return embeddings_api.parse(body, POOLS)


@cases.each(
    ("given", "inputs"),
    [
        ("a", ["a"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([[1], [2, 3]], [[1], [2, 3]]),
        (["a", [1]], ["a", [1]]),
        ([0], [[0]]),
        ([[1] * LONGEST], [[1] * LONGEST]),
    ],
    ids=lambda x: str(x)[:20],
)
def test_texts_and_tokens(given: Any, inputs: list[Any]) -> None:
    request = parse({"input": given})
    (create,) = request.creates
    assert create.embed == records.Embed(inputs)
    assert (create.model, create.input, create.store) == ("small", [], False)
    assert request.encoding == "float"


def test_all_fields() -> None:
    request = parse(
        {
            "model": "small",
            "input": "a",
            "encoding_format": "base64",
            "dimensions": 7,
            "user": "u",
            "service_tier": "flex",
            "metadata": {"k": "v"},
            "unknown": 1,
            "stream": False,
        }
    )
    (create,) = request.creates
    assert create.embed == records.Embed(["a"], 7)
    assert (create.user, create.priority, create.metadata) == ("u", "batch", {"k": "v"})
    assert request.encoding == "base64"


def test_inputs_that_are_too_long_may_be_cut() -> None:
    """Of a text the gateway cuts what cannot count in any tokenizer. A worker cuts the rest."""
    inputs: list[Any] = ["b" * 16 * LONGEST + "b", [1] * (LONGEST + 1), "a", [1]]
    (create,) = parse({"input": inputs, "truncate_prompt_tokens": -1}).creates
    expected: list[Any] = ["b" * 16 * LONGEST, [1] * LONGEST, "a", [1]]
    assert create.embed == records.Embed(expected, truncate=True)
    (plain,) = parse({"input": "a", "truncate_prompt_tokens": None}).creates
    assert plain.embed == records.Embed(["a"])


@cases.each(
    ("body", "param", "code"),
    [
        ({}, "input", "missing_required_parameter"),
        ({"input": None}, "input", "missing_required_parameter"),
        ({"input": ""}, "input", "invalid_value"),
        ({"input": []}, "input", "invalid_value"),
        ({"input": {"a": 1}}, "input", "invalid_type"),
        ({"input": 1}, "input", "invalid_type"),
        ({"input": ["a", ""]}, "input[1]", "invalid_value"),
        ({"input": [[1], []]}, "input[1]", "invalid_value"),
        ({"input": ["a", 1]}, "input[1]", "invalid_type"),
        ({"input": [1, "a"]}, "input[1]", "invalid_type"),
        ({"input": [True]}, "input[0]", "invalid_type"),
        ({"input": [1, True]}, "input[1]", "invalid_type"),
        ({"input": [[1, -1]]}, "input[0][1]", "invalid_type"),
        ({"input": [1.5]}, "input[0]", "invalid_type"),
        ({"input": [None]}, "input[0]", "invalid_type"),
        ({"input": [[2**32]]}, "input[0][0]", "invalid_type"),
        ({"input": ["a"] * 2049}, "input", "invalid_value"),
        ({"input": ["a", "b" * 16 * LONGEST + "b"]}, "input[1]", "context_length_exceeded"),
        ({"input": [1] * (LONGEST + 1)}, "input", "context_length_exceeded"),
        ({"input": "a", "dimensions": 0}, "dimensions", "invalid_value"),
        ({"input": "a", "dimensions": "7"}, "dimensions", "invalid_type"),
        ({"input": "a", "dimensions": True}, "dimensions", "invalid_type"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format", "unsupported_value"),
        ({"input": "a", "encoding_format": 1}, "encoding_format", "invalid_type"),
        ({"input": "a", "user": 1}, "user", "invalid_type"),
        ({"input": "a", "stream": True}, "stream", "unsupported_parameter"),
        ({"input": "a", "normalize": False}, "normalize", "unsupported_parameter"),
        (
            {"input": "a", "truncate_prompt_tokens": 5},
            "truncate_prompt_tokens",
            "unsupported_parameter",
        ),
        (
            {"input": "a", "add_special_tokens": False},
            "add_special_tokens",
            "unsupported_parameter",
        ),
    ],
    ids=lambda x: str(x)[:40],
)
def test_refused_by_name(body: dict[str, Any], param: str, code: str) -> None:
    with pytest.raises(errors.ApiError) as error:
        parse(body)
    assert (error.value.status, error.value.param, error.value.code) == (400, param, code)


def test_an_unknown_model() -> None:
    with pytest.raises(errors.ApiError) as error:
        parse({"model": "large", "input": "a"})
    assert (error.value.status, error.value.code) == (404, "model_not_found")


def test_a_long_list_is_cut_into_parts_that_tell_their_place() -> None:
    inputs = [f"text {i}" for i in range(70)]
    creates = parse({"input": inputs, "dimensions": 3}).creates
    parts = [create.embed for create in creates if create.embed is not None]
    assert [(len(part.inputs), part.first) for part in parts] == [(32, 0), (32, 32), (6, 64)]
    assert [text for part in parts for text in part.inputs] == inputs
    assert {part.dimensions for part in parts} == {3}
    assert {create.choices for create in creates} == {3}


def test_long_texts_are_fewer_in_a_part() -> None:
    inputs = ["x" * 100_000] * 12
    parts = [c.embed for c in parse({"input": inputs}).creates if c.embed is not None]
    assert [len(part.inputs) for part in parts] == [5, 5, 2]
    assert [part.first for part in parts] == [0, 5, 10]


def test_the_estimate_for_admission_is_of_the_inputs() -> None:
    (create,) = parse({"input": ["abcd", [1, 2]]}).creates
    assert create.characters == 4 + 8
