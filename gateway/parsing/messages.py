"""One message of a conversation: a role and content, which both APIs write alike (pure)."""

from __future__ import annotations

from typing import Any, Final

from tailrace.protocol import errors
from tailrace.settings.shapes import Pool

MAX_ITEMS: Final = 512
MAX_PARTS: Final = 64
# No text is denser with a real tokenizer. The engine counts exactly; this bound only keeps absurd
# inputs out of the log.
CHARS_PER_TOKEN: Final = 16

_ROLES: Final = {
    "user": "user",
    "system": "system",
    "developer": "system",
    "assistant": "assistant",
}
_TEXT_PARTS: Final = frozenset({"input_text", "output_text", "text"})


def message(item: Any, where: str) -> dict[str, Any]:
    """A chat message `{"role", "content"}`. `where` is its place in the body, for errors.

    Raises:
        errors.ApiError: 400 naming what is wrong in it.
    """
    if not isinstance(item, dict):
        raise errors.invalid_type(where, "an object")
    role = item.get("role")
    if role is None:
        raise errors.missing_required_parameter(f"{where}.role")
    if not isinstance(role, str) or role not in _ROLES:
        raise errors.unsupported_value(
            f"{where}.role", f"Supported roles are: {', '.join(_ROLES)}."
        )
    if item.get("tool_calls") or item.get("function_call"):
        raise errors.unsupported_parameter(f"{where}.tool_calls", "Tools are not supported.")
    return {"role": _ROLES[role], "content": _content(item.get("content"), f"{where}.content")}


def _content(value: Any, where: str) -> str:
    if isinstance(value, str):
        return value
    if value is None:
        raise errors.missing_required_parameter(where)
    if not isinstance(value, list) or len(value) > MAX_PARTS:
        raise errors.invalid_type(where, f"a string or an array of at most {MAX_PARTS} parts")
    return "".join(_part(part, f"{where}[{i}]") for i, part in enumerate(value))


def _part(part: Any, where: str) -> str:
    if not isinstance(part, dict):
        raise errors.invalid_type(where, "an object")
    if part.get("type") not in _TEXT_PARTS:
        raise errors.unsupported_value(f"{where}.type", "Only text is supported.")
    text = part.get("text")
    if not isinstance(text, str):
        raise errors.invalid_type(f"{where}.text", "a string")
    return text


def check_length(messages: list[dict[str, Any]], pool: Pool, param: str) -> None:
    """
    Raises:
        errors.ApiError: more text than any tokenizer makes fit the model's length.
    """
    if sum(len(m["content"]) for m in messages) > pool.max_model_len * CHARS_PER_TOKEN:
        raise errors.context_length_exceeded(pool.max_model_len, param)
