"""Checks that the engine's grammar enforces a JSON schema of a tool or format (pure).

The engine turns a schema into a grammar (xgrammar 0.2.8, strict: objects have no properties but the
declared ones unless `additionalProperties` says so). Keywords that it refuses, ignores or
interprets differently are refused here, before the append, by their path in the request. So every
schema that passes is enforced as a whole. docs/protocol.md lists the keywords for clients;
`tests/unit/gateway/parsing/test_schemas.py` shows the engine's behaviour for each.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec

from gateway.parsing import patterns, schema_ends, schema_numbers
from gateway.parsing.schema_errors import (
    Schema,
    check_order,
    count,
    invalid,
    member,
    unsupported,
)
from tailrace.protocol import errors

MAX_SCHEMA_BYTES: Final = 65_536  # 30 kB take the engine a third of a second
MAX_SCHEMA_DEPTH: Final = 32  # of arrays and objects; a record has at most 64
# Of all texts of bounded length in a request. Compiling the grammar takes 10 ms of CPU for each
# character of a bound, up to a length from which the engine repeats instead.
MAX_BOUNDED_CHARS: Final = 1024
_REPEATED_CHARS: Final = 256

Place = tuple[Any, str]  # a schema and its path in the request

_TYPES: Final = ("string", "number", "integer", "boolean", "null", "object", "array")
_FORMATS: Final = frozenset(
    {
        "email",
        "date",
        "time",
        "date-time",
        "duration",
        "ipv4",
        "ipv6",
        "hostname",
        "uuid",
        "uri",
        "uri-reference",
        "uri-template",
        "json-pointer",
        "relative-json-pointer",
    }
)
_NEVER: Final = frozenset(
    {
        "multipleOf",
        "uniqueItems",
        "contains",
        "minContains",
        "maxContains",
        "additionalItems",
        "not",
        "if",
        "then",
        "else",
        "dependentRequired",
        "dependentSchemas",
        "dependencies",
        "$dynamicRef",
        "$recursiveRef",
    }
)
_STRING: Final = ("minLength", "maxLength", "pattern", "format")
_OBJECT: Final = (
    "properties",
    "required",
    "additionalProperties",
    "patternProperties",
    "propertyNames",
    "minProperties",
    "maxProperties",
    "unevaluatedProperties",
)
_ARRAY: Final = ("items", "prefixItems", "minItems", "maxItems", "unevaluatedItems")
_ASSERTIONS: Final = ("type", *_STRING, *schema_numbers.KEYWORDS, *_OBJECT, *_ARRAY)
# The engine's own check reads these for every type.
_HOLDING_SCHEMAS: Final = {
    "object": (
        "properties",
        "additionalProperties",
        "patternProperties",
        "propertyNames",
        "unevaluatedProperties",
    ),
    "array": ("items", "prefixItems", "unevaluatedItems"),
}
# The engine reads one of these and ignores other keywords next to it.
_WHOLE: Final = ("$ref", "const", "enum", "allOf", "anyOf", "oneOf")
_DEFINITIONS: Final = ("$defs", "definitions")
_TRACEABLE_NAME: Final = re.compile(r"[ !#-\[\]-~]*\Z")
# In data next to a type the engine mistakes these for keywords of a schema.
_KEYWORD_LOOKALIKES: Final = (_NEVER - {"not", "if", "then", "else"}) | {
    "pattern",
    "format",
    "propertyNames",
    "patternProperties",
}


def check_bounds(schema: Any, where: str) -> None:
    """Check the size of a schema, also of one that is not enforced.

    Args:
        where: its path in the request, for errors.

    Raises:
        errors.ApiError: not an object, too large or too deep.
    """
    if not isinstance(schema, dict):
        raise errors.invalid_type(where, "a JSON schema")
    check_size(schema, where, MAX_SCHEMA_BYTES, MAX_SCHEMA_DEPTH)


def check_size(value: Any, where: str, most_bytes: int, most_levels: int) -> None:
    """Check the size of a JSON value and the nesting of its arrays and objects.

    Raises:
        errors.ApiError: too large or too deep.
    """
    if _depth(value) > most_levels:
        raise errors.invalid_value(
            where, f"Invalid '{where}': nested deeper than {most_levels} levels."
        )
    if size(value) > most_bytes:
        raise errors.invalid_value(where, f"Invalid '{where}': larger than {most_bytes} bytes.")


class Budget:
    """The cost limit of all schemas of one request. `remaining`: characters of bounded texts."""

    def __init__(self) -> None:
        self.remaining = MAX_BOUNDED_CHARS


def check(schema: Any, where: str, budget: Budget | None = None) -> None:
    """Check a schema that will be enforced. Arguments and errors like `check_bounds`.

    Args:
        budget: of the request; None if it has one schema. The cost is subtracted from it.

    Raises:
        errors.ApiError: `unsupported_value` naming the keyword that cannot be enforced;
            `invalid_value`, `invalid_type` naming the invalid one.
    """
    check_bounds(schema, where)
    budget = budget or Budget()
    budget.remaining = _Walk(schema, where, budget.remaining).run()


def size(value: Any) -> int:
    """Bytes of a JSON value.

    Raises:
        errors.ApiError: it is not Unicode text.
    """
    try:
        return len(msgspec.json.encode(value))
    except UnicodeError as error:
        raise errors.invalid_json() from error


def _depth(value: Any) -> int:
    """Nesting of arrays and objects. It does not recurse, because a body may be nested up to the
    decoder's limit."""
    depth, level = 0, [value]
    while level := [v for v in level if isinstance(v, (dict, list))]:
        depth += 1
        level = [m for v in level for m in (v.values() if isinstance(v, dict) else v)]
    return depth


