"""Chat Completions: a body of `POST /v1/chat/completions` (pure)."""

from __future__ import annotations

import dataclasses
from typing import Final

import msgspec

from gateway.parsing import (
    chat_messages,
    conversation,
    formats,
    model_choice,
    reasoning,
    sampling,
    shared_fields,
    tools,
    unserved,
)
from gateway.parsing.command import Create
from gateway.parsing.json_body import Body
from gateway.parsing.sampling import token_bound
from gateway.parsing.scalars import or_default, read
from tailrace.protocol import errors
from tailrace.settings.catalog import Catalog

MAX_CHOICES: Final = 8


class StreamOptions(msgspec.Struct, frozen=True):
    """`stream_options`."""

    include_usage: bool | None = None


class Fields(shared_fields.SharedFields, frozen=True):
    """Scalar fields. The pool bounds both numbers of tokens further."""

    max_completion_tokens: int | None = None
    max_tokens: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logprobs: bool | None = None
    n: int | None = None


def parse(
    body: Body,
    catalog: Catalog,
) -> Create:
    """The command of a body.

    Raises:
        errors.ApiError: 400 naming the field, or 404 for an unknown model.
    """
    pool, model = model_choice.for_text(body, catalog)
    unserved.check(body)
    _refuse_unsupported(body)
    turn = read(body, Fields)
    items = chat_messages.read(body)
    conversation.check_calls(items, complete=False, member="tool_call_id")
    max_tokens = token_bound(turn.max_completion_tokens, "max_completion_tokens", pool)
    max_tokens = max_tokens or token_bound(turn.max_tokens, "max_tokens", pool)
    if turn.n is not None and not 1 <= turn.n <= MAX_CHOICES:
        raise errors.out_of_range("n", 1, MAX_CHOICES)
    top = sampling.top_logprobs(turn.top_logprobs)
    if top and not turn.logprobs:
        raise errors.invalid_value("top_logprobs", "'top_logprobs' needs 'logprobs': true.")
    options = turn.stream_options
    create = dataclasses.replace(
        shared_fields.create(
            body,
            turn,
            pool,
            model,
            items,
            max_tokens,
            formats.of_chat(body),
            top if turn.logprobs else None,
            "messages",
        ),
        stream=or_default(turn.stream, False),
        usage_in_stream=options is not None and or_default(options.include_usage, False),
        tools=tools.read(body, parallel=turn.parallel_tool_calls),
        reasoning=reasoning.of_chat(body),
        verbosity=reasoning.verbosity(body.get("verbosity"), "verbosity"),
        logprobs_param="logprobs",
        choices=turn.n or 1,
    )
    return create


def _refuse_unsupported(body: Body) -> None:
    for name in ("functions", "function_call"):
        if body.get(name):
            instead = "tools" if name == "functions" else "tool_choice"
            raise errors.unsupported_parameter(
                name, f"'{name}' is deprecated and not supported; use '{instead}'."
            )
    for name in ("audio", "web_search_options"):
        if body.get(name):
            raise errors.unsupported_parameter(name)
    if body.get("modalities") not in (None, ["text"]):
        raise errors.unsupported_value("modalities", "Only the modality 'text' is supported.")
