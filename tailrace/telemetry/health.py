"""Health, readiness and metrics of a service, on an address of their own."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable
from typing import Any, Final

from tailrace import telemetry

Readiness = Callable[[], dict[str, Any] | Awaitable[dict[str, Any]]]

_REQUEST_BYTES: Final = 8192
_REQUEST_S: Final = 5.0
_READY_S: Final = 2.0
_STATUS: Final = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    503: "Service Unavailable",
}


class AdminServer:
    """Health, readiness and metrics on an address of their own, one answer per connection.

    Plain asyncio: it takes no signal handlers, logs nothing, and ends when the task that runs it is
    cancelled. `ready` gives the JSON of /ready, whose member `ready` decides between 200 and 503.
    `port` is the one listened on, also when 0 was asked for, as soon as `listening` is set.
    """

    def __init__(self, host: str, port: int, ready: Readiness) -> None:
        self.host = host
        self.port = port
        self.listening = asyncio.Event()
        self._ready = ready

    async def run(self) -> None:
        """Raises OSError when the address is taken."""
        server = await asyncio.start_server(self._serve, self.host, self.port, limit=_REQUEST_BYTES)
        async with server:
            self.port = server.sockets[0].getsockname()[1]
            self.listening.set()
            await server.serve_forever()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_REQUEST_S):
                request = await reader.readuntil(b"\r\n\r\n")
                writer.write(await self._answer(request))
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # a client that does not finish its request or leaves gets nothing
        finally:
            writer.close()

    async def _answer(self, request: bytes) -> bytes:
        words = request.partition(b"\r\n")[0].split(b" ")
        if len(words) != 3:
            return _http(400, b"", "text/plain")
        method, path = words[0], words[1].partition(b"?")[0]
        if method not in (b"GET", b"HEAD"):
            return _http(405, b"", "text/plain")
        answer = await self._page(path)
        return answer.partition(b"\r\n\r\n")[0] + b"\r\n\r\n" if method == b"HEAD" else answer

    async def _page(self, path: bytes) -> bytes:
        if path == b"/health":  # answered by the loop that does the work: if it hangs, this does
            return _http(200, b'{"status":"ok"}', "application/json")
        if path == b"/metrics":
            return _http(200, *telemetry.exposed())
        if path == b"/ready":
            state = await self._state()
            return _http(
                200 if state.get("ready") is True else 503,
                json.dumps(state, default=str).encode(),
                "application/json",
            )
        return _http(404, b"", "text/plain")

    async def _state(self) -> dict[str, Any]:
        try:
            async with asyncio.timeout(_READY_S):
                state = self._ready()
                return await state if inspect.isawaitable(state) else state
        except Exception as error:  # whoever cannot say whether it is ready is not
            return {"ready": False, "detail": telemetry.describe(error)}


def _http(status: int, body: bytes, content_type: str) -> bytes:
    head = (
        f"HTTP/1.1 {status} {_STATUS[status]}\r\ncontent-type: "
        f"{content_type}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body
