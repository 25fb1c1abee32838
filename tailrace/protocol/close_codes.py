"""Close codes of every WebSocket, in one table (pure).

The range alone tells a client whether to come back: 4000-4499 yes, 4500-4999 no. A client that
meets a code newer than itself still does the right thing.
"""

import enum
from dataclasses import dataclass
from typing import Final


class CloseCode(enum.IntEnum):
    NORMAL = 1000
    GOING_AWAY = 1001
    POLICY = 1008
    TOO_BIG = 1009
    INTERNAL = 1011
    RESTART = 1012
    TRY_AGAIN = 1013

    SLOW = 4001
    DRAINING = 4002
    CREDENTIAL_EXPIRED = 4003
    GAP = 4004
    LIFETIME = 4005

    CREDENTIAL_REFUSED = 4500
    FORBIDDEN_ORIGIN = 4501
    HISTORY_LOST = 4502
    UNSUPPORTED_VERSION = 4503


class Reconnect(enum.Enum):
    NEVER = "never"
    RESUME = "resume"
    NEW_CREDENTIAL = "new_credential"


@dataclass(frozen=True, slots=True)
class Closing:
    """`reason` goes into the close frame, so it stays under that frame's 123 bytes."""

    reason: str
    reconnect: Reconnect


TABLE: Final[dict[CloseCode, Closing]] = {
    # Ours never sends 1000 or 1001 while a response is running: SDK iterators take them for a
    # normal end and truncate silently.
    CloseCode.NORMAL: Closing("done", Reconnect.NEVER),
    CloseCode.GOING_AWAY: Closing("the client went away", Reconnect.RESUME),
    CloseCode.POLICY: Closing("policy violation", Reconnect.NEVER),
    CloseCode.TOO_BIG: Closing("message too big", Reconnect.NEVER),
    # Always a bug of ours: client input must never cause it.
    CloseCode.INTERNAL: Closing("internal error", Reconnect.RESUME),
    CloseCode.RESTART: Closing("restarting, come back", Reconnect.RESUME),
    CloseCode.TRY_AGAIN: Closing("try again later", Reconnect.RESUME),
    CloseCode.SLOW: Closing("too slow, resume by position", Reconnect.RESUME),
    CloseCode.DRAINING: Closing("draining, resume elsewhere", Reconnect.RESUME),
    CloseCode.CREDENTIAL_EXPIRED: Closing(
        "credential expired, come back with a new one", Reconnect.NEW_CREDENTIAL
    ),
    CloseCode.GAP: Closing("gap noticed, resume by position", Reconnect.RESUME),
    CloseCode.LIFETIME: Closing(
        "connection lifetime reached, resume on a new one", Reconnect.RESUME
    ),
    CloseCode.CREDENTIAL_REFUSED: Closing("credential refused", Reconnect.NEVER),
    CloseCode.FORBIDDEN_ORIGIN: Closing("origin not allowed", Reconnect.NEVER),
    CloseCode.HISTORY_LOST: Closing("history lost", Reconnect.NEVER),
    CloseCode.UNSUPPORTED_VERSION: Closing("unsupported protocol version", Reconnect.NEVER),
}

# What the OpenAI SDKs and browsers treat as a cut, not an end. 1005, 1006 and 1015 never travel in
# a frame.
_STANDARD_RECONNECT: Final = frozenset({1001, 1005, 1006, 1011, 1012, 1013, 1015})


def reconnect(code: int) -> Reconnect:
    """What a client does after a close with `code`, known to the table or not."""
    if code in TABLE:
        return TABLE[CloseCode(code)].reconnect
    if code in _STANDARD_RECONNECT or 4000 <= code <= 4499:
        return Reconnect.RESUME
    return Reconnect.NEVER


def for_sdk(code: CloseCode) -> CloseCode:
    """The code for a socket that speaks OpenAI's protocol: SDKs know no private ranges, so every
    "come back" is 1012 or 1013."""
    if code < 4000 or TABLE[code].reconnect is Reconnect.NEVER:
        return code
    return CloseCode.TRY_AGAIN if code is CloseCode.SLOW else CloseCode.RESTART
