"""Embeddings: a body of `POST /v1/embeddings` (pure)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from gateway.parsing import messages, model_choice, shared_fields, unserved
from gateway.parsing.command import Create
from gateway.parsing.json_body import Body
from gateway.parsing.scalars import Label, or_default, read
from tailrace.protocol import errors, records
from tailrace.settings.catalog import Catalog
from tailrace.settings.shapes import Pool

MAX_INPUTS: Final = 2048
# Inputs of one request in the log. The final record has room for this many vectors of 5,600
# dimensions, and a long list is spread over workers. The split depends on the list alone, so a
# repeated request with an idempotency key finds its parts again.
PART_INPUTS: Final = 32
PART_BYTES: Final = 1 << 19

Encoding = Literal["float", "base64"]
Input = str | list[int]

# Fields of vLLM's own server. Null and the listed values are accepted.
_FIELDS: Final[Mapping[str, tuple[Any, ...]]] = {
    "stream": (False,),
    "add_special_tokens": (True,),
    "messages": (),
    "normalize": (),
    "use_activation": (),
    "embed_dtype": ("float32",),
    "truncate_prompt_tokens": (-1,),
    "endianness": ("little", "native"),
}


class Fields(msgspec.Struct, frozen=True):
    """Scalar fields."""

    dimensions: int | None = None
    encoding_format: str | None = None
    service_tier: str | None = None
    user: Label | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class EmbeddingsRequest:
    """A parsed body.

    Attributes:
        creates: one for each part of the list of inputs.
        encoding: the encoding of vectors in the answer.
    """

    creates: list[Create]
    encoding: Encoding


def parse(body: Body, catalog: Catalog) -> EmbeddingsRequest:
    """
    Raises:
        errors.ApiError: 400 naming the field, or 404 for an unknown model.
    """
    pool, model = model_choice.pool_and_model(body, catalog)
    unserved.check(body, apart_from=frozenset(_FIELDS))
    unserved.check_fields(body, _FIELDS)
    fields = read(body, Fields)
    if fields.dimensions is not None and fields.dimensions < 1:
        raise errors.invalid_value("dimensions", "Invalid 'dimensions': expected at least 1.")
    truncate = body.get("truncate_prompt_tokens") is not None
    inputs = _inputs(body, pool, truncate=truncate)
    parts = [
        msgspec.structs.replace(part, truncate=truncate)
        for part in _parts(inputs, fields.dimensions)
    ]
    create = Create(
        model=model,
        pool=pool.name,
        priority=shared_fields.priority(fields.service_tier, pool, model),
        input=[],
        items=[],
        sampling=records.Sampling(0),
        store=False,
        metadata=shared_fields.metadata(body),
        user=fields.user,
        choices=len(parts),
    )
    return EmbeddingsRequest(
        [dataclasses.replace(create, embed=part) for part in parts],
        _encoding(fields.encoding_format),
    )


def _encoding(value: str | None) -> Encoding:
    match or_default(value, "float"):
        case "float":
            return "float"
        case "base64":
            return "base64"
    raise errors.unsupported_value("encoding_format", "Supported values are: float, base64.")


def _inputs(body: Body, pool: Pool, *, truncate: bool) -> list[Input]:
    value: Any = body.get("input")
    if value is None:
        raise errors.missing_required_parameter("input")
    if isinstance(value, str):
        return [_input(value, "input", pool, truncate=truncate)]
    if not isinstance(value, list):
        raise errors.invalid_type("input", "a string or an array")
    if not value:
        raise errors.invalid_value("input", "Invalid 'input': an array is not empty.")
    if type(value[0]) is int:  # one input
        return [_input(value, "input", pool, truncate=truncate)]
    if len(value) > MAX_INPUTS:
        raise errors.invalid_value(
            "input", f"Invalid 'input': expected at most {MAX_INPUTS} inputs."
        )
    return [
        _input(each, f"input[{index}]", pool, truncate=truncate) for index, each in enumerate(value)
    ]


def _input(value: Any, where: str, pool: Pool, *, truncate: bool) -> Input:
    if not isinstance(value, str | list):
        raise errors.invalid_type(where, "a string or an array of token ids")
    if not value:
        raise errors.invalid_value(where, f"Invalid '{where}': an input is not empty.")
    if isinstance(value, str):
        longest = messages.CHARS_PER_TOKEN * pool.max_model_len
    else:
        longest = pool.max_model_len
        for index, each in enumerate(value):
            if type(each) is not int or not 0 <= each < 2**32:
                raise errors.invalid_type(f"{where}[{index}]", "a token id")
    if len(value) > longest:
        if not truncate:
            raise errors.context_length_exceeded(pool.max_model_len, where)
        value = value[:longest]  # the rest is ignored
    text_or_ids: Input = value
    return text_or_ids


def _parts(inputs: Sequence[Input], dimensions: int | None) -> Iterator[records.Embed]:
    """The list of inputs, split into requests of the log."""
    first, size = 0, 0
    for index, each in enumerate(inputs):
        more = len(msgspec.json.encode(each))
        if index - first == PART_INPUTS or (index > first and size + more > PART_BYTES):
            yield records.Embed(list(inputs[first:index]), dimensions, first)
            first, size = index, 0
        size += more
    yield records.Embed(list(inputs[first:]), dimensions, first)
