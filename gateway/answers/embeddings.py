"""Embeddings: responses in that API's form (pure)."""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from gateway.answers import failures
from gateway.parsing.embeddings_api import Encoding
from tailrace.protocol import errors

INPUT: Final = "input"
_encode = msgspec.json.Encoder().encode


def check(responses: Sequence[dict[str, Any]]) -> None:
    """Check that all parts of the list were embedded. `responses`: one for each part; all have
    ended, or one has failed.

    Raises:
        errors.ApiError: a part was not embedded.
    """
    for response in responses:
        if response["status"] == "failed":
            raise failures.error_of(response, INPUT)
    if any(response["status"] != "completed" for response in responses):
        raise errors.embeddings_cancelled()


def body(
    responses: Sequence[dict[str, Any]], vectors: Sequence[Sequence[bytes]], encoding: Encoding
) -> Iterator[bytes]:
    """The answer, in pieces of a few milliseconds of work. `vectors`: the vectors of each
    response."""
    index = 0
    yield b'{"object":"list","data":['
    for part in vectors:
        rows = []
        for vector in part:
            value = _floats(vector) if encoding == "float" else base64.b64encode(vector).decode()
            rows.append(_encode({"object": "embedding", "index": index, "embedding": value}))
            index += 1
        yield (b"" if index == len(part) else b",") + b",".join(rows)
    tokens = sum(response["usage"]["input_tokens"] for response in responses)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    yield b'],"model":%s,"usage":%s}' % (_encode(responses[0]["model"]), _encode(usage))


def _floats(vector: bytes) -> list[float]:
    return list(struct.unpack(f"<{len(vector) // 4}f", vector))
