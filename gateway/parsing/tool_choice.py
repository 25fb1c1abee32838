"""`tool_choice`: which tools the model may or must call, in both APIs (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal

from gateway.parsing import file_search, schemas, tool_kinds
from tailrace.protocol import errors, records

MAX_CHOICE_BYTES: Final = 65_536
MAX_CHOICE_DEPTH: Final = 8


def read(
    value: Any, read_tools: Sequence[tool_kinds.ReadTool]
) -> tuple[records.ToolChoice, str | dict[str, Any]]:
    """The `tool_choice` of a body, for its record and for the Response object.

    Raises:
        errors.ApiError: 400 naming what is wrong in it.
    """
    where = "tool_choice"
    schemas.check_size(value, where, MAX_CHOICE_BYTES, MAX_CHOICE_DEPTH)
    names = [name for each in read_tools for name in each.names]
    searches = any(each.search is not None for each in read_tools)
    if value is None or value == "auto":
        return records.ToolChoice("auto"), "auto"
    if value == "none":
        return records.ToolChoice("none"), "none"
    if value == "required":
        if searches:  # a search is not a call of the model
            return records.ToolChoice("auto"), "required"
        if not names:
            raise _without_tools(read_tools, "required")
        return records.ToolChoice("required"), "required"
    if isinstance(value, str):
        raise errors.invalid_value(
            where, "Invalid 'tool_choice': expected auto, none, required or an object."
        )
    if not isinstance(value, dict):
        raise errors.invalid_type(where, "a string or an object")
    if value.get("type") == "allowed_tools":
        return _allowed_tools(value, read_tools)
    selection = tuple(_names_of(value, read_tools, where))
    if not selection and searches and _is_search(value):
        return records.ToolChoice("auto"), {"type": file_search.KIND}
    if not selection:
        raise _not_run(where, value)
    echo = {"type": value["type"], "name": _name_in(value)}
    if value.get("namespace") is not None:
        echo["namespace"] = value["namespace"]
    return records.ToolChoice("required", selection), echo


def _allowed_tools(
    value: dict[str, Any], read_tools: Sequence[tool_kinds.ReadTool]
) -> tuple[records.ToolChoice, dict[str, Any]]:
    """`allowed_tools`. Chat Completions has its members one level deeper."""
    nested = isinstance(value.get("allowed_tools"), dict)
    inner, where = (
        (value["allowed_tools"], "tool_choice.allowed_tools") if nested else (value, "tool_choice")
    )
    mode = inner.get("mode")
    if mode not in ("auto", "required"):
        raise errors.invalid_value(
            f"{where}.mode", f"Invalid '{where}.mode': expected auto or required."
        )
    tools = inner.get("tools")
    if not isinstance(tools, list) or not 0 < len(tools) <= tool_kinds.MAX_TOOLS:
        raise errors.invalid_type(
            f"{where}.tools", f"an array of 1 to {tool_kinds.MAX_TOOLS} tools"
        )
    names = [
        name
        for i, each in enumerate(tools)
        for name in _names_of(each, read_tools, f"{where}.tools[{i}]")
    ]
    echo = {"type": "allowed_tools", "mode": mode, "tools": tools}
    searches = any(map(_is_search, tools)) and any(each.search is not None for each in read_tools)
    if names:
        effective_mode: Literal["auto", "required"] = (
            "auto" if searches or mode == "auto" else "required"
        )
        return records.ToolChoice(effective_mode, tuple(dict.fromkeys(names))), echo
    if mode == "required" and not searches:
        raise _not_run(f"{where}.tools", tools[0])
    return records.ToolChoice("none"), echo  # no other allowed tool runs here


def _is_search(value: Any) -> bool:
    return isinstance(value, dict) and bool(value.get("type") == file_search.KIND)


def searches_files(choice: Any) -> bool:
    """Whether a valid choice allows the file search."""
    if not isinstance(choice, dict):
        return bool(choice != "none")
    if choice.get("type") != "allowed_tools":
        return _is_search(choice)
    inner = choice.get("allowed_tools")
    tools: list[Any] = (inner if isinstance(inner, dict) else choice)["tools"]
    return any(map(_is_search, tools))


def _names_of(value: Any, read_tools: Sequence[tool_kinds.ReadTool], where: str) -> Iterator[str]:
    """Names of the tools that an object refers to; none for a hosted one."""
    if not isinstance(value, dict):
        raise errors.invalid_type(where, "an object")
    kind = value.get("type")
    if isinstance(kind, str) and tool_kinds.is_hosted(kind):
        return
    if kind not in (*tool_kinds.OWN, "namespace"):
        raise errors.unsupported_value(
            f"{where}.type", "A tool is chosen as function, custom or namespace."
        )
    name = _name_in(value)
    if not isinstance(name, str):
        raise errors.missing_required_parameter(f"{where}.name")
    if kind == "namespace":
        inside = [n for each in read_tools if each.namespace == name for n in each.names]
        if not inside:
            raise _unknown_tool(where, name)
        yield from inside
        return
    namespace = value.get("namespace")
    if namespace is not None and not isinstance(namespace, str):
        raise errors.invalid_type(f"{where}.namespace", "a string")
    flat = tool_kinds.flat_name(namespace, name)
    if not any(
        tool["type"] == kind and tool[kind]["name"] == flat
        for each in read_tools
        for tool in each.prompt
    ):
        raise _unknown_tool(where, flat)
    yield flat


def _name_in(value: dict[str, Any]) -> Any:
    inner = value.get(value["type"])
    return inner.get("name") if isinstance(inner, dict) else value.get("name")


def _unknown_tool(where: str, name: str) -> errors.ApiError:
    return errors.invalid_value(
        where, f"Tool choice '{name[:128]}' not found in 'tools' parameter."
    )


def _without_tools(read_tools: Sequence[tool_kinds.ReadTool], mode: str) -> errors.ApiError:
    if any(each.hosted is not None for each in read_tools):
        return errors.unsupported_value(
            "tool_choice", "This server does not run any of these tools."
        )
    return errors.invalid_value(
        "tool_choice", f"Tool choice '{mode}' must be specified with 'tools' parameter."
    )


def _not_run(where: str, value: dict[str, Any]) -> errors.ApiError:
    return errors.unsupported_value(where, f"This server does not run the tool '{value['type']}'.")
