"""Completions of text: a body of `POST /v1/completions` (pure)."""

from __future__ import annotations

import dataclasses
from typing import Any, Final

from gateway.parsing import (
    chat_api,
    conversation,
    formats,
    model_choice,
    sampling,
    shared_fields,
    unserved,
)
from gateway.parsing.command import Create
from gateway.parsing.json_body import Body
from gateway.parsing.sampling import token_bound
from gateway.parsing.scalars import or_default, read
from tailrace.protocol import errors
from tailrace.settings.catalog import Catalog

MAX_CHOICES: Final = chat_api.MAX_CHOICES  # of all prompts together
DEFAULT_TOKENS: Final = 16
# Fields whose neutral values differ from the other APIs. A worker's tokenizer adds its special
# tokens before a text prompt.
_OWN: Final = {"add_special_tokens": (True,)}


class Fields(shared_fields.SharedFields, frozen=True):
    """Scalar fields. The pool bounds the number of tokens further."""

    max_tokens: int | None = None
    stream: bool | None = None
    stream_options: chat_api.StreamOptions | None = None
    logprobs: int | None = None
    n: int | None = None
    best_of: int | None = None
    echo: bool | None = None
    suffix: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class CompletionRequest:
    """A parsed body.

    Attributes:
        creates: one for each prompt; `choices` is the number for all prompts.
        prompts: the texts.
        echo: whether the text of a choice begins with its prompt.
    """

    creates: list[Create]
    prompts: list[str]
    echo: bool


def parse(body: Body, catalog: Catalog) -> CompletionRequest:
    """
    Raises:
        errors.ApiError: 400 naming the field, or 404 for an unknown model.
    """
    pool, model = model_choice.for_text(body, catalog)
    unserved.check(body, apart_from=frozenset({"best_of", "echo", *_OWN}))
    unserved.check_fields(body, _OWN)
    turn = read(body, Fields)
    prompts = _prompts(body)
    each = or_default(turn.n, 1)
    if not 1 <= each <= MAX_CHOICES:
        raise errors.out_of_range("n", 1, MAX_CHOICES)
    if each * len(prompts) > MAX_CHOICES:
        raise errors.invalid_value(
            "prompt", f"Invalid 'prompt': at most {MAX_CHOICES} answers to all prompts together."
        )
    top = None if turn.logprobs is None else sampling.top_logprobs(turn.logprobs, "logprobs")
    echo = or_default(turn.echo, False)
    _refuse(body, turn, echo=echo, logprobs=top)
    max_tokens = token_bound(turn.max_tokens, "max_tokens", pool)
    creates = []
    for text in prompts:
        items = (conversation.Message("user", text, "prompt"),)
        create = shared_fields.create(
            body,
            turn,
            pool,
            model,
            items,
            max_tokens or min(DEFAULT_TOKENS, pool.longest_answer),
            formats.of_chat(body),
            top,
            "prompt",
        )
        options = turn.stream_options
        create = dataclasses.replace(
            create,
            stream=or_default(turn.stream, False),
            usage_in_stream=options is not None and or_default(options.include_usage, False),
            logprobs_param="logprobs",
            choices=each * len(prompts),
            raw=True,
        )
        creates.append(create)
    return CompletionRequest(creates, prompts, echo)


def _prompts(body: Body) -> list[str]:
    value: Any = body.get("prompt")
    if value is None:
        raise errors.missing_required_parameter("prompt")
    prompts = value if isinstance(value, list) else [value]
    if any(isinstance(each, int | list) for each in prompts):
        raise errors.unsupported_value("prompt", "Prompts of token ids are not supported.")
    if not prompts or not all(isinstance(each, str) for each in prompts):
        raise errors.invalid_type("prompt", "a string or an array of strings")
    if not all(prompts):
        raise errors.invalid_value("prompt", "Invalid 'prompt': a prompt is not empty.")
    return prompts


def _refuse(body: Body, turn: Fields, *, echo: bool, logprobs: int | None) -> None:
    if turn.max_tokens == 0:
        raise errors.unsupported_value(
            "max_tokens",
            "'max_tokens': 0 is not supported, with 'echo' neither: prompts have no log "
            "probabilities, so the answer would be the prompt alone.",
        )
    if turn.suffix:
        raise errors.unsupported_parameter("suffix", "'suffix' is not supported.")
    if echo and logprobs is not None:
        raise errors.unsupported_value(
            "echo", "'echo' with 'logprobs' is not supported: prompts have no log probabilities."
        )
    if turn.best_of is not None and turn.best_of != or_default(turn.n, 1):
        raise errors.unsupported_value("best_of", "'best_of' other than 'n' is not supported.")
    for name in ("tools", "tool_choice", "functions"):
        if body.get(name):
            raise errors.unsupported_parameter(name)
