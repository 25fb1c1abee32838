"""JSON without the freedoms that let two readers see two values."""

import json
import math
import unicodedata
from typing import Any, Final, NoReturn

MAX_DEPTH: Final = 16  # nesting of objects and lists


def strict_object(text: str) -> dict[str, Any]:
    """A JSON object. A member given twice, NaN, infinity and deep nesting are refused.

    Raises:
        ValueError: not such an object.
        RecursionError: nested deeper than the parser can go.
    """
    value = json.loads(
        text, object_pairs_hook=_members, parse_constant=_refuse_constant, parse_float=_finite
    )
    if type(value) is not dict:
        raise ValueError("not an object")
    _check_depth(value)
    return value


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a member twice")
    return members


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number out of range")
    return number


def _check_depth(value: object) -> None:
    layer = [value]
    for _ in range(MAX_DEPTH):
        inner: list[object] = []
        for each in layer:
            if isinstance(each, dict):
                inner.extend(each.values())
            elif isinstance(each, list):
                inner.extend(each)
        if not inner:
            return
        layer = inner
    raise ValueError("nested too deep")


def is_clean(text: str) -> bool:
    """Whether `text` has neither control characters nor lone surrogates, which JSON can carry and
    UTF-8 cannot."""
    return not any(unicodedata.category(char) in {"Cc", "Cs"} for char in text)
