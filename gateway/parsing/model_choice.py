"""Chooses the pool and the model of a body: by a model, an alias, or a rule of `auto` (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gateway.parsing.json_body import Body
from tailrace.protocol import errors, images
from tailrace.settings.catalog import AUTO, Catalog
from tailrace.settings.shapes import Pool

CHARS_PER_TOKEN_GUESS: Final = 4
# Fields that make the prompt, in all APIs.
_PROMPT: Final = ("input", "messages", "prompt", "instructions", "tools")
_IMAGE_TYPES: Final = ("input_image", "image_url")
_FORMATS: Final = ("json_object", "json_schema")


def pool_and_model(body: Body, catalog: Catalog) -> tuple[Pool, str]:
    """The pool and the model for the model or alias in a body; by default the first pool and its
    first model.

    Raises:
        errors.ApiError: not a string, or 404 for an unknown model.
    """
    model = body.get("model")
    if model is None:
        model = catalog.default_model
    if not isinstance(model, str):
        raise errors.invalid_type("model", "a string")
    match = catalog.find(model)
    if match is None:
        raise errors.model_not_found(model)
    return match


def for_text(body: Body, catalog: Catalog) -> tuple[Pool, str]:
    """Like `pool_and_model`, for text: the model may be `auto` if there are rules.

    Raises:
        errors.ApiError: like `pool_and_model`, or 400, no rule fits.
    """
    if body.get("model") != AUTO or not catalog.rules:
        return pool_and_model(body, catalog)
    return by_rules(catalog, prompt_tokens(body), features(body))


def by_rules(catalog: Catalog, tokens: float, needs: frozenset[str]) -> tuple[Pool, str]:
    """The pool and model of the first rule that fits a prompt of this length with these features.

    Raises:
        errors.ApiError: 400, no rule fits.
    """
    for rule in catalog.rules:
        if rule.fits(tokens, needs) and (match := catalog.find(rule.model)) is not None:
            return match
    raise no_rule_fits(tokens, needs)


def fitting(catalog: Catalog, tokens: float, needs: frozenset[str]) -> list[str]:
    """The models of all rules that fit, each once, in their order."""
    fit = [catalog.find(rule.model) for rule in catalog.rules if rule.fits(tokens, needs)]
    return list(dict.fromkeys(match[1] for match in fit if match is not None))


def no_rule_fits(tokens: float, needs: frozenset[str]) -> errors.ApiError:
    """The error if no rule fits."""
    return errors.invalid_value(
        "model",
        f"No model of '{AUTO}' takes this request: about {tokens:.0f} tokens"
        f"{''.join(f', {name}' for name in sorted(needs))}.",
    )


def prompt_tokens(body: Body) -> float:
    """The estimated length of the prompt in a body. `auto_model` adds the history; files that it
    refers to are not counted."""
    characters = image_count = 0
    for value in _values(body):
        if isinstance(value, str) and not value.startswith("data:"):
            characters += len(value)
        elif _is_image(value):
            image_count += 1
    return characters / CHARS_PER_TOKEN_GUESS + image_count * images.MAX_TOKENS_GUESS


def features(body: Body) -> frozenset[str]:
    """The features of a body other than plain text (`catalog.AskedFeature`)."""
    names = set()
    if any(_is_image(value) for value in _values(body)):
        names.add("images")
    if body.get("tools") and body.get("tool_choice") != "none":
        names.add("tools")
    for form in (_member(body.get("text"), "format"), body.get("response_format")):
        if _member(form, "type") in _FORMATS:
            names.add("json")
    for effort in (_member(body.get("reasoning"), "effort"), body.get("reasoning_effort")):
        if effort not in (None, "none"):
            names.add("reasoning")
    return frozenset(names)


def _values(body: Body) -> list[Any]:
    """Every value in the prompt, at any depth."""
    values = [body[name] for name in _PROMPT if name in body]
    for value in values:  # grows meanwhile
        if isinstance(value, Mapping):
            values.extend(value.values())
        elif isinstance(value, list):
            values.extend(value)
    return values


def _is_image(value: Any) -> bool:
    return isinstance(value, Mapping) and value.get("type") in _IMAGE_TYPES


def _member(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else None
