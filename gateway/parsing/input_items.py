"""The items of a Responses `input` (pure)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from gateway.parsing import conversation, messages
from gateway.parsing.json_body import Body
from tailrace.protocol import errors, file_search

MAX_SEALED_CHARS: Final = 262_144


def read(body: Body, *, required: bool, continues: bool = False) -> tuple[conversation.Item, ...]:
    """The items of the input. `continues`: the request has a history, so an empty text counts as no
    input.

    Raises:
        errors.ApiError: 400 naming the item.
    """
    value = body.get("input")
    if value is None or value == [] or (continues and value == ""):
        if required:
            raise errors.missing_required_parameter("input")
        return ()
    if isinstance(value, str):
        value = [{"role": "user", "content": value}]
    if not isinstance(value, list):
        raise errors.invalid_type("input", "a string or an array of items")
    return read_list(value, "input")


def read_list(
    items: list[Any], name: str, most: int = messages.MAX_ITEMS
) -> tuple[conversation.Item, ...]:
    """The items of a field `name`. Raises like `read`."""
    if len(items) > most:
        raise errors.invalid_value(name, f"Invalid '{name}': expected at most {most} items.")
    return tuple(
        _item(item, f"{name}[{i}]") for i, item in enumerate(items) if not _is_search(item)
    )


def _is_search(item: Any) -> bool:
    """Whether an item is the call of a search, or a reference to one. Clients send such items back;
    they are left out, because their passages belong to one question."""
    if not isinstance(item, dict):
        return False
    if item.get("type") == file_search.CALL:
        return True
    reference_id = (
        item.get("id") if item.get("type", "item_reference") == "item_reference" else None
    )
    message = "role" in item or "content" in item
    return (
        isinstance(reference_id, str)
        and reference_id.startswith(file_search.PREFIX)
        and not message
    )


def _item(item: Any, where: str) -> conversation.Item:
    if not isinstance(item, dict):
        raise errors.invalid_type(where, "an object")
    kind = item.get("type")
    if kind is None:
        # SDKs leave the type out of messages, and of references.
        is_reference = "id" in item and "role" not in item and "content" not in item
        kind = "item_reference" if is_reference else "message"
    read_item = _KINDS.get(kind) if isinstance(kind, str) else None
    if read_item is None:
        raise errors.unsupported_value(
            f"{where}.type", f"Supported items are: {', '.join(_KINDS)}."
        )
    return read_item(item, where)


def _call(item: dict[str, Any], where: str) -> conversation.Call:
    custom = item["type"] == "custom_tool_call"
    namespace = item.get("namespace")
    if namespace is not None:
        namespace = messages.identifier(item, "namespace", where)
    return conversation.Call(
        messages.identifier(item, "call_id", where),
        messages.identifier(item, "name", where),
        messages.text(item, "input" if custom else "arguments", where),
        where,
        namespace=namespace,
        custom=custom,
    )


def _output(item: dict[str, Any], where: str) -> conversation.CallOutput:
    return conversation.CallOutput(
        messages.identifier(item, "call_id", where),
        messages.parts(item.get("output"), f"{where}.output"),
        where,
        custom=item["type"] == "custom_tool_call_output",
    )


def _reasoning(item: dict[str, Any], where: str) -> conversation.Reasoning:
    sealed = item.get("encrypted_content")
    return conversation.Reasoning(
        "".join(_texts(item, "content", "reasoning_text", where)),
        where,
        id=None if item.get("id") is None else messages.identifier(item, "id", where),
        summary=tuple(_texts(item, "summary", "summary_text", where)),
        sealed=None if sealed is None else _encrypted_content(item, where),
    )


def _texts(item: dict[str, Any], name: str, kind: str, where: str) -> list[str]:
    """The texts of parts that are all of one kind."""
    value = item.get(name)
    path = f"{where}.{name}"
    if value is None:
        return []
    if not isinstance(value, list) or len(value) > messages.MAX_PARTS:
        raise errors.invalid_type(path, f"an array of at most {messages.MAX_PARTS} parts")
    for i, part in enumerate(value):
        if not isinstance(part, dict):
            raise errors.invalid_type(f"{path}[{i}]", "an object")
        if part.get("type") != kind:
            raise errors.unsupported_value(f"{path}[{i}].type", f"Expected '{kind}'.")
    return [messages.text(part, "text", f"{path}[{i}]") for i, part in enumerate(value)]


def _encrypted_content(item: dict[str, Any], where: str) -> str:
    text = messages.text(item, "encrypted_content", where)
    if len(text) > MAX_SEALED_CHARS:
        raise errors.invalid_value(
            f"{where}.encrypted_content",
            f"Invalid '{where}.encrypted_content': expected at most {MAX_SEALED_CHARS} characters.",
        )
    return text


def _reference(item: dict[str, Any], where: str) -> conversation.Reference:
    return conversation.Reference(messages.identifier(item, "id", where), where)


def _compaction(item: dict[str, Any], where: str) -> conversation.Compaction:
    id_ = None if item.get("id") is None else messages.identifier(item, "id", where)
    return conversation.Compaction(_encrypted_content(item, where), where, id=id_)


_KINDS: Final[Mapping[str, Callable[[dict[str, Any], str], conversation.Item]]] = {
    "message": messages.message,
    "function_call": _call,
    "function_call_output": _output,
    "custom_tool_call": _call,
    "custom_tool_call_output": _output,
    "reasoning": _reasoning,
    "item_reference": _reference,
    "compaction": _compaction,
}
