"""The credential for a server: a key, a key in a file, or an access token of OAuth2 client
credentials (RFC 6749, 4.4).

    a key in a file     read at every request, so that a rotated one is used at once
    an access token     fetched at the first request, renewed before it expires

After a 401 both try another credential once. No error text contains a credential.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import quote_plus

import httpx

from worker.engines import base

FETCH_S: Final = 10.0
RENEW_BEFORE: Final = 0.1  # part of a token's lifetime
RENEW_BEFORE_MAX_S: Final = 60.0
FRESH_S: Final = 5.0  # a refused token that is younger is not replaced
FIRST_PAUSE_S: Final = 1.0
MAX_PAUSE_S: Final = 30.0
UNREADABLE_PAUSE_S: Final = 2.0
# Characters that a header may have; excludes line breaks.
_CREDENTIAL: Final = re.compile(r"[\x21-\x7e]{1,16384}")
_ERROR_CODE: Final = re.compile(r"[a-z_]{1,40}")


class Credentials(Protocol):
    """Where the credential comes from."""

    async def current(self) -> str:
        """The credential to send.

        Raises:
            Busy: none is available now.
        """

    async def instead_of(self, refused: str) -> str | None:
        """A credential other than the refused one; None without one.

        Raises:
            Busy: none is available now.
        """


class Key:
    """One key that never changes."""

    def __init__(self, key: str) -> None:
        self._key = key

    async def current(self) -> str:
        return self._key

    async def instead_of(self, refused: str) -> str | None:
        return None


class KeyFile:
    """A key in a file.

    Attributes:
        _last: the last key that was read; empty before. Used while the file is unreadable, because
            a rotation may replace it in several steps.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._last = ""

    async def current(self) -> str:
        try:
            self._last = secret_in(self._path)
        except ValueError as error:
            if not self._last:
                raise base.Busy(f"the key file: {error}", UNREADABLE_PAUSE_S) from None
        return self._last

    async def instead_of(self, refused: str) -> str | None:
        key = await self.current()
        return key if key != refused else None


@dataclass(frozen=True, slots=True)
class Client:
    """A client of an authorization server. `scope` and `audience` may be empty."""

    token_url: str
    client_id: str
    secret_file: Path
    scope: str = ""
    audience: str = ""


@dataclass(frozen=True, slots=True)
class _Token:
    """Times are monotonic seconds."""

    value: str
    fetched_at: float
    renew_at: float
    expires_at: float


class ClientCredentials:
    """Access tokens of a client. One request at a time fetches one; the others wait for it.

    Attributes:
        _token: the last fetched token; None before.
        _failures: fetches that failed in a row.
        _not_before: when the token endpoint may be called again.
    """

    def __init__(self, client: Client, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        # Its own connections: requests that wait for a token may hold all of the other ones.
        self._http = httpx.AsyncClient(timeout=FETCH_S)
        self._lock = asyncio.Lock()
        self._token: _Token | None = None
        self._failures = 0
        self._not_before = 0.0

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def current(self) -> str:
        token = self._token
        if token is None or self._clock() >= token.renew_at:
            token = await self._another_than(token, refused=False)
        return token.value

    async def instead_of(self, refused: str) -> str | None:
        token = self._token
        if token is None or token.value == refused:
            if token is not None and self._clock() - token.fetched_at < FRESH_S:
                return None
            token = await self._another_than(token, refused=True)
        return token.value if token.value != refused else None

    async def _another_than(self, old: _Token | None, *, refused: bool) -> _Token:
        async with self._lock:
            if self._token is not None and self._token is not old:
                return self._token  # the one that waited before has fetched it
            try:
                self._token = await self._fetch_token()
            except base.Busy:
                if old is None or refused or self._clock() >= old.expires_at:
                    raise
                return old
            return self._token

    async def _fetch_token(self) -> _Token:
        """A new token.

        Raises:
            Busy: the token endpoint issues none now.
        """
        now = self._clock()
        if now < self._not_before:
            raise base.Busy("the token endpoint failed a moment ago", self._not_before - now)
        try:
            token = _token(await self._request_token(), now)
        except ValueError as error:
            self._failures += 1
            pause_s = min(MAX_PAUSE_S, FIRST_PAUSE_S * 2 ** min(self._failures - 1, 10))
            pause_s *= random.uniform(0.5, 1.0)
            self._not_before = now + pause_s
            host = httpx.URL(self._client.token_url).host
            raise base.Busy(f"no access token from {host}: {error}", pause_s) from None
        self._failures = 0
        return token

    async def _request_token(self) -> httpx.Response:
        """The endpoint's response.

        Raises:
            ValueError: there is none.
        """
        client = self._client
        # RFC 6749, 2.3.1: both are encoded as in a form before they become Basic.
        basic = httpx.BasicAuth(
            quote_plus(client.client_id), quote_plus(secret_in(client.secret_file))
        )
        form = {"grant_type": "client_credentials"}
        form |= {"scope": client.scope} if client.scope else {}
        form |= {"audience": client.audience} if client.audience else {}
        try:
            return await self._http.post(
                client.token_url, data=form, auth=basic, headers={"accept": "application/json"}
            )
        except (httpx.HTTPError, httpx.StreamError) as error:
            raise ValueError(f"it does not answer ({type(error).__name__})") from None


class Bearer(httpx.Auth):
    """Sends the credential, and retries once with another one if the server refuses it."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials

    async def async_auth_flow(
        self, request: httpx.Request
    ) -> AsyncGenerator[httpx.Request, httpx.Response]:
        credential = await self._credentials.current()
        request.headers["authorization"] = f"Bearer {credential}"
        answer = yield request
        if answer.status_code != 401:
            return
        other = await self._credentials.instead_of(credential)
        if other is not None:
            request.headers["authorization"] = f"Bearer {other}"
            yield request


def secret_in(path: Path) -> str:
    """The one secret in a file, without white space around it.

    Raises:
        ValueError: it is unreadable or has other content. The text shows nothing of it.
    """
    try:
        secret = path.read_text(encoding="ascii").strip()
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror})") from None
    except UnicodeError:
        secret = ""
    if not _CREDENTIAL.fullmatch(secret):
        raise ValueError(f"{path} has to hold one line of printable ASCII without spaces")
    return secret


def _token(answer: httpx.Response, asked_at: float) -> _Token:
    """
    Raises:
        ValueError: the answer has no token. Its text shows only the error's code.
    """
    try:
        members: Any = answer.json()
    except ValueError:
        members = None
    members = members if isinstance(members, dict) else {}
    if answer.status_code != 200:
        code = members.get("error")
        code_text = f" ({code})" if isinstance(code, str) and _ERROR_CODE.fullmatch(code) else ""
        raise ValueError(f"it answered {answer.status_code}{code_text}")
    value, kind = members.get("access_token"), members.get("token_type", "bearer")
    if not isinstance(value, str) or not _CREDENTIAL.fullmatch(value):
        raise ValueError("its answer has no access token")
    if not isinstance(kind, str) or kind.lower() != "bearer":
        raise ValueError("its token is no bearer token")
    try:
        lifetime_s = max(0.0, float(members.get("expires_in") or "inf"))
    except (TypeError, ValueError):
        lifetime_s = float("inf")
    early_s = min(RENEW_BEFORE_MAX_S, lifetime_s * RENEW_BEFORE)
    expires_at = asked_at + lifetime_s
    return _Token(value, asked_at, expires_at - early_s, expires_at)
