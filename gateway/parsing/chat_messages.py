"""The messages of a Chat Completions body (pure)."""

from __future__ import annotations

from typing import Any, Final

from gateway.parsing import conversation, messages
from gateway.parsing.json_body import Body
from tailrace.protocol import errors

MAX_CALLS: Final = 128  # of one message


def read(body: Body) -> tuple[conversation.Item, ...]:
    """The items of the messages.

    Raises:
        errors.ApiError: 400 naming the message.
    """
    value = body.get("messages")
    if value is None or value == []:
        raise errors.missing_required_parameter("messages")
    if not isinstance(value, list):
        raise errors.invalid_type("messages", "an array of messages")
    if len(value) > messages.MAX_ITEMS:
        raise errors.invalid_value(
            "messages", f"Invalid 'messages': expected at most {messages.MAX_ITEMS} messages."
        )
    return tuple(item for i, each in enumerate(value) for item in _message(each, f"messages[{i}]"))


def _message(message: Any, where: str) -> list[conversation.Item]:
    if not isinstance(message, dict):
        raise errors.invalid_type(where, "an object")
    speaker = message.get("role")
    if speaker == "tool":
        return [_output(message, where)]
    if speaker == "function":
        raise errors.unsupported_value(
            f"{where}.role", "The role 'function' is deprecated; use 'tool'."
        )
    if message.get("function_call") is not None:
        raise errors.unsupported_parameter(
            f"{where}.function_call", "'function_call' is deprecated; use 'tool_calls'."
        )
    if messages.role(message, where) == "assistant":
        return _answer(message, where)
    return [messages.message(message, where)]


def _output(message: dict[str, Any], where: str) -> conversation.CallOutput:
    return conversation.CallOutput(
        messages.identifier(message, "tool_call_id", where),
        messages.content(message.get("content"), f"{where}.content"),
        where,
    )


def _answer(message: dict[str, Any], where: str) -> list[conversation.Item]:
    """An assistant's message: reasoning, text or a refusal, and calls. It has at least one of them:
    an answer that was cut short while reasoning has only reasoning."""
    items: list[conversation.Item] = []
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    # Members that servers of reasoning models add, and clients send back.
    if isinstance(reasoning, str) and reasoning:
        items.append(conversation.Reasoning(reasoning, where))
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list) or len(calls) > MAX_CALLS:
        raise errors.invalid_type(f"{where}.tool_calls", f"an array of at most {MAX_CALLS} calls")
    content = message.get("content")
    if content is None and message.get("refusal") is not None:
        content = messages.text(message, "refusal", where)
    if content is None and items and not calls:
        content = ""
    if content is not None or not calls:
        answer_text = messages.content(content, f"{where}.content", refusals=True)
        items.append(conversation.Message("assistant", answer_text, where))
    return [*items, *(_call(each, f"{where}.tool_calls[{i}]") for i, each in enumerate(calls))]


def _call(call: Any, where: str) -> conversation.Call:
    if not isinstance(call, dict):
        raise errors.invalid_type(where, "an object")
    kind = call.get("type") or "function"
    if kind not in ("function", "custom"):
        raise errors.unsupported_value(f"{where}.type", "Supported calls are: function, custom.")
    inner = call.get(kind)
    if inner is None:
        raise errors.missing_required_parameter(f"{where}.{kind}")
    if not isinstance(inner, dict):
        raise errors.invalid_type(f"{where}.{kind}", "an object")
    return conversation.Call(
        messages.identifier(call, "id", where),
        messages.identifier(inner, "name", f"{where}.{kind}"),
        messages.text(inner, "input" if kind == "custom" else "arguments", f"{where}.{kind}"),
        where,
        custom=kind == "custom",
    )
