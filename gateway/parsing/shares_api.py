"""The parameters of a link to a conversation (pure)."""

from __future__ import annotations

from typing import Final

from gateway.parsing.json_body import Body
from tailrace.protocol import errors

MIN_S: Final = 60
USUAL_S: Final = 30 * 86_400
MAX_S: Final = 365 * 86_400
_MAX_DIGITS: Final = 6  # a conversation has at most 10,000 nodes


def seconds(body: Body) -> int:
    """The lifetime of a link, in seconds.

    Raises:
        errors.ApiError: 400 naming the field.
    """
    for name, value in body.items():
        if name != "expires_in" and value is not None:
            raise errors.unsupported_parameter(name)
    lifetime_s = body.get("expires_in")
    if lifetime_s is None:
        return USUAL_S
    if type(lifetime_s) is float and lifetime_s.is_integer():  # JSON has one number type
        lifetime_s = int(lifetime_s)
    if type(lifetime_s) is not int:
        raise errors.invalid_type("expires_in", "an integer")
    if not MIN_S <= lifetime_s <= MAX_S:
        raise errors.out_of_range("expires_in", MIN_S, MAX_S)
    return lifetime_s


def start(after: str | None) -> int:
    """The position in `after`. Raises like `seconds`."""
    if after is None:
        return 0
    if not (after.isascii() and after.isdigit()) or len(after) > _MAX_DIGITS:
        raise errors.invalid_value("after", "Invalid 'after': expected what 'next' said.")
    return int(after)
