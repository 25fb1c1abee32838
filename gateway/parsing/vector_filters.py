"""Filters of a search by the attributes of files (pure).

{"type": "eq", "key": "topic", "value": "taxes"}
{"type": "and", "filters": [...]}
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, Final

from tailrace.protocol import errors
from tailrace.protocol.vector_stores import Value

Attributes = Mapping[str, Value]
Filter = Callable[[Attributes], bool]

MAX_LEVELS: Final = 8
MAX_PARTS: Final = 100  # of all levels together
MAX_VALUES: Final = 1_000

_ORDERED: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "gt": operator.gt,
    "gte": operator.ge,
    "lt": operator.lt,
    "lte": operator.le,
}
_TYPES: Final = ("eq", "ne", *_ORDERED, "in", "nin", "and", "or")


def parse(value: Any, where: str = "filters") -> Filter:
    """The predicate of a filter. A file without the attribute, or with a value of another type,
    passes only `ne` and `nin`.

    Raises:
        errors.ApiError: 400 naming the part.
    """
    return _parse(value, where, 1, [0])


def _parse(value: Any, where: str, level: int, parts: list[int]) -> Filter:
    if not isinstance(value, dict):
        raise errors.invalid_type(where, "an object")
    parts[0] += 1
    if level > MAX_LEVELS or parts[0] > MAX_PARTS:
        raise errors.invalid_value(
            where, f"Filters have at most {MAX_PARTS} parts on {MAX_LEVELS} levels."
        )
    kind = value.get("type")
    if kind in ("and", "or"):
        within = value.get("filters")
        if not isinstance(within, list) or not within:
            raise errors.invalid_type(f"{where}.filters", "an array of filters")
        filters = [
            _parse(each, f"{where}.filters[{index}]", level + 1, parts)
            for index, each in enumerate(within)
        ]
        together = all if kind == "and" else any
        return lambda attributes: together(each(attributes) for each in filters)
    if kind not in _TYPES:
        raise errors.unsupported_value(
            f"{where}.type", f"Supported values are: {', '.join(_TYPES)}."
        )
    name = value.get("key")
    if not isinstance(name, str):
        raise errors.invalid_type(f"{where}.key", "a string")
    return _comparison(kind, name, value.get("value"), f"{where}.value")


def _comparison(kind: str, name: str, operand: Any, where: str) -> Filter:
    if kind in ("in", "nin"):
        if not isinstance(operand, list) or len(operand) > MAX_VALUES:
            raise errors.invalid_type(where, f"an array of at most {MAX_VALUES} values")
        values = [_scalar(each, where) for each in operand]
        return lambda has: any(_equal(has.get(name), each) for each in values) is (kind == "in")
    one = _scalar(operand, where)
    if kind in ("eq", "ne"):
        return lambda has: _equal(has.get(name), one) is (kind == "eq")
    if isinstance(one, bool):
        raise errors.invalid_type(where, "a number or a string")
    compare = _ORDERED[kind]

    def matches(has: Attributes) -> bool:
        attribute = has.get(name)
        comparable = not isinstance(attribute, bool) and (
            isinstance(attribute, str)
            if isinstance(one, str)
            else isinstance(attribute, int | float)
        )
        return comparable and compare(attribute, one)

    return matches


def _scalar(value: Any, where: str) -> Value:
    if not isinstance(value, str | int | float | bool):
        raise errors.invalid_type(where, "a string, a number or a boolean")
    return value


def _equal(attribute: Value | None, operand: Value) -> bool:
    """Whether both are equal; true does not equal 1 in JSON."""
    return isinstance(attribute, bool) is isinstance(operand, bool) and attribute == operand
