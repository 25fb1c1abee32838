"""Embeddings: the answers, from the responses of the parts of a request."""

from __future__ import annotations

import base64
import json
import struct
from typing import Any

import pytest
from openai.types import CreateEmbeddingResponse

from gateway.answers import embeddings
from tailrace.protocol import errors
from tests.support import cases

DONE: dict[str, Any] = {"model": "m", "status": "completed", "usage": {"input_tokens": 5}}


def vector(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


VECTORS = [[vector(1.0, 0.1), vector(-2.0, 0.0)], [vector(3.0, 1e-30)]]


def test_floats_are_those_of_the_model_in_the_order_of_the_inputs() -> None:
    output = b"".join(embeddings.body([DONE, DONE], VECTORS, "float"))
    actual = CreateEmbeddingResponse.model_validate_json(output)
    assert [each.index for each in actual.data] == [0, 1, 2]
    assert [vector(*each.embedding) for each in actual.data] == [
        v for part in VECTORS for v in part
    ]
    assert actual.usage.prompt_tokens == actual.usage.total_tokens == 10
    assert (actual.model, actual.object, actual.data[0].object) == ("m", "list", "embedding")


def test_base64_is_the_bytes_of_the_same_floats() -> None:
    output = json.loads(b"".join(embeddings.body([DONE, DONE], VECTORS, "base64")))
    actual = [base64.b64decode(each["embedding"]) for each in output["data"]]
    assert actual == [v for part in VECTORS for v in part]


def test_one_part_is_a_list_too() -> None:
    output = json.loads(b"".join(embeddings.body([DONE], VECTORS[1:], "float")))
    assert len(output["data"]) == 1


@cases.each(
    ("response", "status", "code"),
    [
        (
            {
                "id": "resp_x",
                "status": "failed",
                "error": {"code": "context_length_exceeded", "message": "x"},
            },
            400,
            "context_length_exceeded",
        ),
        (
            {"status": "failed", "error": {"code": "server_error", "message": "x"}},
            500,
            "server_error",
        ),
        ({"status": "cancelled"}, 409, "cancelled"),
    ],
)
def test_a_part_that_was_not_embedded_is_an_error(
    response: dict[str, Any], status: int, code: str
) -> None:
    embeddings.check([DONE, DONE])
    with pytest.raises(errors.ApiError) as error:
        embeddings.check([DONE, response])
    assert (error.value.status, error.value.code) == (status, code)
