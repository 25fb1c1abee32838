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
    made = b"".join(embeddings.body([DONE, DONE], VECTORS, "float"))
    found = CreateEmbeddingResponse.model_validate_json(made)
    assert [each.index for each in found.data] == [0, 1, 2]
    assert [vector(*each.embedding) for each in found.data] == [v for part in VECTORS for v in part]
    assert found.usage.prompt_tokens == found.usage.total_tokens == 10
    assert (found.model, found.object, found.data[0].object) == ("m", "list", "embedding")


def test_base64_is_the_bytes_of_the_same_floats() -> None:
    made = json.loads(b"".join(embeddings.body([DONE, DONE], VECTORS, "base64")))
    found = [base64.b64decode(each["embedding"]) for each in made["data"]]
    assert found == [v for part in VECTORS for v in part]


def test_one_part_is_a_list_too() -> None:
    made = json.loads(b"".join(embeddings.body([DONE], VECTORS[1:], "float")))
    assert len(made["data"]) == 1


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
    with pytest.raises(errors.ApiError) as refused:
        embeddings.check([DONE, response])
    assert (refused.value.status, refused.value.code) == (status, code)
