"""The admin listener of a service: health, readiness and metrics on an address of their own."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import socket
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tailrace import settings, telemetry
from tailrace.connections import caps, http_protocol

Readiness = Callable[[], dict[str, Any] | Awaitable[dict[str, Any]]]

READY_S: Final = 2.0
KEEP_ALIVE_S: Final = 5
# Probes and scrapers hold a few. A client of this port has the bounds of any other.
MAX_CONNECTIONS: Final = 128
MAX_CONNECTIONS_PER_ADDRESS: Final = 64


class Server(uvicorn.Server):
    """uvicorn without its own signal handlers: the composition root owns the signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no handlers."""
        yield


class AdminServer:
    """Serves /health, /ready and /metrics until the task that runs it is cancelled.

    It listens from its construction on.

    Attributes:
        port: the one listened on, also if 0 was configured.
    """

    def __init__(self, host: str, port: int, ready: Readiness) -> None:
        """`ready` returns the JSON of /ready, or waits for it; its member `ready` decides between
        200 and 503.

        Raises:
            settings.Misconfigured: the address is taken.
        """
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self._listener = socket.create_server((host, port), family=family)
        except OSError as error:
            raise settings.Misconfigured(
                f"TAILRACE_HOST, TAILRACE_ADMIN_PORT: cannot listen on {host}:{port}: "
                f"{error.strerror}"
            ) from error
        self.port: int = self._listener.getsockname()[1]
        self._server = Server(
            uvicorn.Config(
                application(ready),
                loop="none",
                http=http_protocol.over(caps.Caps(MAX_CONNECTIONS, MAX_CONNECTIONS_PER_ADDRESS)),
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=False,
                proxy_headers=False,
                timeout_keep_alive=KEEP_ALIVE_S,
            )
        )

    async def run(self) -> None:
        """Serve until cancelled."""
        serving = asyncio.ensure_future(self._server.serve(sockets=[self._listener]))
        try:
            await asyncio.shield(serving)
        finally:
            # Cancelling uvicorn would leave its listener open.
            self._server.should_exit = self._server.force_exit = True
            await serving


def application(ready: Readiness) -> Starlette:
    """The three routes. Every other answer is a status without a body."""

    async def health(_: Request) -> Response:
        # Answered by the loop that does the work: when that hangs, this does.
        return Response(b'{"status":"ok"}', media_type="application/json")

    async def metrics(_: Request) -> Response:
        telemetry.TASKS.set(len(asyncio.all_tasks()))
        body, content_type = telemetry.exposition()
        return Response(body, headers={"content-type": content_type})

    async def readiness(_: Request) -> Response:
        state = await _state(ready)
        return _json(state, 200 if state.get("ready") is True else 503)

    async def on_refusal(_: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return Response(status_code=error.status_code, media_type="text/plain")

    app = Starlette(
        routes=[
            Route("/health", health),
            Route("/metrics", metrics),
            Route("/ready", readiness),
        ],
        exception_handlers={HTTPException: on_refusal},
    )
    app.router.redirect_slashes = False
    return app


async def _state(ready: Readiness) -> dict[str, Any]:
    try:
        async with asyncio.timeout(READY_S):
            state = ready()
            return await state if inspect.isawaitable(state) else state
    except Exception as error:  # a service that cannot say whether it is ready is not ready
        return {"ready": False, "detail": telemetry.describe(error)}


def _json(content: dict[str, Any], status: int = 200) -> Response:
    return Response(json.dumps(content, default=str), status, media_type="application/json")
