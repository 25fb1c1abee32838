"""Responses: a body of `POST /v1/responses`, or a `response.create` event (pure)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from gateway.parsing import input_items, shared_fields, tools
from gateway.parsing.command import Create, body_digest
from gateway.parsing.json_body import Body, object_field
from gateway.parsing.messages import CHARS_PER_TOKEN
from gateway.parsing.sampling import token_bound
from gateway.parsing.scalars import Label, or_default, read, too_long
from tailrace.protocol import errors
from tailrace.settings.shapes import Pool


class _Fields(shared_fields.SharedFields, frozen=True):
    """Scalar fields on either transport. The pool bounds two of them further."""

    previous_response_id: Label | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    parallel_tool_calls: bool | None = None


class HttpFields(_Fields, frozen=True):
    """`POST /v1/responses`."""

    background: bool | None = None
    stream: bool | None = None


class EventFields(_Fields, frozen=True):
    """`response.create` on a WebSocket."""

    generate: bool | None = None
    idempotency_key: Label | None = None


def parse(body: Body, pools: Sequence[Pool], *, websocket: bool = False) -> Create:
    """The command that a body asks for.

    Raises:
        errors.ApiError: 400 naming the field, or 404 for an unknown model.
    """
    pool, model = shared_fields.pool_and_model(body, pools)
    _refuse_unsupported(body, websocket=websocket)
    turn: HttpFields | EventFields
    background, stream, generate, key = False, True, True, None
    if websocket:
        turn = event = read(body, EventFields)
        generate, key = or_default(event.generate, True), event.idempotency_key
    else:
        turn = request = read(body, HttpFields)
        background, stream = (
            or_default(request.background, False),
            or_default(request.stream, False),
        )
    if background and turn.store is False:
        raise errors.invalid_value(
            "background", "Background can only be used when 'store' is true."
        )
    instructions = turn.instructions
    if instructions is not None and len(instructions) > pool.max_model_len * CHARS_PER_TOKEN:
        raise too_long("instructions", pool.max_model_len * CHARS_PER_TOKEN)
    previous = turn.previous_response_id
    messages = input_items.read(body, pool, required=generate and previous is None)
    asked = token_bound(turn.max_output_tokens, "max_output_tokens", pool)
    return dataclasses.replace(
        shared_fields.create(body, turn, pool, model, messages, asked),
        instructions=instructions,
        previous=previous,
        background=background,
        stream=stream,
        generate=generate,
        parallel_tool_calls=or_default(turn.parallel_tool_calls, True),
        idempotency_key=key,
        body_digest=body_digest(body) if key is not None else None,
    )


def _refuse_unsupported(body: Body, *, websocket: bool) -> None:
    tools.refuse(body)
    for name in ("conversation", "prompt"):
        if body.get(name) is not None:
            raise errors.unsupported_parameter(name)
    if websocket and body.get("background"):
        raise errors.unsupported_parameter(
            "background", "Background responses are not supported over WebSocket."
        )
    form = object_field(body, "text").get("format")
    if form is not None and (not isinstance(form, dict) or form.get("type") != "text"):
        raise errors.unsupported_value("text.format", "Only the format 'text' is supported.")
    if body.get("truncation") not in (None, "disabled"):
        raise errors.unsupported_value("truncation", "Only the truncation 'disabled' is supported.")
    if body.get("top_logprobs"):
        raise errors.unsupported_parameter("top_logprobs")
    include = body.get("include")
    if include is not None and not isinstance(include, list):
        raise errors.invalid_type("include", "an array of strings")
    if include and any(isinstance(name, str) and name.endswith("logprobs") for name in include):
        raise errors.unsupported_value("include", "Log probabilities are not supported.")
