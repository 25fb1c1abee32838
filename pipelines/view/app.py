"""The service: its routes, and how it runs as a process."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final, NamedTuple

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pipelines import definition
from pipelines.view import files, plots, status
from pipelines.view.callers import Callers, Refused
from pipelines.view.watcher import EVERY_S, Watcher
from tailrace.log import Offsets

DEFAULT_MINUTES: Final = 60
MOST_CONNECTIONS: Final = 200
GRACE_S: Final = 3
_HEADERS: Final = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
_NO_STORE: Final = {"cache-control": "no-store"}


class View:
    """The answers of the service.

    Attributes:
        _prices: of a million tokens of input and of output; zeros where none were given.
    """

    def __init__(
        self,
        pipelines: Sequence[definition.Pipeline],
        watcher: Watcher,
        callers: Callers,
        results: plots.Plots,
        prices: tuple[float, float] = (0.0, 0.0),
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._pipelines = pipelines
        self._watcher = watcher
        self._callers = callers
        self._results = results
        self._prices = prices
        self._clock = clock

    def application(self, page: Sequence[BaseRoute] = ()) -> ASGIApp:
        """The ASGI application; `page`: the routes of its files."""
        app = Starlette(
            routes=[
                Route("/health", self.health, methods=["GET"]),
                Route("/v1/session", self._callers.session, methods=["GET", "POST", "DELETE"]),
                Route("/v1/pipelines", self.list_pipelines, methods=["GET"]),
                Route("/v1/analytics", self.analytics, methods=["GET"]),
                *page,
            ],
            exception_handlers={Refused: _refusal, HTTPException: _http, Exception: _failure},
        )
        app.router.redirect_slashes = False  # a redirect would use the address in `Host`
        return _with_headers(app)

    async def health(self, _request: Request) -> Response:
        """`GET /health`: the process runs."""
        return JSONResponse({"status": "ok"})

    async def list_pipelines(self, request: Request) -> Response:
        """`GET /v1/pipelines`: every pipeline, as last observed."""
        await self._callers.admit(request)
        data = [
            status.members(each, self._watcher.observations[each.name], self._prices)
            for each in self._pipelines
        ]
        return JSONResponse(
            {"object": "list", "every_s": EVERY_S, "now": self._clock(), "data": data},
            headers=_NO_STORE,
        )

    async def analytics(self, request: Request) -> Response:
        """`GET /v1/analytics?minutes=60`, or `?from=…&to=…` (ISO 8601 with a zone; `to` may be
        left out): the results of the range."""
        await self._callers.admit(request)
        try:
            time_range = plots.range_of(*self._times(request))
        except ValueError as error:
            raise Refused(400, "invalid_value", f"The range: {error}.") from error
        try:
            results = await self._results.results_for(time_range)
        except plots.NoStore as error:
            raise Refused(404, "no_store", str(error)) from error
        except plots.StoreBusy as error:
            raise Refused(
                503, "store_busy", "Another program has the store of analytics open."
            ) from error
        except plots.StoreUnavailable as error:
            raise Refused(503, "store_unavailable", str(error)) from error
        return JSONResponse({"object": "analytics", **results}, headers=_NO_STORE)

    def _times(self, request: Request) -> tuple[int, int]:
        """Begin and end in ms. Raises ValueError."""
        params = request.query_params
        if unknown := sorted(set(params) - {"minutes", "from", "to"}):
            raise ValueError(f"no parameter is called {unknown[0][:40]!r}")
        if "minutes" in params and len(params) > 1:
            raise ValueError("`minutes` stands alone")
        until = _ms(params["to"]) if "to" in params else int(self._clock() * 1000)
        if "from" in params:
            return _ms(params["from"]), until
        minutes = params.get("minutes", str(DEFAULT_MINUTES))
        if not (minutes.isascii() and minutes.isdigit() and len(minutes) < 10):
            raise ValueError("`minutes` is no whole number")
        return until - int(minutes) * 60_000, until


def _ms(text: str) -> int:
    at = datetime.fromisoformat(text)
    if at.tzinfo is None:
        raise ValueError("a time needs a zone, such as Z")
    return int(at.timestamp() * 1000)


async def _refusal(_request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    error.headers |= _NO_STORE
    return error.answer()


async def _http(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "http_error")
    return Refused(error.status_code, code, error.detail).answer()


async def _failure(_request: Request, _error: Exception) -> Response:
    # Starlette raises it once more, so the server's log has the traceback.
    return Refused(500, "server_error", "The service failed. Its log says why.").answer()


def _with_headers(app: ASGIApp) -> ASGIApp:
    async def with_headers(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await app(scope, receive, send_with_headers)

    return with_headers


class Options(NamedTuple):
    """Options of `serve`. `store`: None without analytics; `prices`: see View."""

    kafka: str
    url: str
    host: str
    port: int
    page: Path
    store: plots.Reader | None = None
    prices: tuple[float, float] = (0.0, 0.0)


async def serve(
    pipelines: Sequence[definition.Pipeline], options: Options, ready: Callable[[], None]
) -> None:
    """Serve until SIGTERM or Ctrl-C; `ready` is called once it listens.

    Raises:
        files.NoPage
        OSError: the address is in use, or not an address of this machine.
    """
    page = files.Files(options.page).routes()
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    with socket.create_server((options.host, options.port), family=family) as listening:
        callers = Callers(options.url)
        watcher = Watcher(pipelines, Offsets(options.kafka, client_id="tailrace-view"))
        results = plots.Plots(options.store)
        view = View(pipelines, watcher, callers, results, options.prices)
        server = _Server(
            uvicorn.Config(
                view.application(page),
                ws="none",
                lifespan="off",
                access_log=False,
                log_config=None,
                server_header=False,
                proxy_headers=False,
                limit_concurrency=MOST_CONNECTIONS,
                timeout_graceful_shutdown=GRACE_S,
            )
        )
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, server.end)
        ready()
        try:
            async with asyncio.TaskGroup() as tasks:
                looking = tasks.create_task(watcher.run())
                await server.serve(sockets=[listening])
                looking.cancel()
        finally:
            await callers.close()
            results.close()


class _Server(uvicorn.Server):
    """Does not handle signals; the process does."""

    def end(self) -> None:
        self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
