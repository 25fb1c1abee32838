"""Paths in schemas, refusals that name them, and numbers of members (pure)."""

from __future__ import annotations

import re
from typing import Any, Final

from tailrace.protocol import errors

MAX_COUNT: Final = 2**31 - 1  # of lengths and numbers of items and properties

Schema = dict[str, Any]

_PLAIN_NAME: Final = re.compile(r"[A-Za-z_$][A-Za-z0-9_$-]{0,63}\Z")


def member(where: str, name: str) -> str:
    """The path of a member. A name that is not an identifier is quoted, bounded and printable."""
    if _PLAIN_NAME.match(name):
        return f"{where}.{name}"
    printable = "".join(c if c.isprintable() and c not in "'\\" else "?" for c in name[:64])
    return f"{where}['{printable}']"


def unsupported(where: str, keyword: str, why: str) -> errors.ApiError:
    """The refusal of a keyword that the engine does not enforce."""
    return errors.unsupported_value(
        member(where, keyword), f"The schema keyword '{keyword}' cannot be enforced: {why}."
    )


def invalid(where: str, keyword: str, why: str) -> errors.ApiError:
    """The refusal of a keyword whose value is wrong."""
    path = member(where, keyword)
    return errors.invalid_value(path, f"Invalid '{path}': {why}.")


def count(schema: Schema, where: str, keyword: str) -> int | None:
    """The value of a keyword that counts; None if it is absent.

    Raises:
        errors.ApiError: it is not an integer from 0 to `MAX_COUNT`.
    """
    if keyword not in schema:
        return None
    value = schema[keyword]
    if type(value) is not int:
        raise errors.invalid_type(member(where, keyword), "an integer")
    if not 0 <= value <= MAX_COUNT:
        raise errors.out_of_range(member(where, keyword), 0, MAX_COUNT)
    return value


def check_order(least: int | None, most: int | None, where: str, keyword: str) -> None:
    """Refuse a maximum below the minimum.

    Raises:
        errors.ApiError: `keyword` is the maximum.
    """
    if least is not None and most is not None and least > most:
        raise invalid(where, keyword, "it is below the minimum")
