"""`fork`: a response that begins with tokens of another one (pure; an extension)."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from gateway.parsing.json_body import Body
from gateway.parsing.messages import CHARS_PER_TOKEN
from gateway.parsing.scalars import or_default, read, too_long
from tailrace.protocol import errors, records
from tailrace.settings.shapes import Pool

SOURCE: Final = "fork.response_id"
AT: Final = "fork.at"
REPLACE: Final = "fork.replace"
# A fork has the prompt of its source, so it excludes all fields that build a prompt.
EXCLUDED_FIELDS: Final = (
    "input",
    "previous_response_id",
    "instructions",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "max_tool_calls",
    "reasoning",
    "text",
    "response_format",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "structured_outputs",
    "chat_template_kwargs",
)
_MOST: Final = 2**53 - 1


class _Fields(msgspec.Struct, frozen=True):
    response_id: str | None = None
    at: Annotated[int, msgspec.Meta(ge=0, le=_MOST)] | None = None
    replace: str | None = None


def parse(body: Body, pool: Pool) -> records.Fork | None:
    """The fork of a body; None without one.

    Raises:
        errors.ApiError: 400 naming the field.
    """
    value = body.get("fork")
    if value is None:
        return None
    if not isinstance(value, dict):
        raise errors.invalid_type("fork", "an object")
    for name in EXCLUDED_FIELDS:
        if body.get(name) is not None:
            raise errors.invalid_value(
                name, f"'{name}' cannot be used with 'fork': the prompt is that of its source."
            )
    if body.get("truncation") == "auto":
        raise errors.invalid_value(
            "truncation", "A fork has the prompt of its source: 'truncation' cannot be 'auto'."
        )
    if body.get("generate") is False:
        raise errors.invalid_value("generate", "A fork generates: 'generate' cannot be false.")
    try:
        fields = read(value, _Fields)
    except errors.ApiError as error:
        raise _inside(error) from error
    if fields.response_id is None:
        raise errors.missing_required_parameter(SOURCE)
    if fields.at is None:
        raise errors.missing_required_parameter(AT)
    text = or_default(fields.replace, "")
    if len(text) > pool.max_model_len * CHARS_PER_TOKEN:
        raise too_long(REPLACE, pool.max_model_len * CHARS_PER_TOKEN)
    return records.Fork(fields.response_id, fields.at, text)


def _inside(error: errors.ApiError) -> errors.ApiError:
    """The same error for a field inside `fork`."""
    name = f"fork.{error.param}"
    message = error.message.replace(f"'{error.param}'", f"'{name}'")
    return errors.ApiError(error.status, error.type, error.code, message, name)
