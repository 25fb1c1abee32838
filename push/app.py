"""Composition root of the push service."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tailrace import settings, telemetry
from tailrace.auth.issuers import load_issuers
from tailrace.delivery import delivery, log_clients
from tailrace.protocol import errors
from tailrace.store.redis_store import RedisStore
from tailrace.store.revocations import Revocations
from tailrace.store.tickets import Tickets
from tailrace.telemetry import gc_tuning, health
from tailrace.web import access, drain, error_mapping, query_routes, runner

WS_MAX_BYTES = 16 * 1024  # commands are small


def application(
    end: query_routes.Endpoint,
    deliver: delivery.Delivery,
    redis: RedisStore,
    draining: drain.Draining,
) -> Starlette:
    """The ASGI application: queries, health, errors in the protocol's shape."""

    async def health(_: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def ready(_: Request) -> Response:
        state = await readiness(deliver, redis, draining)
        return JSONResponse(state, 200 if state["ready"] else 503)

    async def http_error(request: Request, e: Exception) -> Response:
        assert isinstance(e, HTTPException)
        error = (
            errors.method_not_allowed(request.method)
            if e.status_code == 405
            else errors.not_found(request.url.path)
        )
        return error_mapping.error_response(error)

    async def failed(_: Request, e: Exception) -> Response:
        telemetry.log(telemetry.Action.REQUEST_FAILED, error=type(e).__name__)
        return error_mapping.error_response(errors.server_error())

    return Starlette(
        routes=[Route("/health", health), Route("/ready", ready), *end.routes()],
        exception_handlers={HTTPException: http_error, Exception: failed},
    )


async def readiness(
    deliver: delivery.Delivery, redis: RedisStore, draining: drain.Draining
) -> dict[str, Any]:
    """Redis away does not make push unready: streams go on without it, only browser tickets
    fail."""
    return {
        "ready": deliver.ready and not draining.begun,
        "kafka": deliver.ready,
        "redis": await redis.reachable(),
        "draining": draining.begun,
    }


async def serve(config: settings.PushSettings) -> None:
    """Run until SIGTERM or SIGINT, then drain."""
    issuers = load_issuers(config.issuers)
    listener = runner.bind(config.host, config.port)
    known = await runner.layout(config.kafka)
    redis = RedisStore(config.redis)
    draining = drain.Draining()
    deliver = delivery.Delivery(
        log_clients.over_kafka(config.kafka, config.name),
        layout=known,
        pools=[pool.name for pool in config.pools],
        preferred=(),
    )
    keys = access.key_sets(issuers)
    gate = access.Access(keys, Tickets(redis), Revocations(redis), config.origins)
    end = query_routes.Endpoint(deliver, gate, draining)
    http = runner.server(
        end.before(application(end, deliver, redis, draining)),
        config.host,
        config.port,
        WS_MAX_BYTES,
        config.drain_s,
    )
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stop.set)
    gc_tuning.freeze()
    try:
        async with asyncio.TaskGroup() as tasks:
            background = [
                tasks.create_task(part)
                for part in (deliver.run(), http.serve(sockets=[listener]), keys.run())
            ]
            if config.admin_port:
                shown = health.AdminServer(
                    config.host, config.admin_port, lambda: readiness(deliver, redis, draining)
                )
                background.append(tasks.create_task(shown.run()))
            telemetry.log(telemetry.Action.SERVICE_STARTED, port=config.port)
            await stop.wait()
            await wind_down(end, draining, http, config.drain_s)
            for task in background:
                task.cancel()
    finally:
        await redis.aclose()
        telemetry.log(telemetry.Action.SERVICE_STOPPED)


async def wind_down(
    end: query_routes.Endpoint, draining: drain.Draining, http: runner.Server, drain_s: float
) -> None:
    """Readiness off, then sockets and streams end spread over a few seconds; clients resume
    elsewhere by their position."""
    telemetry.log(telemetry.Action.DRAIN_STARTED, sockets=len(end.sockets))
    draining.begin()
    deadline = asyncio.get_running_loop().time() + min(drain_s, drain.SPREAD_S + 2.0)
    while end.sockets and asyncio.get_running_loop().time() < deadline:  # noqa: ASYNC110 (a set that empties; this runs once)
        await asyncio.sleep(0.05)
    http.should_exit = True
    await asyncio.sleep(0.3)
