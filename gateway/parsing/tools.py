"""Tools, and the choice among them, in both APIs (pure).

A tool is one of four:

    function, custom    shown to the model, called by the client; `Tools.prompt` has them as chat
                        templates take them, those of a namespace as `<namespace>__<name>`
    file_search         run by this server, where it has vector stores: not shown to the model, to
                        which the search is a part of its prompt
    hosted              run by the server that offers them, which this one does not: left out of
                        the prompt, shown in the Response object, named in a header

Functions are strict by default: a grammar enforces their arguments, so their schemas must pass
`schemas.check`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from gateway.parsing import file_search, formats, patterns, schemas, tool_choice, tool_kinds
from gateway.parsing.json_body import Body
from tailrace.protocol import errors, records

MAX_TOOLS_BYTES: Final = 262_144  # of all tools: a record has them twice
MAX_TOOLS_DEPTH: Final = schemas.MAX_SCHEMA_DEPTH + 4  # for the schema of a function in a namespace
MAX_CALLS: Final = 2**31 - 1

_SECRETS: Final = frozenset(
    {"authorization", "headers"}
)  # of `mcp`: credentials do not enter the log
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,128}\Z")
_NO_ARGUMENTS: Final[dict[str, Any]] = {"type": "object", "properties": {}}


ANY: Final = records.ToolChoice()


@dataclass(frozen=True, slots=True)
class Tools:
    """The tools of one request.

    Attributes:
        prompt: `{"type": "function", "function": {"name", "description", "parameters", "strict"}}`
            or `{"type": "custom", "custom": {"name", "description", "format"}}`.
        echo: all of them in the form of the Response object.
        hosted: types of those left out of the prompt, each once.
        search: the file search; None: no search.
        choice_echo: `tool_choice` in the form of the Response object.
        parallel: whether one answer may have several calls.
        max_calls: maximum number of calls; None: unlimited.
    """

    prompt: tuple[dict[str, Any], ...] = ()
    echo: tuple[dict[str, Any], ...] = ()
    hosted: tuple[str, ...] = ()
    search: file_search.FileSearch | None = None
    choice: records.ToolChoice = ANY
    choice_echo: str | dict[str, Any] = "auto"
    parallel: bool = True
    max_calls: int | None = None

    @property
    def characters(self) -> int:
        """Approximate length of their part of the prompt."""
        return sum(schemas.size(tool) for tool in self.prompt)


NO_TOOLS: Final = Tools()


def read(
    body: Body, *, parallel: bool | None, max_calls: int | None = None, searches: bool = False
) -> Tools:
    """The tools of a body, in the form of either API. `searches`: this server runs `file_search`.

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
    if len(value) > tool_kinds.MAX_TOOLS:
        raise _too_many()
    schemas.check_size(value, "tools", MAX_TOOLS_BYTES, MAX_TOOLS_DEPTH)
    budget = schemas.Budget()
    read_tools = [_tool(each, f"tools[{i}]", budget, searches) for i, each in enumerate(value)]
    prompt = tuple(tool for each in read_tools for tool in each.prompt)
    _distinct(read_tools)
    hosted = tuple(dict.fromkeys(each.hosted for each in read_tools if each.hosted is not None))
    record_choice, choice_echo = tool_choice.read(choice, read_tools)
    search = next((each.search for each in read_tools if each.search is not None), None)
    return Tools(
        prompt=prompt,
        echo=tuple(each.echo for each in read_tools),
        hosted=hosted,
        search=search if tool_choice.searches_files(choice) else None,
        choice=record_choice,
        choice_echo=choice_echo,
        parallel=True if parallel is None else parallel,
        max_calls=max_calls,
    )


def _too_many() -> errors.ApiError:
    return errors.invalid_value(
        "tools", f"Invalid 'tools': expected at most {tool_kinds.MAX_TOOLS} tools."
    )


def _tool(value: Any, where: str, budget: schemas.Budget, searches: bool) -> tool_kinds.ReadTool:
    if not isinstance(value, dict):
        raise errors.invalid_type(where, "an object")
    kind = value.get("type")
    if kind is None:
        raise errors.missing_required_parameter(f"{where}.type")
    if kind == "namespace":
        return _namespace(value, where, budget)
    if isinstance(kind, str) and kind in tool_kinds.OWN:
        return _own(value, kind, where, None, budget)
    if searches and kind == file_search.KIND:
        return tool_kinds.ReadTool(value, search=file_search.read(value, where))
    if isinstance(kind, str) and tool_kinds.is_hosted(kind):
        echo = {name: each for name, each in value.items() if name not in _SECRETS}
        return tool_kinds.ReadTool(echo, hosted=kind)
    raise errors.unsupported_value(
        f"{where}.type", "Supported tools are: function, custom, namespace."
    )


