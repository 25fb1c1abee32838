"""Responses: a body of `POST /v1/responses`, or a `response.create` event (pure)."""

from __future__ import annotations

import dataclasses
from typing import Final

from gateway.parsing import (
    conversation,
    conversations_api,
    file_search,
    forks,
    formats,
    input_items,
    model_choice,
    reasoning,
    sampling,
    shared_fields,
    tools,
    unserved,
)
from gateway.parsing.command import Create, body_digest
from gateway.parsing.json_body import Body, object_field
from gateway.parsing.messages import CHARS_PER_TOKEN
from gateway.parsing.sampling import token_bound
from gateway.parsing.scalars import Label, or_default, read, too_long
from tailrace.protocol import errors
from tailrace.settings.catalog import Catalog
from tailrace.settings.shapes import Pool

SEALED: Final = "reasoning.encrypted_content"


class _Fields(shared_fields.SharedFields, frozen=True):
    """Scalar fields on either transport. The pool bounds two of them further."""

    previous_response_id: Label | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None


class HttpFields(_Fields, frozen=True):
    """`POST /v1/responses`."""

    background: bool | None = None
    stream: bool | None = None


class EventFields(_Fields, frozen=True):
    """`response.create` on a WebSocket."""

    generate: bool | None = None
    idempotency_key: Label | None = None


def parse(
    body: Body,
    catalog: Catalog,
    *,
    websocket: bool = False,
    counts: bool = False,
    searches: bool = False,
) -> Create:
    """The command of a body.

    Args:
        counts: it requests only the number of input tokens.
        searches: this deployment runs the tool `file_search`.

    Raises:
        errors.ApiError: 400 naming the field, or 404 for an unknown model.
    """
    pool, model = model_choice.for_text(body, catalog)
    unserved.check(body)
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
    previous, fork = turn.previous_response_id, forks.parse(body, pool)
    reference = conversations_api.parse_reference(
        body, store=turn.store if not counts else None, generate=generate or counts
    )
    begins = previous is None and reference is None
    turn_items = input_items.read(
        body, required=generate and begins and fork is None, continues=not begins
    )
    if begins and not conversation.to_resolve(turn_items):
        conversation.check_calls(turn_items, complete=generate)
    max_tokens = token_bound(turn.max_output_tokens, "max_output_tokens", pool)
    logprobs, logprobs_param = _logprobs(body, turn.top_logprobs)
    generate = generate and not counts
    tool_set = tools.read(
        body,
        parallel=turn.parallel_tool_calls,
        max_calls=turn.max_tool_calls,
        searches=searches,
    )
    include = body.get("include") or ()
    create = dataclasses.replace(
        shared_fields.create(
            body,
            turn,
            pool,
            model,
            turn_items,
            max_tokens,
            formats.of_responses(body),
            logprobs,
            "input",
            truncate=_truncates(body, pool),
        ),
        instructions=instructions,
        previous=previous,
        fork=fork,
        conversation=reference.id if reference is not None else None,
        parent=reference.parent if reference is not None else None,
        if_busy=conversations_api.if_busy(body, pool.if_busy),
        background=background,
        stream=stream,
        generate=generate,
        tools=tool_set,
        search=_search(tool_set, pool, results=file_search.RESULTS in include)
        if generate
        else None,
        reasoning=reasoning.of_responses(body),
        verbosity=reasoning.verbosity(
            object_field(body, "text").get("verbosity"), "text.verbosity"
        ),
        logprobs_param=logprobs_param,
        sealed=SEALED in include,
        idempotency_key=key,
        body_digest=body_digest(body) if key is not None else None,
    )
    return create


def _search(tool_set: tools.Tools, pool: Pool, *, results: bool) -> file_search.FileSearch | None:
    if tool_set.search is None:
        return None
    return dataclasses.replace(tool_set.search, results=results, context=pool.max_model_len)


def parse_count(body: Body, catalog: Catalog, *, searches: bool = False) -> Create:
    """The command of `POST /v1/responses/input_tokens`: a request that generates nothing and whose
    usage has the count. Arguments and errors like `parse`."""
    fields = {**body, "background": None, "stream": None, "store": False}
    return parse(_whole(fields), catalog, counts=True, searches=searches)


# The last message of a compaction.
SUM_UP: Final = (
    "Sum up our conversation so far, so that you could go on with it from your summary alone. Keep "
    "what was decided, what is still open, names, numbers, and what tools returned. Write only the "
    "summary."
)


def parse_compact(body: Body, catalog: Catalog) -> Create:
    """The command of `POST /v1/responses/compact`: the model summarizes the conversation. Raises
    like `parse`. As in OpenAI's type `model` is required, and null stands for the default."""
    if "model" not in body:
        raise errors.missing_required_parameter("model")
    if body.get("input") in (None, [], "") and body.get("previous_response_id") is None:
        raise errors.missing_required_parameter("input")
    names = ("model", "input", "previous_response_id", "instructions", "prompt_cache_key")
    fields = {name: body[name] for name in names if body.get(name) is not None}
    create = parse(_whole({**fields, "store": False}), catalog)
    turn = (*create.turn, conversation.Message("user", SUM_UP, "input"))
    items = [*create.items, conversation.as_json(turn[-1])]
    messages = conversation.messages(turn)
    return dataclasses.replace(create, turn=turn, input=messages, items=items, whole=True)


def _whole(body: Body) -> Body:
    """The body without the pool's default `truncation`: counting and summaries need the whole
    input."""
    return body if body.get("truncation") is not None else {**body, "truncation": "disabled"}


def _refuse_unsupported(body: Body, *, websocket: bool) -> None:
    if body.get("prompt") is not None:
        raise errors.unsupported_parameter("prompt")
    if websocket and body.get("background"):
        raise errors.unsupported_parameter(
            "background", "Background responses are not supported over WebSocket."
        )


def _truncates(body: Body, pool: Pool) -> bool:
    """Whether older messages may be left out if the input is too long. A fork has no prompt of its
    own."""
    truncation = body.get("truncation")
    if truncation is None and body.get("fork") is None:
        truncation = pool.truncation
    if truncation not in (None, "auto", "disabled"):
        if not isinstance(truncation, str):
            raise errors.invalid_type("truncation", "a string")
        raise errors.invalid_value(
            "truncation", "Invalid 'truncation': expected 'auto' or 'disabled'."
        )
    return truncation == "auto"


def _logprobs(body: Body, top: int | None) -> tuple[int | None, str]:
    """The number of top tokens with log probabilities, None without log probabilities; and the
    field that requested them."""
    include = body.get("include")
    if include is not None and not isinstance(include, list):
        raise errors.invalid_type("include", "an array of strings")
    if top := sampling.top_logprobs(top):
        return top, "top_logprobs"
    included = any(isinstance(name, str) and name.endswith("logprobs") for name in include or ())
    return (0, "include") if included else (None, "")
