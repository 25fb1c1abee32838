"""Chat messages as requests carry them (pure)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tailrace.prompts.chat_template import UNREADABLE, arguments_of, content_text
from tailrace.protocol import images


def plain(messages: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Messages as role and text only, which every chat template understands. `developer` is the
    newer name of `system`."""
    roles = {"developer": "system"}
    return [
        {
            "role": roles.get(role := str(m.get("role", "user")), role),
            "content": content_text(m.get("content")),
        }
        for m in messages
    ]


def chat(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages as any server of Chat Completions accepts them: texts, images of a user, calls of
    functions and their outputs. A custom tool is a function of one text, `input`; reasoning is left
    out."""
    chat_messages: list[dict[str, Any]] = []
    for message, short in zip(messages, plain(messages), strict=True):
        one: dict[str, Any] = dict(short)
        if images.any_in([message]):
            one["content"] = [_content_part(part) for part in message["content"]]
        if message.get("tool_calls"):
            one["tool_calls"] = [_function_call(call) for call in message["tool_calls"]]
        if "tool_call_id" in message:
            one["tool_call_id"] = message["tool_call_id"]
        chat_messages.append(one)
    return chat_messages


def _content_part(part: dict[str, Any]) -> dict[str, Any]:
    if part["type"] != "image":
        return part
    detail = {"detail": part["detail"]} if "detail" in part else {}
    return {"type": "image_url", "image_url": {"url": images.url(part), **detail}}


def _function_call(call: dict[str, Any]) -> dict[str, Any]:
    if call.get("type") == "custom":
        name, values = call["custom"]["name"], {"input": call["custom"]["input"]}
    else:
        name, values = call["function"]["name"], arguments_of(call)
        if values and UNREADABLE not in values:
            return call  # with its own text
    function = {"name": name, "arguments": json.dumps(values, ensure_ascii=False)}
    return {"id": call["id"], "type": "function", "function": function}


def characters(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> int:
    """Length of all texts of a request for the model, for estimates."""
    total = sum(len(text) for tool in tools for text in _texts(tool))
    for message in messages:
        total += len(content_text(message.get("content"))) + len(
            message.get("reasoning_content", "")
        )
        total += sum(map(len, _texts(message.get("tool_calls"))))
    return total


def _texts(value: Any) -> Iterator[str]:
    """All texts in a value of JSON, and the names of its members."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)
    elif isinstance(value, dict):
        for name, each in value.items():
            yield name
            yield from _texts(each)
