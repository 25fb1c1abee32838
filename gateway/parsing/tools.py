"""Tools, and which of them the model may or must call, in both APIs (pure).

A tool is one of four:

    function, custom    shown to the model, called by the client; `Tools.prompt` has them as chat
                        templates take them, those of a namespace as `<namespace>__<name>`
    file_search         run by this server, where it has vector stores: not shown to the model, to
                        which the search is a part of its prompt
    hosted              run by the server that offers them, which this one does not: left out of
                        the prompt, shown in the Response object, named in a header

Functions are strict unless they say otherwise: their arguments are enforced by a grammar, so their
schemas pass `schemas.check`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

from gateway.parsing import file_search, formats, patterns, schemas
from gateway.parsing.json_body import Body
from tailrace.protocol import errors, records

MAX_TOOLS: Final = 128  # functions and custom tools, those of namespaces counted one by one
MAX_TOOLS_BYTES: Final = 262_144  # of all tools: a record has them twice
MAX_TOOLS_DEPTH: Final = schemas.MAX_SCHEMA_DEPTH + 4  # a namespace's function's schema
MAX_CHOICE_BYTES: Final = 65_536
MAX_CHOICE_DEPTH: Final = 8
MAX_CALLS: Final = 2**31 - 1

# Known to OpenAI's API and run there.
HOSTED: Final = frozenset(
    {
        "apply_patch",
        "code_interpreter",
        "computer",
        "computer_use",
        "computer_use_preview",
        "file_search",
        "image_generation",
        "local_shell",
        "mcp",
        "programmatic_tool_calling",
        "shell",
        "tool_search",
        "web_search",
        "web_search_preview",
    }
)
_DATED: Final = re.compile(r"(web_search|web_search_preview)_\d{4}_\d{2}_\d{2}\Z")
_SECRETS: Final = frozenset({"authorization", "headers"})  # of `mcp`: no credential in the log
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,128}\Z")
_OWN: Final = ("function", "custom")
_NO_ARGUMENTS: Final[dict[str, Any]] = {"type": "object", "properties": {}}


ANY: Final = records.ToolChoice()


@dataclass(frozen=True, slots=True)
class Tools:
    """The tools of one request.

    Attributes:
        prompt: `{"type": "function", "function": {"name", "description", "parameters", "strict"}}`
            or `{"type": "custom", "custom": {"name", "description", "format"}}`.
        shown: all of them as the Response object shows them.
        hosted: types of those that were left out, each once.
        search: what is to be searched for in files; None: nothing.
        choice_shown: `tool_choice` as the Response object shows it.
        parallel: several calls in one answer are allowed.
        max_calls: how many calls there may be; None: any number.
    """

    prompt: tuple[dict[str, Any], ...] = ()
    shown: tuple[dict[str, Any], ...] = ()
    hosted: tuple[str, ...] = ()
    search: file_search.FileSearch | None = None
    choice: records.ToolChoice = ANY
    choice_shown: str | dict[str, Any] = "auto"
    parallel: bool = True
    max_calls: int | None = None

    @property
    def characters(self) -> int:
        """Length of what the prompt has of them, about."""
        return sum(schemas.size(tool) for tool in self.prompt)


NO_TOOLS: Final = Tools()


def flat_name(namespace: str | None, name: str) -> str:
    """The name under which the model sees a tool."""
    return f"{namespace}__{name}" if namespace else name


def read(
    body: Body, *, parallel: bool | None, max_calls: int | None = None, searches: bool = False
) -> Tools:
    """The tools of a body, in the form of either API. `searches`: this server searches in files.

    Raises:
        errors.ApiError: 400 naming the tool and what is wrong in it.
    """
    if max_calls is not None and not 1 <= max_calls <= MAX_CALLS:
        raise errors.out_of_range("max_tool_calls", 1, MAX_CALLS)
    value = body.get("tools")
    value = [] if value is None else value
    choice = body.get("tool_choice")
    if value == [] and choice in (None, "auto") and parallel is not False and max_calls is None:
        return NO_TOOLS
    if not isinstance(value, list):
        raise errors.invalid_type("tools", "an array of tools")
    if len(value) > MAX_TOOLS:
        raise _too_many()
    schemas.bounded(value, "tools", MAX_TOOLS_BYTES, MAX_TOOLS_DEPTH)
    budget = schemas.Budget()
    found = [_tool(each, f"tools[{i}]", budget, searches) for i, each in enumerate(value)]
    prompt = tuple(tool for each in found for tool in each.prompt)
    _distinct(found)
    hosted = tuple(dict.fromkeys(each.hosted for each in found if each.hosted is not None))
    chosen, shown = _choice(choice, found)
    search = next((each.search for each in found if each.search is not None), None)
    return Tools(
        prompt=prompt,
        shown=tuple(each.shown for each in found),
        hosted=hosted,
        search=search if _searched(choice) else None,
        choice=chosen,
        choice_shown=shown,
        parallel=True if parallel is None else parallel,
        max_calls=max_calls,
    )


def _too_many() -> errors.ApiError:
    return errors.invalid_value("tools", f"Invalid 'tools': expected at most {MAX_TOOLS} tools.")


@dataclass(frozen=True, slots=True)
class _Read:
    """One member of `tools`. `names`: those of `prompt`; `paths`: where each stands."""

    shown: dict[str, Any]
    prompt: tuple[dict[str, Any], ...] = ()
    names: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    hosted: str | None = None
    namespace: str | None = None
    search: file_search.FileSearch | None = None


def _tool(value: Any, where: str, budget: schemas.Budget, searches: bool) -> _Read:
    if not isinstance(value, dict):
        raise errors.invalid_type(where, "an object")
    kind = value.get("type")
    if kind is None:
        raise errors.missing_required_parameter(f"{where}.type")
    if kind == "namespace":
        return _namespace(value, where, budget)
    if isinstance(kind, str) and kind in _OWN:
        return _own(value, kind, where, None, budget)
    if searches and kind == file_search.KIND:
        return _Read(value, search=file_search.read(value, where))
    if isinstance(kind, str) and _is_hosted(kind):
        shown = {name: each for name, each in value.items() if name not in _SECRETS}
        return _Read(shown, hosted=kind)
    raise errors.unsupported_value(
        f"{where}.type", "Supported tools are: function, custom, namespace."
    )


def _is_hosted(kind: str) -> bool:
    return kind in HOSTED or _DATED.match(kind) is not None


def _namespace(value: dict[str, Any], where: str, budget: schemas.Budget) -> _Read:
    """Its tools one by one."""
    name = _name_of(value, where)
    _description(value, where)
    inner = value.get("tools")
    if inner is None:
        raise errors.missing_required_parameter(f"{where}.tools")
    if not isinstance(inner, list):
        raise errors.invalid_type(f"{where}.tools", "an array of tools")
    found = []
    for i, each in enumerate(inner):
        path = f"{where}.tools[{i}]"
        if not isinstance(each, dict):
            raise errors.invalid_type(path, "an object")
        kind = each.get("type", "function")
        if kind not in _OWN:
            raise errors.unsupported_value(
                f"{path}.type", "Tools of a namespace are: function, custom."
            )
        found.append(_own(each, kind, path, name, budget))
    return _Read(
        # The Response object must have a description.
        {
            **value,
            "description": value.get("description") or "",
            "tools": [each.shown for each in found],
        },
        tuple(tool for each in found for tool in each.prompt),
        tuple(n for each in found for n in each.names),
        tuple(path for each in found for path in each.paths),
        namespace=name,
    )


def _own(
    value: dict[str, Any],
    kind: str,
    where: str,
    namespace: str | None,
    budget: schemas.Budget,
) -> _Read:
    """A function or a custom tool. Chat Completions has its members one level deeper."""
    nested = isinstance(value.get(kind), dict)
    inner, path = (value[kind], f"{where}.{kind}") if nested else (value, where)
    if not nested and value.get(kind) is not None:
        raise errors.invalid_type(f"{where}.{kind}", "an object")
    name = _name_of(inner, path)
    description = _description(inner, path)
    flat = flat_name(namespace, name)
    seen: dict[str, Any] = {"name": flat}
    if description is not None:
        seen["description"] = description
    if kind == "function":
        strict, parameters = _parameters(inner, path, budget)
        seen |= {"parameters": parameters, "strict": strict}
        shown = {"parameters": inner.get("parameters"), "strict": strict}
    else:
        seen["format"] = _input_format(inner.get("format"), f"{path}.format")
        shown = {"format": seen["format"]}
    return _Read(
        {
            **({} if nested else value),
            "type": kind,
            "name": name,
            "description": description,
            **shown,
        },
        ({"type": kind, kind: seen},),
        (flat,),
        (f"{path}.name",),
    )


def _name_of(value: dict[str, Any], where: str) -> str:
    name = value.get("name")
    if name is None:
        raise errors.missing_required_parameter(f"{where}.name")
    if not isinstance(name, str):
        raise errors.invalid_type(f"{where}.name", "a string")
    if not _NAME.match(name):
        raise errors.invalid_value(
            f"{where}.name",
            f"Invalid '{where}.name': expected 1 to 128 letters, digits, underscores and dashes.",
        )
    return name


def _description(value: dict[str, Any], where: str) -> str | None:
    description = value.get("description")
    if description is not None and not isinstance(description, str):
        raise errors.invalid_type(f"{where}.description", "a string")
    return description


def _parameters(
    value: dict[str, Any], where: str, budget: schemas.Budget
) -> tuple[bool, dict[str, Any]]:
    """Whether a function is strict, and the schema of its arguments. Where the client does not say,
    it is strict if its schema can be enforced: many clients send schemas that they did not write.
    """
    asked = value.get("strict")
    if asked is not None and not isinstance(asked, bool):
        raise errors.invalid_type(f"{where}.strict", "a boolean")
    parameters = value.get("parameters")
    if parameters is None or parameters == {}:
        return asked is not False, _NO_ARGUMENTS
    path = f"{where}.parameters"
    if asked is not False:
        if isinstance(parameters, dict) and parameters.get("type", "object") != "object":
            raise errors.invalid_value(f"{path}.type", f"Invalid '{path}.type': expected 'object'.")
        try:
            schemas.check(parameters, path, budget)
            return True, parameters
        except errors.ApiError as error:
            if error.code != "unsupported_value" or error.param is None:
                raise
            if asked:
                raise errors.unsupported_value(
                    error.param,
                    f"{error.message} Leave it out, or send 'strict': false for this function.",
                ) from error
    schemas.check_bounds(parameters, path)
    return False, parameters


def _input_format(value: Any, where: str) -> dict[str, Any]:
    """What the input of a custom tool must look like."""
    if value is None:
        return {"type": "text"}
    if not isinstance(value, dict):
        raise errors.invalid_type(where, "an object")
    if value.get("type") == "text":
        return {"type": "text"}
    if value.get("type") != "grammar":
        raise errors.unsupported_value(f"{where}.type", "Supported formats are: text, grammar.")
    nested = isinstance(value.get("grammar"), dict)
    inner, path = (value["grammar"], f"{where}.grammar") if nested else (value, where)
    syntax = inner.get("syntax")
    if syntax not in ("lark", "regex"):
        raise errors.unsupported_value(f"{path}.syntax", "Supported syntaxes are: lark, regex.")
    definition = formats.grammar(inner.get("definition"), f"{path}.definition")
    if syntax == "regex" and (why := patterns.problem(definition, in_json=False)) is not None:
        raise errors.unsupported_value(
            f"{path}.definition", f"The pattern cannot be enforced: {why}."
        )
    return {"type": "grammar", "syntax": syntax, "definition": definition}


def _distinct(found: list[_Read]) -> None:
    searching = [i for i, each in enumerate(found) if each.search is not None]
    if len(searching) > 1:
        where = f"tools[{searching[1]}]"
        raise errors.invalid_value(
            where, f"Invalid '{where}': there is at most one tool '{file_search.KIND}'."
        )
    taken: set[str] = set()
    for each in found:
        for name, path in zip(each.names, each.paths, strict=True):
            if name in taken:
                raise errors.invalid_value(
                    path, f"Invalid '{path}': two tools are called '{name}'."
                )
            taken.add(name)
    if len(taken) > MAX_TOOLS:
        raise _too_many()


# ---- tool_choice


def _choice(value: Any, found: list[_Read]) -> tuple[records.ToolChoice, str | dict[str, Any]]:
    """The choice, and as it is shown."""
    where = "tool_choice"
    schemas.bounded(value, where, MAX_CHOICE_BYTES, MAX_CHOICE_DEPTH)
    names = [name for each in found for name in each.names]
    searches = any(each.search is not None for each in found)
    if value is None or value == "auto":
        return records.ToolChoice("auto"), "auto"
    if value == "none":
        return records.ToolChoice("none"), "none"
    if value == "required":
        if searches:  # that is a call
            return records.ToolChoice("auto"), "required"
        if not names:
            raise _without_tools(found, "required")
        return records.ToolChoice("required"), "required"
    if isinstance(value, str):
        raise errors.invalid_value(
            where, "Invalid 'tool_choice': expected auto, none, required or an object."
        )
    if not isinstance(value, dict):
        raise errors.invalid_type(where, "a string or an object")
    if value.get("type") == "allowed_tools":
        return _allowed(value, found)
    chosen = tuple(_referred(value, found, where))
    if not chosen and searches and _is_search(value):
        return records.ToolChoice("auto"), {"type": file_search.KIND}
    if not chosen:
        raise _not_run(where, value)
    shown = {"type": value["type"], "name": _name_in(value)}
    if value.get("namespace") is not None:
        shown["namespace"] = value["namespace"]
    return records.ToolChoice("required", chosen), shown


def _allowed(
    value: dict[str, Any], found: list[_Read]
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
    if not isinstance(tools, list) or not 0 < len(tools) <= MAX_TOOLS:
        raise errors.invalid_type(f"{where}.tools", f"an array of 1 to {MAX_TOOLS} tools")
    names = [
        name
        for i, each in enumerate(tools)
        for name in _referred(each, found, f"{where}.tools[{i}]")
    ]
    shown = {"type": "allowed_tools", "mode": mode, "tools": tools}
    searches = any(map(_is_search, tools)) and any(each.search is not None for each in found)
    if names:
        left: Literal["auto", "required"] = "auto" if searches or mode == "auto" else "required"
        return records.ToolChoice(left, tuple(dict.fromkeys(names))), shown
    if mode == "required" and not searches:
        raise _not_run(f"{where}.tools", tools[0])
    return records.ToolChoice("none"), shown  # no other one that is allowed runs


def _is_search(value: Any) -> bool:
    return isinstance(value, dict) and bool(value.get("type") == file_search.KIND)


def _searched(choice: Any) -> bool:
    """Whether a choice, which was checked, lets files be searched."""
    if not isinstance(choice, dict):
        return bool(choice != "none")
    if choice.get("type") != "allowed_tools":
        return _is_search(choice)
    inner = choice.get("allowed_tools")
    tools: list[Any] = (inner if isinstance(inner, dict) else choice)["tools"]
    return any(map(_is_search, tools))


def _referred(value: Any, found: list[_Read], where: str) -> Iterator[str]:
    """Names of the tools that an object refers to; none for a hosted one."""
    if not isinstance(value, dict):
        raise errors.invalid_type(where, "an object")
    kind = value.get("type")
    if isinstance(kind, str) and _is_hosted(kind):
        return
    if kind not in (*_OWN, "namespace"):
        raise errors.unsupported_value(
            f"{where}.type", "A tool is chosen as function, custom or namespace."
        )
    name = _name_in(value)
    if not isinstance(name, str):
        raise errors.missing_required_parameter(f"{where}.name")
    if kind == "namespace":
        inside = [n for each in found if each.namespace == name for n in each.names]
        if not inside:
            raise _not_found(where, name)
        yield from inside
        return
    namespace = value.get("namespace")
    if namespace is not None and not isinstance(namespace, str):
        raise errors.invalid_type(f"{where}.namespace", "a string")
    flat = flat_name(namespace, name)
    if not any(
        tool["type"] == kind and tool[kind]["name"] == flat
        for each in found
        for tool in each.prompt
    ):
        raise _not_found(where, flat)
    yield flat


def _name_in(value: dict[str, Any]) -> Any:
    inner = value.get(value["type"])
    return inner.get("name") if isinstance(inner, dict) else value.get("name")


def _not_found(where: str, name: str) -> errors.ApiError:
    return errors.invalid_value(
        where, f"Tool choice '{name[:128]}' not found in 'tools' parameter."
    )


def _without_tools(found: list[_Read], mode: str) -> errors.ApiError:
    if any(each.hosted is not None for each in found):
        return errors.unsupported_value(
            "tool_choice", "This server runs none of the tools that are offered."
        )
    return errors.invalid_value(
        "tool_choice", f"Tool choice '{mode}' must be specified with 'tools' parameter."
    )


def _not_run(where: str, value: dict[str, Any]) -> errors.ApiError:
    return errors.unsupported_value(where, f"This server does not run the tool '{value['type']}'.")