def _namespace(value: dict[str, Any], where: str, budget: schemas.Budget) -> tool_kinds.ReadTool:
    """A namespace, with its tools."""
    name = _name_of(value, where)
    _description(value, where)
    inner = value.get("tools")
    if inner is None:
        raise errors.missing_required_parameter(f"{where}.tools")
    if not isinstance(inner, list):
        raise errors.invalid_type(f"{where}.tools", "an array of tools")
    read_tools = []
    for i, each in enumerate(inner):
        path = f"{where}.tools[{i}]"
        if not isinstance(each, dict):
            raise errors.invalid_type(path, "an object")
        kind = each.get("type", "function")
        if kind not in tool_kinds.OWN:
            raise errors.unsupported_value(
                f"{path}.type", "Tools of a namespace are: function, custom."
            )
        read_tools.append(_own(each, kind, path, name, budget))
    return tool_kinds.ReadTool(
        # The Response object must have a description.
        {
            **value,
            "description": value.get("description") or "",
            "tools": [each.echo for each in read_tools],
        },
        tuple(tool for each in read_tools for tool in each.prompt),
        tuple(n for each in read_tools for n in each.names),
        tuple(path for each in read_tools for path in each.paths),
        namespace=name,
    )


def _own(
    value: dict[str, Any],
    kind: str,
    where: str,
    namespace: str | None,
    budget: schemas.Budget,
) -> tool_kinds.ReadTool:
    """A function or a custom tool. Chat Completions has its members one level deeper."""
    nested = isinstance(value.get(kind), dict)
    inner, path = (value[kind], f"{where}.{kind}") if nested else (value, where)
    if not nested and value.get(kind) is not None:
        raise errors.invalid_type(f"{where}.{kind}", "an object")
    name = _name_of(inner, path)
    description = _description(inner, path)
    flat = tool_kinds.flat_name(namespace, name)
    prompt_form: dict[str, Any] = {"name": flat}
    if description is not None:
        prompt_form["description"] = description
    if kind == "function":
        strict, parameters = _parameters(inner, path, budget)
        prompt_form |= {"parameters": parameters, "strict": strict}
        echo = {"parameters": inner.get("parameters"), "strict": strict}
    else:
        prompt_form["format"] = _input_format(inner.get("format"), f"{path}.format")
        echo = {"format": prompt_form["format"]}
    return tool_kinds.ReadTool(
        {
            **({} if nested else value),
            "type": kind,
            "name": name,
            "description": description,
            **echo,
        },
        ({"type": kind, kind: prompt_form},),
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
    """Whether a function is strict, and the schema of its arguments. By default it is strict if its
    schema can be enforced: many clients send schemas that they did not write."""
    strict = value.get("strict")
    if strict is not None and not isinstance(strict, bool):
        raise errors.invalid_type(f"{where}.strict", "a boolean")
    parameters = value.get("parameters")
    if parameters is None or parameters == {}:
        return strict is not False, _NO_ARGUMENTS
    path = f"{where}.parameters"
    if strict is not False:
        if isinstance(parameters, dict) and parameters.get("type", "object") != "object":
            raise errors.invalid_value(f"{path}.type", f"Invalid '{path}.type': expected 'object'.")
        try:
            schemas.check(parameters, path, budget)
            return True, parameters
        except errors.ApiError as error:
            if error.code != "unsupported_value" or error.param is None:
                raise
            if strict:
                raise errors.unsupported_value(
                    error.param,
                    f"{error.message} Leave it out, or send 'strict': false for this function.",
                ) from error
    schemas.check_bounds(parameters, path)
    return False, parameters


def _input_format(value: Any, where: str) -> dict[str, Any]:
    """The input format of a custom tool."""
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


def _distinct(read_tools: list[tool_kinds.ReadTool]) -> None:
    searching = [i for i, each in enumerate(read_tools) if each.search is not None]
    if len(searching) > 1:
        where = f"tools[{searching[1]}]"
        raise errors.invalid_value(
            where, f"Invalid '{where}': there is at most one tool '{file_search.KIND}'."
        )
    names: set[str] = set()
    for each in read_tools:
        for name, path in zip(each.names, each.paths, strict=True):
            if name in names:
                raise errors.invalid_value(
                    path, f"Invalid '{path}': two tools are called '{name}'."
                )
            names.add(name)
    if len(names) > tool_kinds.MAX_TOOLS:
        raise _too_many()
