"""One-time tickets: a browser shows one at a WebSocket handshake instead of its credential.

key      ticket:<hash of the ticket>
value    the principal, and the origin that asked for the ticket
lives    TICKET_TTL_S at most
writer   gateway
if lost  the browser asks for a new ticket
"""

import re
import secrets
from typing import Annotated, Final

import msgspec

from tailrace.auth.principal import InvalidCredential, Principal, Reason
from tailrace.store.redis_store import RedisStore, decode, digest, milliseconds

TICKET_TTL_S: Final = 30
_MIN_TTL_S: Final = 1.0

_SHAPE: Final = re.compile(r"[A-Za-z0-9_-]{22}")  # 128 bits


class _Ticket(msgspec.Struct, frozen=True):
    issuer: Annotated[str, msgspec.Meta(min_length=1)]
    subject: Annotated[str, msgspec.Meta(min_length=1)]
    tenant: str | None
    scopes: list[str]
    expires_at: Annotated[int, msgspec.Meta(gt=0, lt=2**53)]
    origin: str | None
    issued_at: int = 0
    credential: str | None = None


class Tickets:
    """Tickets are patient calls: a browser can do nothing without them.

    Every call raises StoreUnavailable.
    """

    def __init__(self, redis: RedisStore) -> None:
        self._redis = redis

    async def mint_ticket(self, principal: Principal, origin: str | None, now: float) -> str:
        """A ticket of 22 characters that fit a WebSocket subprotocol. `now` in seconds since the
        epoch. The ticket outlives its credential by at most a second."""
        ticket = secrets.token_urlsafe(16)
        entry = _Ticket(
            principal.issuer,
            principal.subject,
            principal.tenant,
            sorted(principal.scopes),
            principal.expires_at,
            origin,
            principal.issued_at,
            principal.credential,
        )
        ttl_s = min(TICKET_TTL_S, max(_MIN_TTL_S, principal.expires_at - now))
        await self._redis.execute(
            "SET",
            _key(ticket),
            msgspec.json.encode(entry),
            "PX",
            milliseconds(ttl_s),
            "NX",
            patient=True,
        )
        return ticket

    async def consume_ticket(self, ticket: str, origin: str | None) -> Principal:
        """The principal who asked for the ticket. The ticket is gone afterwards, also when it is
        refused.

        Raises:
            InvalidCredential: unknown, used or expired, or of another origin.
        """
        if _SHAPE.fullmatch(ticket) is None:
            raise InvalidCredential(Reason.TICKET)
        entry = decode(await self._redis.execute("GETDEL", _key(ticket), patient=True), _Ticket)
        if entry is None:
            raise InvalidCredential(Reason.TICKET)
        if entry.origin != origin:
            raise InvalidCredential(Reason.TICKET_ORIGIN)
        return Principal(
            entry.issuer,
            entry.subject,
            entry.tenant,
            frozenset(entry.scopes),
            entry.expires_at,
            entry.issued_at,
            entry.credential,
        )


def _key(ticket: str) -> str:
    return f"ticket:{digest(ticket)}"
