"""Who calls: from the headers of a request or a WebSocket handshake to a principal.

Credentials are never read from the query string, because it ends up in logs, in the history and in
Referer. A browser cannot set `Authorization` on a WebSocket; it sends a one-time ticket as a
subprotocol. The answer names the plain protocol only.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.requests import HTTPConnection

from tailrace import telemetry
from tailrace.auth import jwks
from tailrace.auth.issuers import Issuers
from tailrace.auth.principal import CredentialScope, InvalidCredential, Principal, Reason
from tailrace.delivery.revocations import Revocations
from tailrace.protocol import errors, records
from tailrace.store.redis_store import StoreUnavailable
from tailrace.store.tickets import Tickets
from tailrace.web import auth_messages, credential_timer, shares
from tailrace.web.admitted import Admitted
from tailrace.web.session_cookie import SessionCookies

SUBPROTOCOL = "tailrace.v1"
COMPACT_SUBPROTOCOL = "tailrace.v2"  # of watch sockets: the same, with events in the compact form
TICKET_PREFIX = "ticket."


def owner_of(principal: Principal) -> records.Owner:
    """The identity that is written into the log."""
    return records.Owner(principal.issuer, principal.subject, principal.tenant or "")


def key_sets(issuers: Issuers) -> jwks.KeySets:
    """The keys of all issuers; `run` refreshes the published ones (JWKS)."""

    def alarm(iss: str, message: str) -> None:
        telemetry.log(telemetry.Action.KEY_SET_FAILED, issuer=iss, reason=message)

    published = any(issuer.jwks_url for issuer in issuers.by_name.values())
    client = jwks.new_client() if published else None
    return jwks.KeySets(issuers, client, time.monotonic, alarm)


def offered_subprotocols(connection: HTTPConnection) -> list[str]:
    """Subprotocols the client offers."""
    return [
        p.strip()
        for p in connection.headers.get("sec-websocket-protocol", "").split(",")
        if p.strip()
    ]


@dataclass(frozen=True, slots=True)
class Access:
    """Checks callers of one service.

    Attributes:
        admitted: their open connections, which end with their credential.
        room: how much is open for them.
        rates: their rate limits.
        clock: gives seconds since the epoch.
        later: timers for the end of credentials.
        sessions: opens the sessions of browsers; None where there are none.
    """

    keys: jwks.KeySets
    tickets: Tickets
    revocations: Revocations
    admitted: Admitted
    room: shares.OpenConnections
    rates: shares.Rates
    origins: frozenset[str]
    clock: Callable[[], float] = time.time
    sessions: SessionCookies | None = None
    later: credential_timer.Later = credential_timer.on_loop

    def check_origin(self, connection: HTTPConnection) -> None:
        """A browser names its origin and may come only from a listed one; other clients name none.

        Raises:
            errors.ApiError: 403.
        """
        origin = connection.headers.get("origin")
        if origin is not None and origin not in self.origins:
            raise errors.forbidden_origin()

    def check_same_origin(self, connection: HTTPConnection) -> None:
        """Accept only pages of this origin, and callers that are not a browser.

        Raises:
            errors.ApiError: 403.
        """
        origin = connection.headers.get("origin")
        host = connection.headers.get("host", "")
        if origin is not None and origin.partition("://")[2] != host:
            raise errors.forbidden_origin()
        if connection.headers.get("sec-fetch-site") not in (None, "same-origin"):
            raise errors.forbidden_origin()

    async def principal(
        self, connection: HTTPConnection, scope: CredentialScope | None = None
    ) -> Principal:
        """The caller: by `Authorization` header; or by ticket on a WebSocket, and by session's
        cookie elsewhere. `scope`: what the credential must allow; None when any credential will do.

        Raises:
            errors.ApiError: 401 for every cause alike, 403 without the scope or for a change by
                cookie alone, 429 for too many credentials that were refused or too many reads,
                503 when tickets or revocations cannot be checked.
        """
        principal = await self._check(self._principal(connection), connection)
        self.permit(principal, scope)
        if scope is not CredentialScope.CREATE or connection.scope["type"] == "websocket":
            self.rates.read(principal)  # what generates has rates of its own
        return principal

    async def renewed(
        self,
        former: Principal,
        presented: auth_messages.Presented,
        origin: str | None,
        scope: CredentialScope,
    ) -> Principal:
        """The principal of an open socket, by the credential that it shows now.

        Raises:
            errors.ApiError: 401 also for a credential of another principal, 403, 429, 503.
        """
        self.rates.read(former)
        principal = await self._check(self._present(former, presented, origin))
        self.permit(principal, scope)
        return principal

    async def credential(self, connection: HTTPConnection, text: str) -> Principal:
        """The principal of a credential that came in the body of a request.

        Raises:
            errors.ApiError: 401, 429.
        """
        return await self._check(self._verify(connection, text), connection)

    async def _check(
        self, check: Awaitable[Principal], connection: HTTPConnection | None = None
    ) -> Principal:
        try:
            return await check
        except InvalidCredential as error:
            if connection is not None and error.reason is not Reason.MISSING:
                self.rates.refused(connection)
            telemetry.CREDENTIAL_REFUSALS.labels(reason=error.reason.value).inc()
            raise errors.invalid_api_key() from error
        except StoreUnavailable as error:
            raise errors.unavailable("Tickets cannot be checked right now.") from error

    async def _present(
        self, former: Principal, presented: auth_messages.Presented, origin: str | None
    ) -> Principal:
        if presented.ticket is not None:
            principal = await self.tickets.consume_ticket(presented.ticket, origin)
        else:
            principal = await self.keys.verify(presented.credential or "", self.clock())
        if principal.key != former.key:
            raise InvalidCredential(Reason.OTHER_PRINCIPAL)
        return principal

    def permit(self, principal: Principal, scope: CredentialScope | None = None) -> None:
        """Refuse a principal whose credential was revoked, or does not allow `scope`.

        Raises:
            errors.ApiError: 401, 403; 503 before all revocations were read.
        """
        if not self.revocations.ready:
            raise errors.unavailable("Credentials cannot be checked yet.")
        if self.revocations.refuses(principal):
            telemetry.CREDENTIAL_REFUSALS.labels(reason=Reason.REVOKED.value).inc()
            raise errors.invalid_api_key()
        if scope is not None and scope not in principal.scopes:
            raise errors.insufficient_scope(scope)

    async def _principal(self, connection: HTTPConnection) -> Principal:
        header = connection.headers.get("authorization")
        if header is not None:
            scheme, _, token = header.partition(" ")
            if scheme.lower() != "bearer":
                raise InvalidCredential(Reason.MALFORMED)
            return await self._verify(connection, token)
        if connection.scope["type"] == "websocket":
            for protocol in offered_subprotocols(connection):
                if protocol.startswith(TICKET_PREFIX):
                    self.rates.check_refusals(connection)
                    return await self.tickets.consume_ticket(
                        protocol[len(TICKET_PREFIX) :], connection.headers.get("origin")
                    )
            raise InvalidCredential(Reason.MISSING)
        if self.sessions is not None and (value := self.sessions.value(connection)) is not None:
            return self._from_session(self.sessions, connection, value)
        raise InvalidCredential(Reason.MISSING)

    async def _verify(self, connection: HTTPConnection, text: str) -> Principal:
        token, now = text.strip(), self.clock()
        cached = self.keys.cached_principal(token, now)
        if cached is not None:
            return cached
        self.rates.check_refusals(connection)
        return await self.keys.verify(token, now)

    def _from_session(
        self, sessions: SessionCookies, connection: HTTPConnection, value: str
    ) -> Principal:
        principal = sessions.open(value, self.clock())
        if not self.keys.knows(principal.issuer):  # its issuer was removed since
            raise InvalidCredential(Reason.ISSUER)
        if connection.scope["method"] not in ("GET", "HEAD") and not sessions.shows_token(
            connection, value
        ):
            raise errors.session_token_missing()
        return principal
