"""What a link to a conversation is asked for with (pure)."""

from __future__ import annotations

from typing import Final

from gateway.parsing.json_body import Body
from tailrace.protocol import errors

MIN_S: Final = 60
USUAL_S: Final = 30 * 86_400
MAX_S: Final = 365 * 86_400
_MAX_DIGITS: Final = 6  # a conversation has at most 10,000 nodes


def seconds(body: Body) -> int:
    """How long a link is to hold.

    Raises:
        errors.ApiError: 400 naming the field.
    """
    for name, value in body.items():
        if name != "expires_in" and value is not None:
            raise errors.unsupported_parameter(name)
    given = body.get("expires_in")
    if given is None:
        return USUAL_S
    if type(given) is float and given.is_integer():  # JSON has one type for numbers
        given = int(given)
    if type(given) is not int:
        raise errors.invalid_type("expires_in", "an integer")
    if not MIN_S <= given <= MAX_S:
        raise errors.out_of_range("expires_in", MIN_S, MAX_S)
    return given


def start(after: str | None) -> int:
    """The place that `after` names. Raises like `seconds`."""
    if after is None:
        return 0
    if not (after.isascii() and after.isdigit()) or len(after) > _MAX_DIGITS:
        raise errors.invalid_value("after", "Invalid 'after': expected what 'next' said.")
    return int(after)
