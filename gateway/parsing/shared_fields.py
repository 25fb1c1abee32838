"""What both APIs ask alike: model, sampling, metadata, labels (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from gateway.parsing import input_items, sampling
from gateway.parsing.command import Create
from gateway.parsing.json_body import Body
from gateway.parsing.scalars import Label, or_default
from tailrace.protocol import errors, records
from tailrace.settings.shapes import Pool

MAX_METADATA_PAIRS: Final = 16
MAX_METADATA_KEY: Final = 64
MAX_METADATA_VALUE: Final = 512


class SharedFields(msgspec.Struct, frozen=True):
    """The scalar fields that both APIs spell alike."""

    store: bool | None = None
    service_tier: str | None = None
    top_p: sampling.TopP | None = None
    temperature: sampling.Temperature | None = None
    presence_penalty: sampling.Penalty | None = None
    frequency_penalty: sampling.Penalty | None = None
    seed: sampling.Seed | None = None
    user: Label | None = None
    safety_identifier: Label | None = None
    prompt_cache_key: Label | None = None


def pool_and_model(body: Body, pools: Sequence[Pool]) -> tuple[Pool, str]:
    """The pool that serves the model a body names, or the first pool and its first model.

    Raises:
        errors.ApiError: not a string, or 404 for an unknown model.
    """
    model = body.get("model")
    if model is None:
        return pools[0], pools[0].models[0]
    if not isinstance(model, str):
        raise errors.invalid_type("model", "a string")
    for pool in pools:
        if model in pool.models:
            return pool, model
    raise errors.model_not_found(model)


def create(
    body: Body,
    fields: SharedFields,
    pool: Pool,
    model: str,
    messages: list[dict[str, Any]],
    max_tokens: int | None,
) -> Create:
    """The command, as far as both APIs ask alike. `max_tokens` is as asked, None for the default.

    Raises:
        errors.ApiError: 400 naming the field.
    """
    return Create(
        model=model,
        pool=pool.name,
        # `flex` is the public name for "cheaper and later".
        priority="batch" if fields.service_tier == "flex" else "interactive",
        input=messages,
        items=[input_items.shown(m) for m in messages],
        sampling=records.Sampling(
            max_tokens=max_tokens or pool.default_output_tokens,
            temperature=or_default(fields.temperature, pool.default_temperature),
            top_p=or_default(fields.top_p, pool.default_top_p),
            presence_penalty=or_default(fields.presence_penalty, 0.0),
            frequency_penalty=or_default(fields.frequency_penalty, 0.0),
            stop=sampling.stops(body),
            seed=fields.seed,
            logit_bias=sampling.logit_bias(body),
        ),
        max_output_tokens=max_tokens,
        store=or_default(fields.store, True),
        metadata=_metadata(body),
        user=fields.user,
        safety_identifier=fields.safety_identifier,
        prompt_cache_key=fields.prompt_cache_key,
    )


def _metadata(body: Body) -> dict[str, str] | None:
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
