"""Messages by which the client of an open socket shows a new credential (pure; docs/protocol.md,
section 1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from tailrace.protocol import errors

TYPE: Final = "auth"
MAX_CREDENTIAL_CHARS: Final = 8_192  # no credential is longer


class Presented(NamedTuple):
    """What a client shows: a credential, or a one-time ticket. One of them is None."""

    credential: str | None
    ticket: str | None


def parse(body: Mapping[str, Any]) -> Presented:
    """What an `auth` message shows.

    Raises:
        errors.ApiError: 400, not exactly one text of a possible length.
    """
    presented = Presented(body.get("credential"), body.get("ticket"))
    texts = [text for text in presented if text is not None]
    if len(texts) != 1:
        raise errors.missing_required_parameter("credential")
    if not isinstance(texts[0], str) or len(texts[0]) > MAX_CREDENTIAL_CHARS:
        raise errors.invalid_type(
            "credential", f"a string of at most {MAX_CREDENTIAL_CHARS} characters"
        )
    return presented


def expiring(after_s: float) -> dict[str, Any]:
    """The socket closes after this time, unless a new credential is shown."""
    return {"type": "auth_expiring", "after_ms": max(0, round(after_s * 1000))}


def renewal_message(expires_at: int) -> dict[str, Any]:
    """The new credential holds. `expires_at`: seconds since the epoch."""
    return {"type": "auth_renewed", "expires_at": expires_at}


def refusal_message(error: errors.ApiError) -> dict[str, Any]:
    """What was shown is refused. The former credential holds until its end."""
    return {"type": "auth_refused", "status": error.status, **errors.http_body(error)}
