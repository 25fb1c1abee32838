"""The outermost layer of gateway and push: what holds for every answer, whatever produced it.

Each answer gets an id and the security headers, listed origins get CORS headers, HEAD is answered
wherever GET is, parameters of a GET may stand in its body, and an exception that nothing caught
becomes the API's error and a log line with its trace.
"""

from __future__ import annotations

import functools
import os
import urllib.parse
from collections.abc import Awaitable, Iterable, Mapping
from typing import Final

import msgspec
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tailrace import telemetry
from tailrace.protocol import close_codes, errors
from tailrace.web import error_mapping

EXPOSED: Final = (
    "x-request-id, x-tailrace-response-id, x-tailrace-revision, x-tailrace-cached-answer, "
    "x-tailrace-tools-left-out, retry-after, retry-after-ms, x-should-retry, "
    "x-ratelimit-limit-requests, x-ratelimit-remaining-requests, x-ratelimit-reset-requests"
)
PARAMETERS_BYTES: Final = 8_192
PREFLIGHT: Final = {
    "access-control-allow-methods": "GET, POST, DELETE, OPTIONS",
    "access-control-max-age": "600",
}
SECURITY_HEADERS: Final[Mapping[str, str]] = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class Cors:
    """Cross-origin access for listed origins. Any other origin gets no CORS header, so its
    browser does not give the answer to the page."""

    def __init__(self, origins: Iterable[str]) -> None:
        self._origins = frozenset(origins)

    def headers(self, request_headers: Headers) -> dict[str, str]:
        """What an answer to this request gets; empty for an origin that is not listed."""
        origin = request_headers.get("origin")
        if origin not in self._origins:
            return {}
        return {
            "access-control-allow-origin": origin,
            "access-control-expose-headers": EXPOSED,
            "cross-origin-resource-policy": "cross-origin",
            "vary": "origin",
        }

    def preflight(self, scope: Scope, request_headers: Headers) -> Response | None:
        """The answer to a preflight request of a listed origin; None for every other request."""
        if (
            scope["method"] != "OPTIONS"
            or request_headers.get("origin") not in self._origins
            or "access-control-request-method" not in request_headers
        ):
            return None
        allow_headers = request_headers.get("access-control-request-headers", "")
        return Response(
            status_code=204, headers={**PREFLIGHT, "access-control-allow-headers": allow_headers}
        )


class OuterMiddleware:
    """Wraps an application; `origins` are those that a browser may call from."""

    def __init__(self, app: ASGIApp, origins: Iterable[str]) -> None:
        self._app = app
        self._cors = Cors(origins)

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        # Not a coroutine itself: that would be one more frame for as long as a socket is open.
        if scope["type"] == "http":
            return self._http(scope, receive, send)
        if scope["type"] == "websocket":
            return self._websocket(scope, receive, send)
        return self._app(scope, receive, send)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_headers = Headers(scope=scope)
        request_id = _request_id()
        scope.setdefault("state", {})["request_id"] = request_id
        response_headers = {
            "x-request-id": request_id,
            **SECURITY_HEADERS,
            **self._cors.headers(request_headers),
        }
        started = False

        def send_decorated(message: Message) -> Awaitable[None]:
            # Not a coroutine itself: it passes every part of the answer on.
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                _add(message, response_headers)
            return send(message)

        preflight = self._cors.preflight(scope, request_headers)
        if preflight is not None:
            await preflight(scope, receive, send_decorated)
            return
        serve = self._app
        if scope["method"] == "HEAD":
            serve = functools.partial(_head, serve)
        elif scope["method"] == "GET" and _has_body(request_headers):
            scope = await _with_parameters_of_body(scope, receive)
        try:
            await serve(scope, receive, send_decorated)
        except Exception as error:
            # The last place before the server's own 500, which has neither shape nor headers.
            telemetry.log(telemetry.Action.REQUEST_FAILED, request_id=request_id, exc_info=error)
            if not started:  # a body that has begun is cut by the server: it did not end
                response = error_mapping.error_response(errors.server_error())
                await response(scope, receive, send_decorated)

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_id = _request_id()
        is_answered = False

        def send_decorated(message: Message) -> Awaitable[None]:
            # Not a coroutine itself: it passes every message of the socket on.
            nonlocal is_answered
            if not is_answered:
                is_answered = True
                if message["type"] == "websocket.accept":
                    _add(message, {"x-request-id": request_id})
                elif message["type"] == "websocket.http.response.start":
                    cors = self._cors.headers(Headers(scope=scope))
                    _add(message, {"x-request-id": request_id, **SECURITY_HEADERS, **cors})
            return send(message)

        try:
            await self._app(scope, receive, send_decorated)
        except Exception as error:
            telemetry.log(telemetry.Action.SOCKET_FAILED, request_id=request_id, exc_info=error)
            if is_answered:
                await send({"type": "websocket.close", "code": int(close_codes.CloseCode.INTERNAL)})
            else:
                response = error_mapping.error_response(errors.server_error())
                await response(scope, receive, send_decorated)


async def _head(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer HEAD with the head of the answer to GET. Its body is not waited for: a stream would
    not end."""
    is_answered = False

    async def send_head(message: Message) -> None:
        nonlocal is_answered
        if not is_answered:
            is_answered = True
            await send(message)
            # The server tells the application from now on that the client has left.
            await send({"type": "http.response.body", "body": b""})

    await app({**scope, "method": "GET"}, receive, send_head)


def _has_body(headers: Headers) -> bool:
    return headers.get("content-length", "0") != "0" or "transfer-encoding" in headers


async def _with_parameters_of_body(scope: Scope, receive: Receive) -> Scope:
    """The scope of a GET with the members of its JSON body as parameters of the query; those that
    the query has stay. A generated client (openai-go 3.99) sends `stream` so, without a type, and
    takes an answer that is no stream for an empty one. What is no small JSON object, or said to be
    of another type, is ignored (RFC 9110, 9.3.1).
    """
    kind = Headers(scope=scope).get("content-type", "application/json")
    if kind.partition(";")[0].strip().lower() != "application/json":
        return scope
    body = b""
    more = True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            return scope
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > PARAMETERS_BYTES:
            return scope
    try:
        members = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeError, RecursionError, ValueError):
        return scope
    if not isinstance(members, dict):
        return scope
    query = scope["query_string"].decode("latin-1")
    there = dict(urllib.parse.parse_qsl(query, keep_blank_values=True))
    more_parameters = {
        name: value if isinstance(value, str) else msgspec.json.encode(value).decode()
        for name, value in members.items()
        if name not in there and isinstance(value, str | int | float)
    }
    parts = [part for part in (query, urllib.parse.urlencode(more_parameters)) if part]
    return {**scope, "query_string": "&".join(parts).encode("latin-1")}


def _request_id() -> str:
    return "req_" + os.urandom(12).hex()


def _add(message: Message, extra: Mapping[str, str]) -> None:
    """Add headers to the start of an answer. A header that is there already stays as it is, except
    `vary`, which is joined."""
    message.setdefault("headers", [])
    headers = MutableHeaders(scope=message)
    for name, value in extra.items():
        if name == "vary":
            headers.add_vary_header(value)
        else:
            headers.setdefault(name, value)
