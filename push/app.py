"""Composition root of the push service."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from push import access, delivery, drain, endpoint, refusals, settings, sockets
from tailrace import log, telemetry
from tailrace.auth import credentials
from tailrace.protocol import errors
from tailrace.store import redis_store
from tailrace.telemetry import gc_tuning, health

WS_MAX_BYTES = 16 * 1024  # commands are small
FLUSH_DEADLINE_MS = 30_000
SEND_BUFFER_BYTES = 256 * 1024


class Server(uvicorn.Server):
    """uvicorn without its own signal handlers: the composition root owns the signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        """No handlers."""
        yield


def application(end: endpoint.Endpoint, deliver: delivery.Delivery, redis: redis_store.Sessions, draining: drain.Draining) -> Starlette:
    """The ASGI application: queries, health, errors in the protocol's shape."""

    async def health(_: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def ready(_: Request) -> Response:
        state = await readiness(deliver, redis, draining)
        return JSONResponse(state, 200 if state["ready"] else 503)

    async def http_error(request: Request, e: Exception) -> Response:
        assert isinstance(e, HTTPException)
        error = errors.method_not_allowed(request.method) if e.status_code == 405 else errors.not_found(request.url.path)
        return refusals.error_response(error)

    async def failed(_: Request, e: Exception) -> Response:
        telemetry.log(telemetry.Action.REQUEST_FAILED, error=type(e).__name__)
        return refusals.error_response(errors.server_error())

    return Starlette(
        routes=[Route("/health", health), Route("/ready", ready), *end.routes()],
        exception_handlers={HTTPException: http_error, Exception: failed},
    )


async def readiness(deliver: delivery.Delivery, redis: redis_store.Sessions, draining: drain.Draining) -> dict[str, Any]:
    """Redis away does not make push unready: streams go on without it, only browser tickets fail."""
    return {"ready": deliver.ready and not draining.begun, "kafka": deliver.ready, "redis": await redis.reachable(), "draining": draining.begun}


def server(app: Any, host: str, port: int, ws_max_bytes: int, drain_s: float) -> Server:
    """uvicorn as this project runs it: no deflate, small messages, bounded shutdown."""
    return Server(
        uvicorn.Config(
            app,
            host=host,
            port=port,
            loop="uvloop",
            http="httptools",
            ws=sockets.Protocol,
            ws_max_size=ws_max_bytes,
            ws_per_message_deflate=False,
            ws_ping_interval=20.0,
            ws_ping_timeout=20.0,
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=max(1, int(drain_s)),
        )
    )


async def serve(config: settings.Settings) -> None:
    """Run until SIGTERM or SIGINT, then drain."""
    issuers = credentials.load_issuers(config.issuers)
    listener = bind(config.host, config.port)
    known = await layout(config.kafka)
    redis = redis_store.Sessions(config.redis)
    draining = drain.Draining()
    deliver = delivery.Delivery(bootstrap=config.kafka, layout=known, pools=tuple(config.pools), home=(), client_id=config.name)
    keys = access.key_sets(issuers)
    gate = access.Access(keys, redis, config.origins)
    end = endpoint.Endpoint(deliver, gate, draining)
    http = server(end.before(application(end, deliver, redis, draining)), config.host, config.port, WS_MAX_BYTES, config.drain_s)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stop.set)
    gc_tuning.settle()
    try:
        async with asyncio.TaskGroup() as tasks:
            background = [tasks.create_task(part) for part in (deliver.run(), http.serve(sockets=[listener]), keys.run())]
            if config.admin_port:
                shown = health.AdminServer(config.host, config.admin_port, lambda: readiness(deliver, redis, draining))
                background.append(tasks.create_task(shown.run()))
            telemetry.log(telemetry.Action.SERVICE_STARTED, port=config.port)
            await stop.wait()
            await wind_down(end, draining, http, config.drain_s)
            for task in background:
                task.cancel()
    finally:
        await redis.aclose()
        telemetry.log(telemetry.Action.SERVICE_STOPPED)


async def wind_down(end: endpoint.Endpoint, draining: drain.Draining, http: Server, drain_s: float) -> None:
    """Readiness off, then sockets and streams end spread over a few seconds; clients resume elsewhere by their position."""
    telemetry.log(telemetry.Action.DRAIN_STARTED, sockets=len(end.sockets))
    draining.begin()
    deadline = asyncio.get_running_loop().time() + min(drain_s, drain.SPREAD_S + 2.0)
    while end.sockets and asyncio.get_running_loop().time() < deadline:  # noqa: ASYNC110 (a set that empties; this runs once)
        await asyncio.sleep(0.05)
    http.should_exit = True
    await asyncio.sleep(0.3)


def bind(host: str, port: int) -> socket.socket:
    """Here and not in the server, so that a port that is taken is said at once and by name; nobody is let in before the server listens."""
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            # Inherited by every connection: one that was given up as slow still has bytes to flush, and its peer may never take them.
            bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, FLUSH_DEADLINE_MS)
        # Inherited too: else a loopback or local network buffers megabytes per slow client before anyone notices it.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        bound.bind((host, port))
    except OSError as e:
        bound.close()
        raise settings.Misconfigured(f"TAILRACE_HOST, TAILRACE_PORT: cannot listen on {host}:{port}: {e.strerror}") from e
    return bound


async def layout(bootstrap: str) -> log.Layout:
    """Which log this is; waits for a broker that is still starting, and for topics that are still being applied."""
    said = ""
    while True:
        try:
            return await log.layout(bootstrap)
        except log.LogUnavailable as e:
            if str(e) != said:
                said = str(e)
                telemetry.log(telemetry.Action.WAITING, reason=said)
            await asyncio.sleep(log.RETRY_S)
