"""Scalar fields of a body: structs declare them with their bounds, and errors name them (pure).

Null means absent. A struct has no field without a default of None.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import Meta, inspect

from tailrace.protocol import errors

MAX_LABEL_CHARS: Final = 512  # user, safety_identifier, prompt_cache_key, idempotency key

Label = Annotated[str, Meta(max_length=MAX_LABEL_CHARS)]
T = TypeVar("T")
Fields = TypeVar("Fields", bound=msgspec.Struct)


def read(body: Mapping[str, Any], kind: type[Fields]) -> Fields:
    """The scalar fields of a body.

    Raises:
        errors.ApiError: for the first wrong field, in the order of `kind`.
    """
    try:
        return msgspec.convert(body, kind)
    except msgspec.ValidationError:
        body = _with_integers(body, kind)
    try:
        return msgspec.convert(body, kind)
    except msgspec.ValidationError as error:
        raise _wrong_field(body, kind) or error from error


def _with_integers(body: Mapping[str, Any], kind: type[msgspec.Struct]) -> dict[str, Any]:
    """The body with 5 for 5.0 in integer fields: JSON has one number type, and clients may write
    either."""
    whole = {
        name: int(value)
        for name, rule in _rules(kind).items()
        if isinstance(rule, inspect.IntType)
        and type(value := body.get(name)) is float
        and value.is_integer()
    }
    return {**body, **whole}


def _wrong_field(body: Mapping[str, Any], kind: type[msgspec.Struct]) -> errors.ApiError | None:
    """The error of the first wrong field."""
    for name, rule in _rules(kind).items():
        value = body.get(name)
        if value is not None and (refusal := _refusal(name, value, rule)) is not None:
            return refusal
    return None


@functools.cache  # inspecting a struct takes half a millisecond
def _rules(kind: type[msgspec.Struct]) -> dict[str, inspect.Type]:
    """The type of each field of a struct, without null."""
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    rules = {}
    for field in info.fields:
        assert isinstance(field.type, inspect.UnionType)
        (rules[field.encode_name],) = (
            part for part in field.type.types if not isinstance(part, inspect.NoneType)
        )
    return rules


def _refusal(name: str, value: Any, rule: inspect.Type) -> errors.ApiError | None:
    """The API error if `value` does not match `rule`; None if it matches."""
    match rule:
        case inspect.BoolType():
            return None if type(value) is bool else errors.invalid_type(name, "a boolean")
        case inspect.StrType(max_length=most):
            if not isinstance(value, str):
                return errors.invalid_type(name, "a string")
            return too_long(name, most) if most is not None and len(value) > most else None
        case inspect.IntType(ge=low, le=high):
            if type(value) is not int:
                return errors.invalid_type(name, "an integer")
            if low is not None and high is not None and not low <= value <= high:
                return errors.invalid_value(name, f"Invalid '{name}': expected a 64-bit integer.")
        case inspect.FloatType(ge=low, gt=above, le=high):
            if type(value) not in (int, float):
                return errors.invalid_type(name, "a number")
            if above is not None and value == above:
                return errors.invalid_value(
                    name,
                    f"Invalid '{name}': expected a value above {above:g} and at most {high:g}.",
                )
            lowest, most_ = (low if low is not None else above or 0.0), high or 0.0
            if not lowest <= value <= most_:
                return errors.out_of_range(name, lowest, most_)
        case inspect.StructType(cls=kind):
            if not isinstance(value, dict):
                return errors.invalid_type(name, "an object")
            return _wrong_field(value, kind)
    return None


def too_long(name: str, most: int) -> errors.ApiError:
    """The error for a text of more than `most` characters."""
    return errors.invalid_value(name, f"Invalid '{name}': expected at most {most} characters.")


def or_default(value: T | None, default: T) -> T:
    """`value`, or `default` for an absent field."""
    return default if value is None else value