class _Walk:
    """One pass over every schema in a schema.

    Attributes:
        _todo: schemas to visit.
        _visited: identity → path of visited schemas. `_root` keeps them alive.
        _same: schema → the schemas that its value must also match, at the same level.
        _needs: schema → which others must end so that its texts end. Negative: one of its types.
        _either: the `oneOf` lists, checked once all references are known to end.
        _ends: targets of references, by the identity of the referring schema.
        _owned_schemas: schemas created here, which `_root` does not keep alive.
        _remaining: characters that texts of bounded length may still have.
    """

    def __init__(self, root: Schema, where: str, remaining: int) -> None:
        self._remaining = remaining
        self._root = root
        self._where = where
        self._todo: list[Place] = [(root, where)]
        self._visited: dict[int, str] = {}
        self._same: dict[int, tuple[int, ...]] = {}
        self._needs: dict[int, list[schema_ends.Need]] = {}
        self._either: list[tuple[list[Any], str]] = []
        self._ends: dict[int, Any] = {}
        self._owned_schemas: list[Schema] = []

    def run(self) -> int:
        """Visit all schemas. Returns the remaining characters of bounded texts."""
        while self._todo:
            schema, where = self._todo.pop()
            if id(schema) not in self._visited:
                if isinstance(schema, dict):
                    self._visited[id(schema)] = where
                    self._needs[id(schema)] = []
                self._schema(schema, where)
        self._refuse_endless()
        for branches, where in self._either:
            self._one_of(branches, where)
        return self._remaining

    def _schema(self, schema: Any, where: str) -> None:
        if schema is True:
            return
        if schema is False:
            raise errors.unsupported_value(
                where, "A schema that allows nothing cannot be enforced."
            )
        if not isinstance(schema, dict):
            raise errors.invalid_type(where, "a JSON schema")
        self._refuse_never(schema, where)
        whole = [keyword for keyword in _WHOLE if keyword in schema]
        if whole:
            self._alone(schema, where, whole)
            _WHOLE_KEYWORDS[whole[0]](self, schema, where)
        else:
            self._by_type(schema, where)
        for keyword in _DEFINITIONS:
            self._todo += (
                place
                for place in self._members(schema, where, keyword)
                if not isinstance(place[0], bool)
            )
        self._refuse_lookalikes(schema, where)

    def _refuse_never(self, schema: Schema, where: str) -> None:
        for keyword in schema:
            if keyword in _NEVER:
                raise unsupported(where, keyword, "the engine does not know it")
        if schema.get("nullable") is True:
            raise unsupported(where, "nullable", "write null into 'type'")
        if "$id" in schema and schema is not self._root:
            raise unsupported(where, "$id", "references start at the whole schema")

    def _alone(self, schema: Schema, where: str, whole: list[str]) -> None:
        """Refuse keywords that the engine ignores next to another one."""
        typed = whole[0] in ("const", "enum")
        beside = [
            *whole[1:],
            *(k for k in _ASSERTIONS if k in schema and not (typed and k == "type")),
        ]
        if beside:
            raise unsupported(where, beside[0], f"it cannot be combined with '{whole[0]}'")

    def _refuse_lookalikes(self, schema: Schema, where: str) -> None:
        for keyword, value in schema.items():
            if keyword in _ASSERTIONS or keyword in _DEFINITIONS or keyword in _WHOLE[3:]:
                continue
            for each in _objects(value):
                if "allOf" in each or ("type" in each and _KEYWORD_LOOKALIKES & each.keys()):
                    raise unsupported(where, keyword, "the engine takes its value for a schema")

    # ---- keywords that exclude others

    def _ref(self, schema: Schema, where: str) -> None:
        target, path = self._target(schema["$ref"], where)
        self._same[id(schema)] = (id(target),)
        self._needs[id(schema)] = _need(1, [target])
        self._todo.append((target, path))

    def _target(self, ref: Any, where: str) -> Place:
        if not isinstance(ref, str):
            raise errors.invalid_type(member(where, "$ref"), "a string")
        if ref != "#" and not ref.startswith("#/"):
            raise unsupported(where, "$ref", "it refers to another document")
        if "~" in ref or "%" in ref:
            raise unsupported(where, "$ref", "the engine does not know escapes in it")
        target: Any = self._root
        path = self._where
        for name in ref.split("/")[1:]:
            if not name:
                raise unsupported(where, "$ref", "the engine skips empty names in it")
            if not isinstance(target, dict) or name not in target:
                raise invalid(where, "$ref", "its target does not exist")
            target, path = target[name], member(path, name)
        return target, path

    def _const(self, schema: Schema, where: str) -> None:
        self._values(schema, where, "const", [schema["const"]])

    def _enum(self, schema: Schema, where: str) -> None:
        values = schema["enum"]
        if not isinstance(values, list) or not values:
            raise errors.invalid_type(member(where, "enum"), "an array of values")
        self._values(schema, where, "enum", values)

    def _values(self, schema: Schema, where: str, keyword: str, values: list[Any]) -> None:
        """Check the numbers in the values, and the values against `type`: the engine does not."""
        if not schema_numbers.is_exact(values):
            raise unsupported(where, keyword, "it has an integer beyond 64 bits")
        if "type" in schema:
            types = self._types(schema, where)
            for value in values:
                if not any(_is_of(value, type_) for type_ in types):
                    raise invalid(where, keyword, "a value does not match 'type'")

    def _all_of(self, schema: Schema, where: str) -> None:
        if len(self._branches(schema, where, "allOf")) > 1:
            raise unsupported(where, "allOf", "it has several branches")

    def _any_of(self, schema: Schema, where: str) -> None:
        self._branches(schema, where, "anyOf")

    def _one_of_branches(self, schema: Schema, where: str) -> None:
        self._either.append((self._branches(schema, where, "oneOf"), where))

    def _branches(self, schema: Schema, where: str, keyword: str) -> list[Any]:
        branches = schema[keyword]
        path = member(where, keyword)
        if not isinstance(branches, list) or not branches:
            raise errors.invalid_type(path, "an array of JSON schemas")
        self._same[id(schema)] = tuple(map(id, branches))
        self._needs[id(schema)] = _need(1, branches)
        self._todo += ((each, f"{path}[{i}]") for i, each in enumerate(branches))
        return branches

    # ---- keywords of types

    def _by_type(self, schema: Schema, where: str) -> None:
        if "type" in schema:
            types = self._types(schema, where)
        elif "properties" in schema:
            types = ["object"]
        elif "items" in schema:
            types = ["array"]
        else:
            for keyword in _ASSERTIONS:
                if keyword in schema:
                    raise unsupported(where, keyword, "it needs a 'type'")
            return
        for type_, keywords in _HOLDING_SCHEMAS.items():
            for keyword in keywords:
                if keyword in schema and type_ not in types:
                    raise unsupported(where, keyword, f"it goes with the type '{type_}'")
        if "string" in types:
            self._string(schema, where)
        if "number" in types or "integer" in types:
            schema_numbers.check_range(schema, where, types)
        needs = []
        if "object" in types:
            needs.append(self._object(schema, where))
        if "array" in types:
            needs.append(self._array(schema, where))
        if {*types} == {"object", "array"}:
            ids = [-len(self._needs), -len(self._needs) - 1]
            self._needs |= zip(ids, needs, strict=True)
            self._needs[id(schema)] = [(1, tuple(ids))]
        elif {*types} in ({"object"}, {"array"}):
            self._needs[id(schema)] = needs[0]

    def _types(self, schema: Schema, where: str) -> list[str]:
        value = schema["type"]
        types = [value] if isinstance(value, str) else value
        if not isinstance(types, list) or not types:
            raise errors.invalid_type(member(where, "type"), "the name of a type or several")
        for each in types:
            if not isinstance(each, str) or each not in _TYPES:
                raise invalid(where, "type", f"types are {', '.join(_TYPES)}")
        return types

    def _string(self, schema: Schema, where: str) -> None:
        least, most = count(schema, where, "minLength"), count(schema, where, "maxLength")
        check_order(least, most, where, "maxLength")
        form, pattern = schema.get("format"), schema.get("pattern")
        if "format" in schema:
            if not isinstance(form, str):
                raise errors.invalid_type(member(where, "format"), "a string")
            if form not in _FORMATS:
                raise unsupported(where, "format", "supported are " + ", ".join(sorted(_FORMATS)))
        if "pattern" in schema:
            _pattern(pattern, member(where, "pattern"))
        if "format" in schema and "pattern" in schema:
            raise unsupported(where, "format", "it cannot be combined with 'pattern'")
        if "format" in schema or "pattern" in schema:
            for keyword in ("minLength", "maxLength"):
                if keyword in schema:
                    other = "pattern" if "pattern" in schema else "format"
                    raise unsupported(where, keyword, f"it cannot be combined with '{other}'")
        self._remaining -= min(max(least or 0, most or 0), _REPEATED_CHARS)
        if self._remaining < 0:
            keyword = "minLength" if most is None else "maxLength"
            raise unsupported(
                where,
                keyword,
                f"texts of bounded length have more than {MAX_BOUNDED_CHARS} characters together, "
                f"counting {_REPEATED_CHARS} of a longer one",
            )

    def _object(self, schema: Schema, where: str) -> list[schema_ends.Need]:
        names = dict(self._schemas_in(schema, where, "properties"))
        self._todo += self._members(schema, where, "properties")
        self._pattern_properties(schema, where)
        others = self._others(schema, where)
        required = schema.get("required", [])
        if not isinstance(required, list) or not all(isinstance(each, str) for each in required):
            raise errors.invalid_type(member(where, "required"), "an array of names")
        for name in required:
            if name not in names:
                raise unsupported(where, "required", "it names what is not in 'properties'")
        needed = {*required}
        least, most = count(schema, where, "minProperties"), count(schema, where, "maxProperties")
        check_order(least, most, where, "maxProperties")
        if not (names or others):
            for keyword in ("minProperties", "maxProperties"):
                if keyword in schema:
                    raise unsupported(where, keyword, "it needs 'properties'")
        if not others and (least or 0) > len(names):
            raise invalid(where, "minProperties", "there are fewer properties")
        more = (least or 0) - len(needed)
        if others and more > 1:
            raise unsupported(
                where,
                "minProperties",
                "beyond the required properties and one other, a name may come twice",
            )
        if most is not None and most < len(needed):
            raise invalid(where, "maxProperties", "more properties are required")
        optional = [each for name, each in names.items() if name not in needed]
        return [
            *_need(len(needed), [names[name] for name in needed]),
            *_need(more, optional + others),
        ]

    def _others(self, schema: Schema, where: str) -> list[Any]:
        """The schemas of properties that are not declared; none if there are no such properties."""
        others: dict[str, Any] = {}
        for keyword in ("additionalProperties", "unevaluatedProperties"):
            if keyword in schema and schema[keyword] is not False:
                others[keyword] = schema[keyword]
                self._todo.append((schema[keyword], member(where, keyword)))
        if schema.get("additionalProperties") is False:
            others = {}
        for name in schema.get("properties", ()):
            if others and not _TRACEABLE_NAME.match(name):
                raise unsupported(
                    where,
                    next(iter(others)),
                    "in names of 'properties' beside it, only printable ASCII without quotes and "
                    "backslashes is told from other names",
                )
        return list(schema.get("patternProperties", {}).values() or others.values())

    def _pattern_properties(self, schema: Schema, where: str) -> None:
        by_pattern = self._members(schema, where, "patternProperties")
        if "patternProperties" in schema:
            if len(by_pattern) > 1:
                raise unsupported(where, "patternProperties", "it has several patterns")
            for keyword in ("properties", "propertyNames"):
                if keyword in schema:
                    raise unsupported(
                        where, "patternProperties", f"it cannot be combined with '{keyword}'"
                    )
            if schema.get("additionalProperties", False) is not False:
                raise unsupported(
                    where, "additionalProperties", "it cannot be combined with 'patternProperties'"
                )
            for name in schema["patternProperties"]:
                _pattern(name, member(member(where, "patternProperties"), name))
            self._todo += by_pattern
        if "propertyNames" in schema:
            for keyword in ("properties", "unevaluatedProperties"):
                if keyword in schema:
                    raise unsupported(
                        where, "propertyNames", f"it cannot be combined with '{keyword}'"
                    )
            if schema.get("additionalProperties") is False:
                raise unsupported(
                    where, "additionalProperties", "beside 'propertyNames' the engine ignores it"
                )
            self._property_names(schema["propertyNames"], member(where, "propertyNames"))

    def _property_names(self, names: Any, where: str) -> None:
        """Check `propertyNames`: the engine accepts only a schema of the type string."""
        if not isinstance(names, dict):
            raise errors.invalid_type(where, "a JSON schema")
        if names.get("type", "string") != "string" or not _WHOLE_NAMES & names.keys() <= {"enum"}:
            raise errors.unsupported_value(
                where, "The schema of names cannot be enforced: it needs the type 'string'."
            )
        names = {**names, "type": "string"}
        self._owned_schemas.append(names)
        self._todo.append((names, where))

    def _array(self, schema: Schema, where: str) -> list[schema_ends.Need]:
        first = schema.get("prefixItems")
        if "prefixItems" in schema:
            path = member(where, "prefixItems")
            if not isinstance(first, list) or not first:
                raise errors.invalid_type(path, "an array of JSON schemas")
            if any(each is True for each in first):
                raise unsupported(where, "prefixItems", "write {} where anything may stand")
            self._todo += ((each, f"{path}[{i}]") for i, each in enumerate(first))
        rest = schema.get("items", False)
        if "items" in schema and rest is not False:
            self._todo.append((rest, member(where, "items")))
        if "items" not in schema and not first:
            raise invalid(where, "items", "without it the engine makes empty arrays only")
        if schema.get("unevaluatedItems", False) is not False:
            raise unsupported(where, "unevaluatedItems", "use 'items'")
        least, most = count(schema, where, "minItems"), count(schema, where, "maxItems")
        check_order(least, most, where, "maxItems")
        prefix_count = len(first or ())
        if rest is False and (least or 0) > prefix_count:
            raise invalid(where, "minItems", "there are fewer items")
        if most is not None and most < prefix_count:
            raise unsupported(where, "maxItems", "there are more in 'prefixItems'")
        wanted = [*(first or ()), *([rest] if (least or 0) > prefix_count else ())]
        return _need(len(wanted), wanted)

    def _schemas_in(self, schema: Schema, where: str, keyword: str) -> list[tuple[str, Any]]:
        members = schema.get(keyword, {})
        if not isinstance(members, dict):
            raise errors.invalid_type(member(where, keyword), "an object of JSON schemas")
        return list(members.items())

    def _members(self, schema: Schema, where: str, keyword: str) -> list[Place]:
        path = member(where, keyword)
        return [
            (each, member(path, name)) for name, each in self._schemas_in(schema, where, keyword)
        ]

    # ---- checks of the whole schema

    def _refuse_endless(self) -> None:
        """Refuse schemas without a finite text, and references that form a circle at one level, for
        which the engine would have no allowed token."""
        if (schema := schema_ends.circle(self._same)) is not None:
            where = self._visited[schema]
            raise errors.invalid_value(where, f"Invalid '{where}': the schema refers to itself.")
        for schema in schema_ends.endless(self._needs):
            if schema in self._visited:
                where = self._visited[schema]
                raise errors.invalid_value(where, f"Invalid '{where}': no text of it ends.")

    def _one_of(self, branches: list[Any], where: str) -> None:
        """Check that at most one branch can match, by types and constants, because the engine lets
        several branches match. Each value is read once: a client may send thousands of branches."""
        targets = [self._resolve(each) for each in branches]
        if len({id(each) for each in targets}) < len(targets):
            raise _overlapping(where)
        by_kind: dict[str, list[Schema]] = {}
        for branch in targets:
            kinds = _kinds(branch)
            if len(targets) > 1 and kinds is None:
                raise _overlapping(where)
            for kind in kinds or ():
                by_kind.setdefault(kind, []).append(branch)
        for kind, alike in by_kind.items():
            if len(alike) > 1 and not self._distinguishable(kind, alike):
                raise _overlapping(where)

    def _resolve(self, schema: Any) -> Any:
        """The schema, or the final target of its references."""
        chain = []
        while isinstance(schema, dict) and "$ref" in schema:
            chain.append(id(schema))
            schema = self._ends.get(id(schema)) or self._target(schema["$ref"], "")[0]
        self._ends.update(dict.fromkeys(chain, schema))
        return schema

    def _distinguishable(self, kind: str, branches: list[Schema]) -> bool:
        """Whether branches of one type have no common value: all list their values, or all are
        objects that require a member whose values differ between them."""
        if _disjoint(iter(branches)):
            return True
        if kind != "object" or not all("properties" in each for each in branches):
            return False
        shared = set.intersection(*(set(each.get("required", ())) for each in branches))
        return any(
            _disjoint(self._resolve(each["properties"][name]) for each in branches)
            for name in sorted(shared)
        )


