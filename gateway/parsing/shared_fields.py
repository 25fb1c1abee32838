"""Fields that both APIs share: model, sampling, metadata, labels (pure)."""

from __future__ import annotations

from typing import Final

import msgspec

from gateway.parsing import conversation, messages, sampling
from gateway.parsing.command import MAX_DEADLINE_MS, Create
from gateway.parsing.formats import Format
from gateway.parsing.json_body import Body
from gateway.parsing.scalars import Label, or_default
from tailrace.protocol import errors, records, topics, truncation
from tailrace.settings.shapes import Pool

MAX_METADATA_PAIRS: Final = 16
MAX_METADATA_KEY: Final = 64
MAX_METADATA_VALUE: Final = 512


class SharedFields(msgspec.Struct, frozen=True):
    """The scalar fields that both APIs share."""

    store: bool | None = None
    service_tier: str | None = None
    top_p: sampling.TopP | None = None
    temperature: sampling.Temperature | None = None
    presence_penalty: sampling.Penalty | None = None
    frequency_penalty: sampling.Penalty | None = None
    seed: sampling.Seed | None = None
    top_k: int | None = None
    min_p: sampling.MinP | None = None
    repetition_penalty: sampling.RepetitionPenalty | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    top_logprobs: int | None = None
    parallel_tool_calls: bool | None = None
    user: Label | None = None
    safety_identifier: Label | None = None
    prompt_cache_key: Label | None = None
    deadline_ms: sampling.Deadline | None = None
    degrade: bool | None = None
    cached_answers: bool | None = None


def create(
    body: Body,
    fields: SharedFields,
    pool: Pool,
    model: str,
    turn: tuple[conversation.Item, ...],
    max_tokens: int | None,
    form: Format | None,
    logprobs: int | None,
    param: str,
    *,
    truncate: bool = False,
) -> Create:
    """The part of a command that both APIs share.

    Args:
        turn: the model's input, from the field `param`.
        max_tokens: as requested; None for the default.
        logprobs: number of top tokens with log probabilities; None: no log probabilities.
        truncate: older messages may be left out if it is too long.

    Raises:
        errors.ApiError: 400 naming the field.
    """
    chat = conversation.messages(turn)
    least = truncation.without_dropped(chat, truncation.counts(chat)[-1]) if truncate else chat
    messages.check_length(least, pool, param)
    bound = min(max_tokens or pool.default_output_tokens, pool.longest_answer)
    stops = sampling.stops(body)
    min_tokens = sampling.min_tokens(fields.min_tokens, bound)
    ignore_eos = or_default(fields.ignore_eos, False)
    parameters = records.Sampling(
        max_tokens=bound,
        temperature=or_default(fields.temperature, pool.default_temperature),
        top_p=or_default(fields.top_p, pool.default_top_p),
        presence_penalty=or_default(fields.presence_penalty, 0.0),
        frequency_penalty=or_default(fields.frequency_penalty, 0.0),
        stop=stops,
        seed=fields.seed,
        logit_bias=sampling.logit_bias(body),
        logprobs=logprobs,
        top_k=sampling.top_k(fields.top_k),
        min_p=or_default(fields.min_p, 0.0),
        repetition_penalty=or_default(fields.repetition_penalty, 1.0),
        min_tokens=min_tokens,
        ignore_eos=ignore_eos,
    )
    if form is not None:
        sampling.check_beside_format(parameters, f"'{form.param}'")
    return Create(
        model=model,
        pool=pool.name,
        priority=priority(fields.service_tier, pool, model),
        input=chat,
        items=[conversation.as_json(item) for item in turn],
        turn=turn,
        sampling=parameters,
        format=form,
        max_output_tokens=max_tokens,
        store=or_default(fields.store, True),
        metadata=metadata(body),
        user=fields.user,
        safety_identifier=fields.safety_identifier,
        prompt_cache_key=fields.prompt_cache_key,
        deadline_ms=or_default(fields.deadline_ms, MAX_DEADLINE_MS),
        degrade=or_default(fields.degrade, True),
        truncate=truncate,
        cached=pool.cache == "prefix",
        cached_answers=or_default(fields.cached_answers, True),
    )


def priority(service_tier: str | None, pool: Pool, model: str) -> topics.PriorityClass:
    """The class of a request. `flex` is the public name for "cheaper and later".

    Raises:
        errors.ApiError: the pool does not accept this class.
    """
    if service_tier is None:
        return pool.classes[0]
    priority_class: topics.PriorityClass = "batch" if service_tier == "flex" else "interactive"
    if priority_class not in pool.classes:
        raise errors.unsupported_value(
            "service_tier", f"The model '{model}' takes no requests with this 'service_tier'."
        )
    return priority_class


def metadata(body: Body) -> dict[str, str] | None:
    """
    Raises:
        errors.ApiError: 400 naming it.
    """
    value = body.get("metadata")
    if value is None:
        return None
    if not isinstance(value, dict):
        raise errors.invalid_type("metadata", "an object")
    if len(value) > MAX_METADATA_PAIRS:
        raise errors.invalid_value(
            "metadata", f"Invalid 'metadata': expected at most {MAX_METADATA_PAIRS} pairs."
        )
    for key, text in value.items():
        if not isinstance(text, str):
            raise errors.invalid_type("metadata", "strings as values")
        if len(key) > MAX_METADATA_KEY or len(text) > MAX_METADATA_VALUE:
            raise errors.invalid_value(
                "metadata",
                (
                    f"Invalid 'metadata': keys have at most {MAX_METADATA_KEY} characters, "
                    f"values at most {MAX_METADATA_VALUE}."
                ),
            )
    return value
