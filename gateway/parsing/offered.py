"""Which of the things that parse are served: the switch of features on their way (pure).

A request is parsed as a whole, and then refused here if it asks for what is not served yet. A
feature is added to `OFFERED` when all parts have it, and what is left of this module goes when all
are. What a deployment or a pool does not have is in `gateway.requirements`.
"""

from __future__ import annotations

import enum
from typing import Final

from gateway.parsing import conversation, images
from gateway.parsing.command import Create
from tailrace.protocol import errors


class Feature(enum.Enum):
    """What a request may ask for beyond text."""

    TOOLS = "tools"
    FORMATS = "formats"
    ITEMS = "items"  # calls, their outputs and reasoning as input
    REFERENCES = "references"  # items that are to be looked up or opened
    LOGPROBS = "logprobs"
    IMAGES = "images"
    CHOICES = "choices"


EVERYTHING: Final = frozenset(Feature)
OFFERED: Final = EVERYTHING - {Feature.REFERENCES}


def check(create: Create, offered: frozenset[Feature], *, chat: bool) -> None:
    """Refuse what is not offered. `chat`: in the words of Chat Completions.

    Raises:
        errors.ApiError: 400 naming the field that asks for it.
    """
    missing = EVERYTHING - offered
    if Feature.TOOLS in missing:
        _tools(create)
    if Feature.FORMATS in missing and create.format is not None:
        raise errors.unsupported_value(create.format.param, "Only the format 'text' is supported.")
    if Feature.ITEMS in missing:
        for item in create.turn:
            _item(item, chat=chat)
    if Feature.IMAGES in missing and (where := images.first(create.turn)) is not None:
        raise errors.unsupported_value(f"{where}.type", "Only text is supported.")
    if Feature.REFERENCES in missing:
        for item in conversation.unresolved(create.turn):
            raise errors.unsupported_value(
                f"{item.where}.type", "References and encrypted items are not supported."
            )
    if Feature.LOGPROBS in missing and create.sampling.logprobs is not None:
        if create.logprobs_param == "include":
            raise errors.unsupported_value("include", "Log probabilities are not supported.")
        raise errors.unsupported_parameter(create.logprobs_param)
    if Feature.CHOICES in missing and create.choices > 1:
        raise errors.unsupported_value("n", "Only n=1 is supported.")


def _tools(create: Create) -> None:
    if create.tools.shown:
        raise errors.unsupported_parameter("tools", "Tools are not supported.")
    if create.tools.choice.mode == "required":
        raise errors.unsupported_value("tool_choice", "Tools are not supported.")


def _item(item: conversation.Item, *, chat: bool) -> None:
    if isinstance(item, conversation.Message):
        return
    if not chat:
        raise errors.unsupported_value(f"{item.where}.type", "Only message items are supported.")
    if isinstance(item, conversation.CallOutput):
        raise errors.unsupported_value(
            f"{item.where}.role", "Supported roles are: user, system, developer, assistant."
        )
    if isinstance(item, conversation.Call):
        message = item.where.rpartition(".")[0]
        raise errors.unsupported_parameter(f"{message}.tool_calls", "Tools are not supported.")
