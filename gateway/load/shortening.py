"""Shorter answers while a pool is busy: the first step of load shedding (pure;
docs/design/backlog.md)."""

from __future__ import annotations

import dataclasses

import msgspec

from gateway.parsing import command
from tailrace.settings.shapes import ShorterWhenBusy


def allowed(create: command.Create, rule: ShorterWhenBusy) -> bool:
    """Whether an answer may be shorter than requested: only if it can be continued. An incomplete
    call or format is useless; whether a fork has them is known from its source only."""
    whole = not create.degrade or create.whole or not create.generate
    special = create.embed is not None or create.fork is not None or create.raw
    if whole or special or create.format is not None or create.tools.prompt:
        return False
    return create.sampling.min_tokens <= rule.max_output_tokens < create.sampling.max_tokens


def shorten(create: command.Create, rule: ShorterWhenBusy) -> command.Create:
    """The request with the rule's `max_output_tokens`; its own bound stays in `shortened_from`."""
    original = create.sampling
    sampling = msgspec.structs.replace(original, max_tokens=rule.max_output_tokens)
    return dataclasses.replace(create, sampling=sampling, shortened_from=original.max_tokens)
