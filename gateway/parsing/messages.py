"""One message of a conversation: role and content, alike in both APIs (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from gateway.parsing import conversation, images
from tailrace.protocol import errors
from tailrace.settings.shapes import Pool

MAX_ITEMS: Final = 512
MAX_PARTS: Final = 64
MAX_ID_CHARS: Final = 256
# No real tokenizer is denser. The engine counts exactly; this bound only keeps absurd inputs out of
# the log.
CHARS_PER_TOKEN: Final = 16

Role = Literal["user", "system", "assistant"]
_ROLES: Final[Mapping[str, Role]] = {
    "user": "user",
    "system": "system",
    "developer": "system",
    "assistant": "assistant",
}
_TEXT_PARTS: Final = frozenset({"input_text", "output_text", "text"})


def role(item: dict[str, Any], where: str) -> Role:
    """The role of a message.

    Raises:
        errors.ApiError: 400 naming the role.
    """
    value = item.get("role")
    if value is None:
        raise errors.missing_required_parameter(f"{where}.role")
    if not isinstance(value, str) or value not in _ROLES:
        raise errors.unsupported_value(
            f"{where}.role", f"Supported roles are: {', '.join(_ROLES)}."
        )
    return _ROLES[value]


def message(item: dict[str, Any], where: str) -> conversation.Message:
    """A message. `where`: its path in the body, for errors.

    Raises:
        errors.ApiError: 400 naming what is wrong in it.
    """
    speaker = role(item, where)
    if item.get("tool_calls") or item.get("function_call"):
        raise errors.unsupported_parameter(
            f"{where}.tool_calls", "A call is an item of its own: 'function_call'."
        )
    path = f"{where}.content"
    if speaker == "user":
        return conversation.Message(speaker, parts(item.get("content"), path), where)
    spoken = content(item.get("content"), path, refusals=speaker == "assistant")
    return conversation.Message(speaker, spoken, where, developer=item["role"] == "developer")


def content(value: Any, where: str, *, refusals: bool = False) -> str:
    """Text, or parts of it. `refusals`: a part may be one.

    Raises:
        errors.ApiError: 400 naming what is wrong in it.
    """
    if isinstance(value, str):
        return value
    if value is None:
        raise errors.missing_required_parameter(where)
    if not isinstance(value, list) or len(value) > MAX_PARTS:
        raise errors.invalid_type(where, f"a string or an array of at most {MAX_PARTS} parts")
    return "".join(_part(part, f"{where}[{i}]", refusals) for i, part in enumerate(value))


def parts(value: Any, where: str) -> str | list[dict[str, Any]]:
    """A user's content or a tool's output: a text, or parts if an image is among them
    (`tailrace.protocol.images`). The text of a file is text.

    Raises:
        errors.ApiError: 400 naming what is wrong in it.
    """
    if not isinstance(value, list) or len(value) > MAX_PARTS:
        return content(value, where)
    visible = [_visible_part(part, f"{where}[{i}]") for i, part in enumerate(value)]
    if all(isinstance(part, str) for part in visible):
        return "".join(map(str, visible))
    return [{"type": "text", "text": p} if isinstance(p, str) else p for p in visible]


def _visible_part(part: Any, where: str) -> str | dict[str, Any]:
    """A part that may be a text, a file (its text) or an image (an image part)."""
    match part.get("type") if isinstance(part, dict) else None:
        case "input_image":
            return images.of_responses(part, where)
        case "image_url":
            return images.of_chat(part, where)
        case "input_file":
            return images.file(part, where)
        case "file":
            inner = part.get("file")
            if not isinstance(inner, dict):
                raise errors.invalid_type(f"{where}.file", "an object")
            return images.file(inner, f"{where}.file")
    return _part(part, where, refusals=False)


def _part(part: Any, where: str, refusals: bool) -> str:
    if not isinstance(part, dict):
        raise errors.invalid_type(where, "an object")
    kind = part.get("type")
    if refusals and kind == "refusal":
        return text(part, "refusal", where)
    if not isinstance(kind, str) or kind not in _TEXT_PARTS:
        raise errors.unsupported_value(f"{where}.type", "Only text is supported here.")
    return text(part, "text", where)


def text(value: Mapping[str, Any], name: str, where: str) -> str:
    """A member that must be a text.

    Raises:
        errors.ApiError: it is absent, or not a text.
    """
    member = value.get(name)
    if not isinstance(member, str):
        raise errors.invalid_type(f"{where}.{name}", "a string")
    return member


def identifier(value: Mapping[str, Any], name: str, where: str) -> str:
    """A member that is an identifier.

    Raises:
        errors.ApiError: it is absent, not a text, empty or too long.
    """
    if value.get(name) is None:
        raise errors.missing_required_parameter(f"{where}.{name}")
    member = text(value, name, where)
    if not 0 < len(member) <= MAX_ID_CHARS:
        raise errors.invalid_value(
            f"{where}.{name}",
            f"Invalid '{where}.{name}': expected 1 to {MAX_ID_CHARS} characters.",
        )
    return member


def check_length(messages: list[dict[str, Any]], pool: Pool, param: str) -> None:
    """Check that messages may fit the model's length and a record of the log.

    Raises:
        errors.ApiError: the text exceeds the model's length with any tokenizer, or there are too
            many or too large images.
    """
    images.check_count(messages, param)
    most = pool.max_model_len * CHARS_PER_TOKEN
    if conversation.characters(messages) > most:
        longest = max(conversation.characters([each]) for each in messages)
        if longest > most:
            raise _message_too_long(longest, pool, param)
        raise errors.context_length_exceeded(pool.max_model_len, param)


def _message_too_long(characters: int, pool: Pool, param: str) -> errors.ApiError:
    """One message is too long by itself: it does not help to leave out others."""
    message = (
        f"One message alone has {characters} characters, which is more than this model's context "
        f"window holds ({pool.max_model_len} tokens, at most "
        f"{pool.max_model_len * CHARS_PER_TOKEN} characters). Please shorten it or split it up."
    )
    return errors.wrong_request("context_length_exceeded", message, param)
