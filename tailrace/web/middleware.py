"""The outermost layer of the HTTP side: what holds for every answer, whatever produced it.

An id on each, security headers, CORS for listed origins, and the one shape of errors also for what
nobody caught.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tailrace import telemetry
from tailrace.protocol import close_codes, errors

EXPOSED = (
    "x-request-id, x-tailrace-response-id, retry-after, retry-after-ms, "
    "x-ratelimit-limit-requests, x-ratelimit-remaining-requests, x-ratelimit-reset-requests"
)
PREFLIGHT = {
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


class Edge:
    """Wraps the application; `origins` are those a browser may call from."""

    def __init__(self, app: ASGIApp, origins: Iterable[str]) -> None:
        self._app = app
        self._origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._http(scope, receive, send)
        elif scope["type"] == "websocket":
            await self._websocket(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_id = "req_" + os.urandom(12).hex()
        scope.setdefault("state", {})["request_id"] = request_id
        cors = self._cors(scope)
        started = False

        async def decorated(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers = MutableHeaders(scope=message)
                for name, value in {"x-request-id": request_id, **SECURITY_HEADERS, **cors}.items():
                    headers.setdefault(name, value)
            await send(message)

        if (
            scope["method"] == "OPTIONS"
            and cors
            and "access-control-request-method" in (asked := Headers(scope=scope))
        ):
            allowed = {
                **PREFLIGHT,
                "access-control-allow-headers": asked.get("access-control-request-headers", ""),
            }
            await _answer(decorated, 204, b"", allowed)
            return
        try:
            await self._app(scope, receive, decorated)
        # the last place before the server's own 500, which has neither our shape nor our headers
        except Exception as e:
            telemetry.log(telemetry.Action.REQUEST_FAILED, request_id=request_id, exc_info=e)
            if started:
                # a body that is not complete is cut by the server, which is the honest end of it
                return
            error = errors.server_error()
            await _answer(
                decorated,
                error.status,
                msgspec.json.encode(errors.http_body(error)),
                {"content-type": "application/json"},
            )

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_id = "req_" + os.urandom(12).hex()
        accepted = False

        async def noted(message: Message) -> None:
            nonlocal accepted
            if message["type"] in ("websocket.accept", "websocket.http.response.start"):
                message["headers"] = [
                    *message.get("headers", []),
                    (b"x-request-id", request_id.encode()),
                ]
            accepted = accepted or message["type"] in (
                "websocket.accept",
                "websocket.http.response.start",
                "websocket.close",
            )
            await send(message)

        try:
            await self._app(scope, receive, noted)
        except Exception as e:
            telemetry.log(telemetry.Action.SOCKET_FAILED, exc_info=e)
            if accepted:
                await send({"type": "websocket.close", "code": int(close_codes.CloseCode.INTERNAL)})
            else:
                error = errors.server_error()
                body = msgspec.json.encode(errors.http_body(error))
                await send(
                    {
                        "type": "websocket.http.response.start",
                        "status": error.status,
                        "headers": [(b"content-type", b"application/json")],
                    }
                )
                await send({"type": "websocket.http.response.body", "body": body})

    def _cors(self, scope: Scope) -> dict[str, str]:
        """A listed origin may read; any other gets nothing said, and its browser refuses."""
        origin = Headers(scope=scope).get("origin")
        if origin not in self._origins:
            return {}
        return {
            "access-control-allow-origin": origin,
            "access-control-expose-headers": EXPOSED,
            "cross-origin-resource-policy": "cross-origin",
            "vary": "origin",
        }


async def _answer(send: Send, status: int, body: bytes, headers: dict[str, Any]) -> None:
    raw = [
        (name.encode("latin-1"), value.encode("latin-1"))
        for name, value in {**headers, "content-length": str(len(body))}.items()
    ]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body})