def _need(least: int, schemas: list[Any]) -> list[schema_ends.Need]:
    """That at least this number of schemas end."""
    inner = tuple(id(each) for each in schemas if each is not True)
    least -= len(schemas) - len(inner)
    return [(least, inner)] if least > 0 else []


def _overlapping(where: str) -> errors.ApiError:
    return unsupported(where, "oneOf", "two branches may match alike; use 'anyOf'")


def _disjoint(branches: Iterator[Any]) -> bool:
    """Whether all branches list their values, without common ones."""
    earlier_values: set[bytes] = set()
    for branch in branches:
        values = _constants(branch)
        if values is None or not earlier_values.isdisjoint(values):
            return False
        earlier_values |= values
    return True


_WHOLE_NAMES: Final = frozenset(_WHOLE)
_WHOLE_KEYWORDS: Final[Mapping[str, Callable[[_Walk, Schema, str], None]]] = {
    "$ref": _Walk._ref,
    "const": _Walk._const,
    "enum": _Walk._enum,
    "allOf": _Walk._all_of,
    "anyOf": _Walk._any_of,
    "oneOf": _Walk._one_of_branches,
}


def _pattern(value: Any, path: str) -> None:
    if not isinstance(value, str):
        raise errors.invalid_type(path, "a string")
    if (why := patterns.problem(value)) is not None:
        raise errors.unsupported_value(path, f"The pattern cannot be enforced: {why}.")


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    """All objects in a JSON value."""
    todo = [value]
    while todo:
        each = todo.pop()
        if isinstance(each, dict):
            yield each
            todo += each.values()
        elif isinstance(each, list):
            todo += each


