"""Identifies callers through a gateway, which does so for its own callers.

A browser session also begins and ends at the gateway; its responses are passed through, with the
cookie. So this service has no key of its own, a revoked credential is refused here as there, and a
caller that cannot be checked is refused.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from http import cookiejar
from typing import Any, Final

import httpx
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

SCOPE: Final = "admin"
SESSION: Final = "/v1/session"
MAX_BODY_BYTES: Final = 16 * 1024
ASK_S: Final = 5.0
# For this time a revoked credential is still accepted.
CACHE_S: Final = 10.0
MAX_CACHED: Final = 1_000
# The gateway names cookies and compares origins by the host of the browser's request.
_REQUEST_HEADERS: Final = (
    "authorization",
    "content-type",
    "host",
    "origin",
    "sec-fetch-site",
    "x-tailrace-session",
)
_ANSWER_HEADERS: Final = ("set-cookie", "retry-after", "cache-control")
_COOKIES: Final = ("tailrace-", "__Host-tailrace")


class Refused(Exception):
    """The caller gets this answer."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.headers: dict[str, str] = {}

    def answer(self) -> JSONResponse:
        """In the shape of the API's errors."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        error = {"message": str(self), "type": kind, "param": None, "code": self.code}
        return JSONResponse({"error": error}, self.status, headers=self.headers)


class Callers:
    """Checks callers at one gateway.

    Attributes:
        _cache: callers with the scope, by a digest of their credentials, with the time (monotonic
            seconds) of the next check.
    """

    def __init__(
        self,
        url: str,
        *,
        transport: httpx.AsyncBaseTransport | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._cache: dict[bytes, float] = {}
        self._http = httpx.AsyncClient(
            base_url=url,
            transport=transport,
            timeout=ASK_S,
            follow_redirects=False,
            trust_env=False,
            # A session that the gateway begins is its browser's, and never the next caller's.
            cookies=cookiejar.CookieJar(cookiejar.DefaultCookiePolicy(allowed_domains=[])),
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def admit(self, request: Request) -> None:
        """Admit a caller whose credential or session has the scope `admin`.

        Raises:
            Refused: 401 without a valid one, 403 without the scope or for a page of another origin,
                429 from the gateway, 503 when it does not answer.
        """
        headers = _caller_headers(request)
        if "authorization" not in headers and "cookie" not in headers:
            raise Refused(401, "invalid_api_key", "Sign in, or send a credential.")
        now, digest = self._clock(), _digest(headers)
        if self._cache.get(digest, 0.0) > now:
            return
        answer = await self._ask("GET", headers | _hops(request))
        if answer.status_code != 200:
            raise _refusal(answer)
        who = _object(answer)
        if not isinstance(who.get("subject"), str):
            raise Refused(401, "invalid_api_key", "The session is over. Sign in again.")
        scopes = who.get("scopes")
        if not isinstance(scopes, list) or SCOPE not in scopes:
            raise Refused(
                403,
                "insufficient_scope",
                f"The credential of {who['subject']} does not have the scope `{SCOPE}`.",
            )
        self._store(digest, now)

    async def session(self, request: Request) -> Response:
        """`/v1/session`: the gateway's answer."""
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > MAX_BODY_BYTES:
                raise Refused(413, "request_too_large", "A credential is not so long.")
        if request.method == "DELETE":
            self._cache.clear()
        reply = await self._ask(request.method, _caller_headers(request) | _hops(request), body)
        answer = Response(reply.content, reply.status_code, media_type="application/json")
        for name, value in reply.headers.multi_items():
            if name in _ANSWER_HEADERS:
                answer.headers.append(name, value)
        return answer

    async def _ask(self, method: str, headers: dict[str, str], body: bytes = b"") -> httpx.Response:
        try:
            return await self._http.request(method, SESSION, headers=headers, content=body)
        except httpx.HTTPError as error:
            raise Refused(
                503, "gateway_unavailable", "The gateway that knows who you are does not answer."
            ) from error

    def _store(self, digest: bytes, now: float) -> None:
        if len(self._cache) >= MAX_CACHED:
            self._cache = {key: until for key, until in self._cache.items() if until > now}
        if len(self._cache) < MAX_CACHED:
            self._cache[digest] = now + CACHE_S


def _caller_headers(request: Request) -> dict[str, str]:
    """The caller's credentials as headers. Cookies of other programs are not passed on."""
    headers = {name: value for name in _REQUEST_HEADERS if (value := request.headers.get(name))}
    ours = [
        f"{name}={value}" for name, value in request.cookies.items() if name.startswith(_COOKIES)
    ]
    return {**headers, "cookie": "; ".join(ours)} if ours else headers


def _hops(request: Request) -> dict[str, str]:
    """The caller's address, as a proxy adds it to the former ones. A gateway that trusts this
    service counts refused credentials against the caller, so one caller's wrong ones lock out
    nobody else."""
    if request.client is None:
        return {}
    return {
        "x-forwarded-for": ", ".join(
            [*request.headers.getlist("x-forwarded-for"), request.client.host]
        )
    }


def _digest(headers: dict[str, str]) -> bytes:
    text = "\n".join(f"{name}: {value}" for name, value in sorted(headers.items()))
    return hashlib.blake2b(text.encode(), digest_size=32).digest()


def _object(answer: httpx.Response) -> dict[str, Any]:
    try:
        content = answer.json()
    except ValueError:
        content = None
    return content if isinstance(content, dict) else {}


def _refusal(answer: httpx.Response) -> Refused:
    """The gateway's error. A response that is not an error is refused too, as 502."""
    error = _object(answer).get("error")
    error = error if isinstance(error, dict) else {}
    status = answer.status_code if 400 <= answer.status_code < 600 else 502
    refusal = Refused(
        status,
        str(error.get("code") or f"http_{answer.status_code}"),
        str(error.get("message") or f"The gateway answered {answer.status_code}."),
    )
    if (after := answer.headers.get("retry-after")) is not None:
        refusal.headers["retry-after"] = after
    return refusal
