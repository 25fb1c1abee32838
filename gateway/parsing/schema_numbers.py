"""Numbers in schemas: ranges, and constants that the engine can represent (pure).

The engine reads numbers as 64-bit integers and doubles, and writes a number of a range with at most
six decimals.
"""

from __future__ import annotations

import decimal
import math
from typing import Any, Final

from gateway.parsing.schema_errors import Schema, invalid, member, unsupported
from tailrace.protocol import errors

_EXCLUDES: Final = ("exclusiveMinimum", "exclusiveMaximum")
KEYWORDS: Final = ("minimum", "maximum", *_EXCLUDES)

_LEAST: Final = -(2**63)
_MOST: Final = 2**63 - 1
_DECIMALS: Final = 6
# From here on the number of six decimals that follows a bound may be read as the bound itself.
_EXCLUSIVE: Final = 2**32
# Digits of any double with six decimals, exactly.
_EXACT: Final = decimal.Context(prec=400)


def check_range(schema: Schema, where: str, types: list[str]) -> None:
    """Check the range of a schema with numbers. `types`: those of the schema.

    Raises:
        errors.ApiError: the engine cannot represent a bound, or no number is in the range.
    """
    bounds: dict[str, Any] = {keyword: schema[keyword] for keyword in KEYWORDS if keyword in schema}
    for keyword, value in bounds.items():
        if type(value) not in (int, float) or not _is_finite(value):
            raise errors.invalid_type(member(where, keyword), "a number")
        if "integer" in types and not _is_integer(value):
            raise unsupported(where, keyword, "it is not a 64-bit integer")
        if "number" in types and float(value) != value:
            raise unsupported(where, keyword, "it is not a double")
        if "number" in types and keyword in _EXCLUDES and abs(value) >= _EXCLUSIVE:
            raise unsupported(where, keyword, "for numbers it is below 2^32")
    if bounds and "integer" in types:
        _check_whole_numbers(bounds, where)
    if bounds and "number" in types:
        _check_decimals(bounds, where)


def is_exact(value: Any) -> bool:
    """Whether the engine writes all numbers of a constant as they are."""
    todo = [value]
    while todo:
        each = todo.pop()
        if isinstance(each, dict):
            todo += each.values()
        elif isinstance(each, list):
            todo += each
        elif type(each) is int and not _LEAST <= each <= _MOST:
            return False
    return True


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond a double
        return False


def _is_integer(value: float) -> bool:
    # The engine refuses the smallest one if it is written as a double.
    at_least = value > _LEAST or (value == _LEAST and type(value) is int)
    return value == int(value) and at_least and value <= _MOST


def _check_whole_numbers(bounds: dict[str, Any], where: str) -> None:
    low = max(bounds.get("minimum", _LEAST), bounds.get("exclusiveMinimum", _LEAST - 1) + 1)
    high = min(bounds.get("maximum", _MOST), bounds.get("exclusiveMaximum", _MOST + 1) - 1)
    if low > high:
        raise invalid(where, next(iter(bounds)), "no 64-bit integer is in this range")


def _check_decimals(bounds: dict[str, Any], where: str) -> None:
    """Check that a number of six decimals is in the range."""
    steps = {
        keyword: _EXACT.scaleb(decimal.Decimal(repr(value)), _DECIMALS)
        for keyword, value in bounds.items()
    }
    lows = [math.ceil(steps["minimum"])] if "minimum" in steps else []
    lows += [math.floor(steps["exclusiveMinimum"]) + 1] if "exclusiveMinimum" in steps else []
    highs = [math.floor(steps["maximum"])] if "maximum" in steps else []
    highs += [math.ceil(steps["exclusiveMaximum"]) - 1] if "exclusiveMaximum" in steps else []
    if lows and highs and max(lows) > min(highs):
        raise invalid(where, next(iter(bounds)), "no number of six decimals is in this range")