def _is_of(value: Any, type_: str) -> bool:
    match type_:
        case "string":
            return isinstance(value, str)
        case "boolean":
            return isinstance(value, bool)
        case "null":
            return value is None
        case "object":
            return isinstance(value, dict)
        case "array":
            return isinstance(value, list)
        case "integer":
            return type(value) is int or (isinstance(value, float) and value.is_integer())
    return type(value) in (int, float)


def _kinds(schema: Any) -> set[str] | None:
    """The types that a schema allows; None if it has no type."""
    if not isinstance(schema, dict):
        return None
    declaration = schema.get("type")
    if declaration is None and (values := _values_of(schema)) is not None:
        return {_kind_of(value) for value in values}
    if declaration is None:
        return {"object"} if "properties" in schema else None
    types = [declaration] if isinstance(declaration, str) else declaration
    return {"number" if each == "integer" else each for each in types}


def _kind_of(value: Any) -> str:
    return next(each for each in _TYPES if each != "integer" and _is_of(value, each))


def _values_of(schema: Schema) -> list[Any] | None:
    """The values that a schema lists; None if it does not."""
    if "const" in schema:
        return [schema["const"]]
    return schema.get("enum")


def _constants(schema: Any) -> set[bytes] | None:
    """The values that a schema allows, as JSON; None if it does not list them."""
    values = _values_of(schema) if isinstance(schema, dict) else None
    if values is None:
        return None
    return {msgspec.json.encode(_as_integer(each), order="sorted") for each in values}


def _as_integer(value: Any) -> Any:
    """1.0 as 1: they are equal in JSON schemas."""
    return int(value) if isinstance(value, float) and value.is_integer() else value
