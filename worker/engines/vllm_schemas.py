"""JSON schemas in a form of which xgrammar makes the right grammar (pure).

xgrammar 0.2.8 makes another grammar than the schema says of some formats, of patterns with
characters beyond ASCII, and of schemas that differ only in what it takes for annotations.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from typing import Any, Final

Schema = dict[str, Any]

_MONTH_AND_DAY: Final = (
    r"(0[13578]|1[02])-(0[1-9]|[12]\d|3[01])|(0[469]|11)-(0[1-9]|[12]\d|30)|02-(0[1-9]|1\d|2[0-8])"
)
_LEAP_YEAR: Final = r"(\d\d(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)"
_DATE: Final = rf"(\d{{4}}-({_MONTH_AND_DAY})|{_LEAP_YEAR}-02-29)"
_TIME: Final = r"([01]\d|2[0-3]):[0-5]\d:([0-5]\d|60)(\.\d+)?(Z|[+-]([01]\d|2[0-3]):[0-5]\d)"
_ATOM: Final = r"[\w!#$%&'*+/=?^`{|}~-]+"
_LABEL: Final = r"[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?"
_BYTE: Final = r"(25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_POINTER: Final = r"(/([^/~]|~[01])*)*"

# In xgrammar's own an email and a pointer have quotes, backslashes and control characters as they
# are, which is not valid in JSON; a date has 31 days in each month; a byte has leading zeros.
_PATTERNS: Final = {
    "date": f"^{_DATE}$",
    "date-time": f"^{_DATE}T{_TIME}$",
    "email": rf"^{_ATOM}(\.{_ATOM})*@{_LABEL}(\.{_LABEL})*$",
    "ipv4": rf"^({_BYTE}\.){{3}}{_BYTE}$",
    "json-pointer": f"^{_POINTER}$",
    "relative-json-pointer": f"^(0|[1-9]\\d*)(#|{_POINTER})$",
}

# xgrammar compares schemas without members of these names, also where they are names of properties
# or of a constant's members, and gives the grammar of the first to all that are then equal.
_UNSEEN: Final = frozenset(
    {
        *("title", "default", "description", "examples", "deprecated"),
        *("readOnly", "writeOnly", "$comment", "$schema"),
    }
)
_PLACE: Final = "x-place"  # no keyword; its value differs between two schemas

_ONE_SCHEMA: Final = (
    *("items", "additionalProperties", "propertyNames"),
    *("unevaluatedProperties", "unevaluatedItems"),
)
_LISTS: Final = ("prefixItems", "anyOf", "oneOf", "allOf")
_BY_NAME: Final = ("properties", "patternProperties", "$defs", "definitions")
_UNPRINTABLE: Final = re.compile(r"[^\x20-\x7e]")


def restate(root: Schema) -> Schema:
    """A copy with the same meaning for xgrammar as `root` has in JSON Schema."""
    root = copy.deepcopy(root)
    todo: list[Any] = [root]
    visited: set[int] = set()
    while todo:
        schema = todo.pop()
        if isinstance(schema, dict) and id(schema) not in visited:
            visited.add(id(schema))
            if _has_unseen(schema):
                schema[_PLACE] = len(visited)
            _restate_texts(schema)
            if isinstance(names := schema.get("propertyNames"), dict):
                names.setdefault("type", "string")  # of names without keywords it makes any JSON
            todo += _inner(schema, root)
    return root


def _restate_texts(schema: Schema) -> None:
    form = schema.get("format")
    if isinstance(form, str) and form in _PATTERNS and "pattern" not in schema:
        schema["pattern"] = _PATTERNS[schema.pop("format")]
    if isinstance(schema.get("pattern"), str):
        schema["pattern"] = _in_ascii(schema["pattern"])
    if isinstance(names := schema.get("patternProperties"), dict):
        schema["patternProperties"] = {_in_ascii(name): each for name, each in names.items()}


def _in_ascii(pattern: str) -> str:
    """The same pattern. Of one with characters other than printable ASCII xgrammar makes a
    grammar whose classes include quotes and control characters."""
    return _UNPRINTABLE.sub(lambda char: f"\\u{{{ord(char[0]):x}}}", pattern)


def _has_unseen(schema: Schema) -> bool:
    """Whether xgrammar could mistake another schema for this one."""
    for keyword in ("properties", "patternProperties"):
        members = schema.get(keyword)
        if isinstance(members, dict) and not _UNSEEN.isdisjoint(members):
            return True
    todo = [schema.get("const"), schema.get("enum")]
    while todo:
        value = todo.pop()
        if isinstance(value, dict):
            if not _UNSEEN.isdisjoint(value):
                return True
            todo += value.values()
        elif isinstance(value, list):
            todo += value
    return False


def _inner(schema: Schema, root: Schema) -> Iterator[Any]:
    """The schemas in a schema, and the one that it refers to."""
    for keyword in _ONE_SCHEMA:
        yield schema.get(keyword)
    for keyword in _LISTS:
        if isinstance(members := schema.get(keyword), list):
            yield from members
    for keyword in _BY_NAME:
        if isinstance(named := schema.get(keyword), dict):
            yield from named.values()
    if isinstance(ref := schema.get("$ref"), str):
        target: Any = root
        for name in ref.split("/")[1:]:
            target = target.get(name) if isinstance(target, dict) else None
        yield target
