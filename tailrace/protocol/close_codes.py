"""Close codes of the WebSockets, in one table (pure).

The page and docs/protocol.md get theirs from here (`scripts/close_codes.py`). `/v1/watch` sends the
codes as they are. `/v1/responses` speaks OpenAI's protocol, whose SDKs know no private codes: there
every code that asks for a reconnect is 1012 or 1013.

After a code of 4000 to 4499 a client reconnects, after one of 4500 to 4999 it does not. So an old
client also reacts correctly to a new code.
"""

import enum
from dataclasses import dataclass
from typing import Final


class CloseCode(enum.IntEnum):
    """Why a socket is closed. Never 1000 or 1001: SDK iterators treat these as a normal end, and
    would cut off an answer silently."""

    INVALID_TEXT = 1007
    POLICY = 1008
    TOO_BIG = 1009
    INTERNAL = 1011
    RESTART = 1012
    TRY_AGAIN = 1013

    SLOW = 4001
    DRAINING = 4002
    CREDENTIAL_EXPIRED = 4003
    LIFETIME = 4005

    CREDENTIAL_REVOKED = 4500


class Reconnect(enum.Enum):
    """What a client does after the close."""

    NEVER = "never"
    RESUME = "resume"
    NEW_CREDENTIAL = "new_credential"


@dataclass(frozen=True, slots=True)
class Closing:
    """One cause.

    Attributes:
        reason: text of the close frame, at most 123 bytes.
        reconnect: what the client does.
        on_responses: the code that `/v1/responses` sends.
        on_watch: whether `/v1/watch` sends the code.
    """

    reason: str
    reconnect: Reconnect
    on_responses: CloseCode
    on_watch: bool = True


TABLE: Final[dict[CloseCode, Closing]] = {
    # The connection sends these three by itself, for what no application should see.
    CloseCode.INVALID_TEXT: Closing("text is not UTF-8", Reconnect.NEVER, CloseCode.INVALID_TEXT),
    CloseCode.POLICY: Closing(
        "too many frames, or a message without an end", Reconnect.NEVER, CloseCode.POLICY
    ),
    CloseCode.TOO_BIG: Closing("message too big", Reconnect.NEVER, CloseCode.TOO_BIG),
    # Always a defect of the server: input of a client must never cause it.
    CloseCode.INTERNAL: Closing("internal error", Reconnect.RESUME, CloseCode.INTERNAL),
    CloseCode.RESTART: Closing("restarting, come back", Reconnect.RESUME, CloseCode.RESTART),
    CloseCode.SLOW: Closing("too slow, resume by position", Reconnect.RESUME, CloseCode.TRY_AGAIN),
    CloseCode.DRAINING: Closing("draining, resume elsewhere", Reconnect.RESUME, CloseCode.RESTART),
    CloseCode.CREDENTIAL_EXPIRED: Closing(
        "credential expired, come back with a new one",
        Reconnect.NEW_CREDENTIAL,
        CloseCode.RESTART,
    ),
    # The SDKs know no private codes, and do not reconnect after 1008.
    CloseCode.CREDENTIAL_REVOKED: Closing(
        "credential revoked, sign in again", Reconnect.NEVER, CloseCode.POLICY
    ),
    CloseCode.LIFETIME: Closing(
        "connection lifetime reached, resume on a new one",
        Reconnect.RESUME,
        CloseCode.RESTART,
        on_watch=False,
    ),
}


def for_sdk(code: CloseCode) -> CloseCode:
    """The code that `/v1/responses` sends for `code`."""
    return TABLE[code].on_responses
