"""JSON from a client: a whole object, one of its members, or only the head of an event (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from tailrace.protocol import errors

Body = Mapping[str, Any]


def decode(data: str | bytes | bytearray) -> dict[str, Any]:
    """One JSON object.

    Raises:
        errors.ApiError: not JSON (also: lone surrogates, numbers beyond a double, nesting beyond
            the decoder's bound), or not an object.
    """
    try:
        body = msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError, ValueError) as error:
        raise errors.invalid_json() from error
    if not isinstance(body, dict):
        raise errors.invalid_request("The request must be a JSON object.", code="invalid_type")
    return body


class EventHead(msgspec.Struct, frozen=True):
    """The members of a client event that decide its handling. The others are skipped, not
    decoded."""

    type: Any = None
    stream_id: Any = None
    response_id: Any = None


_decode_head = msgspec.json.Decoder(EventHead).decode


def event_head(data: bytes) -> EventHead:
    """The head of one client event. Raises like `decode`."""
    try:
        return _decode_head(data)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        decode(data)  # raises with the reason
        raise errors.invalid_json() from error


def object_field(body: Body, name: str) -> dict[str, Any]:
    """The object in a field; empty if the field is absent or null.

    Raises:
        errors.ApiError: it is not an object.
    """
    value = body.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise errors.invalid_type(name, "an object")
    return value
