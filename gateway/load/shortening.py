"""Shorter answers while a pool is busy, the first thing that gives way
(pure; docs/design/backlog.md)."""

from __future__ import annotations

import dataclasses

import msgspec

from gateway.parsing import command
from tailrace.settings.shapes import ShorterWhenBusy


def allowed(create: command.Create, rule: ShorterWhenBusy) -> bool:
    """Whether an answer may be shorter than it was asked for: only such as can be continued. A call
    or a format that is cut is of no use to anybody; of a fork only its source says whether it has
    them."""
    whole = not create.degrade or create.whole or not create.generate
    special = create.embed is not None or create.fork is not None or create.raw
    if whole or special or create.format is not None or create.tools.prompt:
        return False
    return create.sampling.min_tokens <= rule.max_output_tokens < create.sampling.max_tokens


def shorten(create: command.Create, rule: ShorterWhenBusy) -> command.Create:
    """The request with the rule's bound."""
    original = create.sampling
    sampling = msgspec.structs.replace(original, max_tokens=rule.max_output_tokens)
    return dataclasses.replace(create, sampling=sampling, shortened_from=original.max_tokens)
