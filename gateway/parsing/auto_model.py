"""The model `auto` for a request with a history: chosen once the history is known (pure).

The history of a body, by `previous_response_id` or in a conversation, is read only after admission.
The fields that a body may have depend on the pool. So a body is parsed twice: first for a model
that the rules may choose, then for the chosen one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from gateway.parsing import command, conversation, model_choice
from gateway.parsing.json_body import Body
from tailrace.protocol import errors, images
from tailrace.settings.catalog import AUTO, Catalog

Parse = Callable[[Body, Catalog], command.Create]

_BEFORE: Final = ("previous_response_id", "conversation")
_IMAGES: Final = frozenset({"images"})


def reading(parse: Parse) -> Parse:
    """`parse`, for bodies that may have a history."""
    return lambda body, catalog: parse_auto(body, catalog, parse)


def parse_auto(body: Body, catalog: Catalog, parse: Parse) -> command.Create:
    """The command of `parse`. If the history decides the model, the command is for a model that may
    be chosen, and is `pending`.

    Raises:
        errors.ApiError: like `parse`; for a pending command, like `parse` for the first candidate.
    """
    if not _pending(body, catalog):
        return parse(body, catalog)
    choice = _Choice(body, catalog, parse)
    first, refusal = None, None
    for model in choice.models:
        try:
            first = choice.for_model(model)
            break
        except errors.ApiError as error:
            refusal = refusal or error
    if first is None:
        # Without a candidate, no rule fits the body alone.
        raise refusal or choice.refusal()
    pending = command.Pending(lambda before: choice.decide(first, before), choice.candidates)
    return dataclasses.replace(first, pending=pending)


def _pending(body: Body, catalog: Catalog) -> bool:
    """Whether the body has a history that may change which rule fits. A fork has its source's
    model."""
    if body.get("model") != AUTO or body.get("fork") is not None:
        return False
    if all(body.get(name) is None for name in _BEFORE):
        return False
    return any(r.max_prompt_tokens is not None or "images" in r.features for r in catalog.rules)


class _Choice:
    """The rules for one body."""

    def __init__(self, body: Body, catalog: Catalog, parse: Parse) -> None:
        self._body = body
        self._catalog = catalog
        self._parse = parse
        self._tokens = model_choice.prompt_tokens(body)
        self._needs = model_choice.features(body)
        # The history only makes the prompt longer, and may have images.
        fit = model_choice.fitting(catalog, self._tokens, self._needs)
        seeing = model_choice.fitting(catalog, self._tokens, self._needs | _IMAGES)
        self.models = list(dict.fromkeys((*fit, *seeing)))

    def for_model(self, model: str) -> command.Create:
        """The command for this model. Raises errors.ApiError."""
        create = self._parse({**self._body, "model": model}, self._catalog)
        if create.body_digest is None:
            return create
        # A key identifies what the client sent, whichever model answers.
        return dataclasses.replace(create, body_digest=command.body_digest(self._body))

    def decide(self, first: command.Create, before: Sequence[Mapping[str, Any]]) -> command.Create:
        """The command for the model that the rules choose with this history. Raises like `of`, and
        ApiError: no rule fits."""
        tokens = self._tokens + conversation.characters(before) / model_choice.CHARS_PER_TOKEN_GUESS
        features = self._needs | _IMAGES if images.any_in(before) else self._needs
        _, model = model_choice.by_rules(self._catalog, tokens + images.tokens(before), features)
        return first if model == first.model else self.for_model(model)

    def candidates(self) -> list[command.Create]:
        """The commands for all models that may be chosen."""
        creates = []
        for model in self.models:
            try:
                creates.append(self.for_model(model))
            except errors.ApiError:
                continue  # the request would be refused for this model
        return creates

    def refusal(self) -> errors.ApiError:
        """The error if no model may be chosen."""
        return model_choice.no_rule_fits(self._tokens, self._needs)
