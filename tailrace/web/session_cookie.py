"""A browser's session: a sealed cookie instead of a credential.

The page's script cannot read the cookie, and it holds no credential: only who the caller is, until
the credential would have expired. It is encrypted, so that a copy of it shows nothing, and bound to
the key that all gateways share. Another site cannot use it: it is sent by pages of this site alone
(SameSite=Strict), and every request that changes something needs the session's token in a header,
which only a page of this origin can have read.

    name     __Host-tailrace, or tailrace-<port> on a loopback address without TLS
    value    nonce and AES-256-GCM of the principal, in base64url
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import ipaddress
import os
from typing import Final
from urllib.parse import urlsplit

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from starlette.requests import HTTPConnection
from starlette.responses import Response

from tailrace.auth.principal import InvalidCredential, Principal, Reason

TOKEN_HEADER: Final = "x-tailrace-session"  # noqa: S105
MIN_KEY_BYTES: Final = 32
MAX_COOKIE_CHARS: Final = 4000
_NONCE_BYTES: Final = 12


class _Session(msgspec.Struct, frozen=True, array_like=True):
    issuer: str
    subject: str
    tenant: str | None
    scopes: list[str]
    expires_at: int
    issued_at: int
    credential: str | None


class SessionCookies:
    """Seals and opens sessions with one key."""

    def __init__(self, key: bytes) -> None:
        """`key`: at least MIN_KEY_BYTES random bytes, the same at all gateways."""
        self._cipher = AESGCM(hashlib.blake2b(key, digest_size=32, person=b"seal").digest())
        self._token_key = hashlib.blake2b(key, digest_size=32, person=b"token").digest()

    def seal(self, principal: Principal) -> str:
        """The value of a new cookie."""
        session = _Session(
            principal.issuer,
            principal.subject,
            principal.tenant,
            sorted(principal.scopes),
            principal.expires_at,
            principal.issued_at,
            principal.credential,
        )
        nonce = os.urandom(_NONCE_BYTES)
        body = nonce + self._cipher.encrypt(nonce, msgspec.json.encode(session), None)
        return base64.urlsafe_b64encode(body).decode().rstrip("=")

    def set(
        self, response: Response, connection: HTTPConnection, value: str, seconds: float
    ) -> None:
        """Make the browser store the session for `seconds`."""
        name, secure = _name(connection)
        response.set_cookie(
            name,
            value,
            max_age=max(0, int(seconds)),
            path="/",
            secure=secure,
            httponly=True,
            samesite="strict",
        )

    def clear(self, response: Response, connection: HTTPConnection) -> None:
        """Make the browser delete the session."""
        name, secure = _name(connection)
        response.delete_cookie(name, path="/", secure=secure, httponly=True, samesite="strict")

    def token(self, value: str) -> str:
        """What the page shows with every change, for the session in this cookie."""
        return hmac.new(self._token_key, value.encode(), hashlib.sha256).hexdigest()

    def value(self, connection: HTTPConnection) -> str | None:
        """The cookie of a request, if it has one."""
        return connection.cookies.get(_name(connection)[0])

    def shows_token(self, connection: HTTPConnection, value: str) -> bool:
        """Whether the request comes from a page that could read the session's token."""
        return hmac.compare_digest(
            connection.headers.get(TOKEN_HEADER, "").encode(), self.token(value).encode()
        )

    def open(self, value: str, now: float) -> Principal:
        """The principal of the session. `now` in seconds since the epoch.

        Raises:
            InvalidCredential: not sealed with our key, or over.
        """
        try:
            if len(value) > MAX_COOKIE_CHARS:
                raise ValueError
            body = base64.urlsafe_b64decode(value + "=" * (-len(value) % 4))
            nonce, text = body[:_NONCE_BYTES], body[_NONCE_BYTES:]
            session = msgspec.json.decode(self._cipher.decrypt(nonce, text, None), type=_Session)
        except (ValueError, binascii.Error, InvalidTag, msgspec.DecodeError) as error:
            raise InvalidCredential(Reason.SESSION) from error
        if session.expires_at <= now:
            raise InvalidCredential(Reason.EXPIRED)
        return Principal(
            session.issuer,
            session.subject,
            session.tenant,
            frozenset(session.scopes),
            session.expires_at,
            session.issued_at,
            session.credential,
        )


def _name(connection: HTTPConnection) -> tuple[str, bool]:
    """The cookie's name, and whether only TLS may carry it. Cookies know no ports, and several
    deployments may run on one machine."""
    try:
        host = urlsplit(f"//{connection.headers.get('host', '')}")
        name, port = host.hostname or "", host.port or 80
        loopback = name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        loopback, port = False, 0
    return (f"tailrace-{port}", False) if loopback else ("__Host-tailrace", True)
