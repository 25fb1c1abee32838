"""The items of a Responses `input` (pure)."""

from __future__ import annotations

from typing import Any

from gateway.parsing import messages
from gateway.parsing.json_body import Body
from tailrace.protocol import errors
from tailrace.settings.shapes import Pool


def read(body: Body, pool: Pool, *, required: bool) -> list[dict[str, Any]]:
    """The input as chat messages; empty if there is none and none is required.

    Raises:
        errors.ApiError: 400 naming the item.
    """
    value = body.get("input")
    if value is None or value == []:
        if required:
            raise errors.missing_required_parameter("input")
        return []
    items = [{"role": "user", "content": value}] if isinstance(value, str) else value
    if not isinstance(items, list):
        raise errors.invalid_type("input", "a string or an array of items")
    if len(items) > messages.MAX_ITEMS:
        raise errors.invalid_value(
            "input", f"Invalid 'input': expected at most {messages.MAX_ITEMS} items."
        )
    found = [_message(item, f"input[{i}]") for i, item in enumerate(items)]
    messages.check_length(found, pool, "input")
    return found


def _message(item: Any, where: str) -> dict[str, Any]:
    if isinstance(item, dict) and item.get("type", "message") != "message":
        raise errors.unsupported_value(f"{where}.type", "Only message items are supported.")
    return messages.message(item, where)


def shown(message: dict[str, Any]) -> dict[str, Any]:
    """A chat message as the item that `GET …/input_items` shows."""
    kind = "output_text" if message["role"] == "assistant" else "input_text"
    part: dict[str, Any] = {"type": kind, "text": message["content"]}
    if kind == "output_text":
        part["annotations"] = []
    return {"type": "message", "role": message["role"], "status": "completed", "content": [part]}
