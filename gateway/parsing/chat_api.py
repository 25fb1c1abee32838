"""Chat Completions: a body of `POST /v1/chat/completions` (pure)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import msgspec

from gateway.parsing import messages, shared_fields, tools
from gateway.parsing.command import Create
from gateway.parsing.json_body import Body, object_field
from gateway.parsing.sampling import token_bound
from gateway.parsing.scalars import or_default, read
from tailrace.protocol import errors
from tailrace.settings.shapes import Pool


class StreamOptions(msgspec.Struct, frozen=True):
    """`stream_options`."""

    include_usage: bool | None = None


class Fields(shared_fields.SharedFields, frozen=True):
    """Scalar fields. The pool bounds both numbers of tokens further."""

    max_completion_tokens: int | None = None
    max_tokens: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None


def parse(body: Body, pools: Sequence[Pool]) -> Create:
    """The command that a body asks for.

    Raises:
        errors.ApiError: 400 naming the field, or 404 for an unknown model.
    """
    pool, model = shared_fields.pool_and_model(body, pools)
    _refuse_unsupported(body)
    turn = read(body, Fields)
    said = _messages(body, pool)
    asked = token_bound(turn.max_completion_tokens, "max_completion_tokens", pool)
    asked = asked or token_bound(turn.max_tokens, "max_tokens", pool)
    options = turn.stream_options
    return dataclasses.replace(
        shared_fields.create(body, turn, pool, model, said, asked),
        stream=or_default(turn.stream, False),
        usage_in_stream=options is not None and or_default(options.include_usage, False),
    )


def _messages(body: Body, pool: Pool) -> list[dict[str, Any]]:
    value = body.get("messages")
    if value is None or value == []:
        raise errors.missing_required_parameter("messages")
    if not isinstance(value, list):
        raise errors.invalid_type("messages", "an array of messages")
    if len(value) > messages.MAX_ITEMS:
        raise errors.invalid_value(
            "messages", f"Invalid 'messages': expected at most {messages.MAX_ITEMS} messages."
        )
    found = [messages.message(item, f"messages[{i}]") for i, item in enumerate(value)]
    messages.check_length(found, pool, "messages")
    return found


def _refuse_unsupported(body: Body) -> None:
    tools.refuse(body)
    if body.get("n") not in (None, 1):
        raise errors.unsupported_value("n", "Only n=1 is supported.")
    for name in (
        "functions",
        "logprobs",
        "top_logprobs",
        "audio",
        "prediction",
        "web_search_options",
    ):
        if body.get(name):
            raise errors.unsupported_parameter(name)
    if body.get("modalities") not in (None, ["text"]):
        raise errors.unsupported_value("modalities", "Only the modality 'text' is supported.")
    form = object_field(body, "response_format")
    if form and form.get("type") != "text":
        raise errors.unsupported_value("response_format", "Only the format 'text' is supported.")
