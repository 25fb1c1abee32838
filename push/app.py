"""Composition root of the push service."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any, Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from tailrace import admin, log, settings, telemetry
from tailrace.archive import reader
from tailrace.auth.issuers import Issuers, load_issuers
from tailrace.delivery import delivery, feed, kept_bytes, log_clients, pool_topics, revocations
from tailrace.store.queues import Queues
from tailrace.store.redis_store import RedisStore
from tailrace.store.tickets import Tickets
from tailrace.telemetry import gc_tuning
from tailrace.web import (
    access,
    admitted,
    drain,
    error_mapping,
    listener,
    middleware,
    query_routes,
    runner,
    server,
    shares,
    write_deadline,
)

WS_MAX_BYTES: Final = 16 * 1024  # commands are small
LAST_WRITES_S: Final = 0.3


class Push:
    """All parts of one process, wired."""

    def __init__(
        self,
        config: settings.PushSettings,
        issuers: Issuers,
        layout: log.Layout,
        clients: log_clients.LogClients,
        redis: RedisStore,
    ) -> None:
        self._config = config
        self.draining = drain.Draining()
        self.checks = write_deadline.DeadlineChecks()
        self.redis = redis
        self.pools = settings.CurrentPools(
            config.pools, admit=lambda pools: pool_topics.check(clients.offsets, pools)
        )
        self.delivery = delivery.Delivery(
            clients,
            layout=layout,
            pools=self.pools.ever,
            preferred=(),
            request_bytes=kept_bytes.KeptBytes(config.limits.kept_bytes_per_principal),
            archive=reader.open_reader(config.archive),
            queues=Queues(self.redis),
        )
        self.key_sets = access.key_sets(issuers)
        self.revocations = revocations.Revocations(clients.revocations, clients.offsets)
        gate = access.Access(
            self.key_sets,
            Tickets(self.redis),
            self.revocations,
            admitted.Admitted(self.revocations),
            shares.OpenConnections(config.limits),
            shares.Rates(config.limits),
            config.origins,
        )
        self.feeds = feed.Feeds(layout.tag, clients.feeds, clients.offsets, clients.replays)
        self.queries = query_routes.QueryRoutes(
            self.delivery, gate, self.draining, self.checks, self.feeds
        )

    def application(self) -> ASGIApp:
        """The ASGI application: queries, health, errors in the API's shape."""
        app = Starlette(
            routes=[
                Route("/health", self.health),
                Route("/ready", self.ready),
                *self.queries.routes(),
            ],
            exception_handlers=error_mapping.HANDLERS,
        )
        app.router.redirect_slashes = False  # a redirect would use the address in `Host`
        return middleware.OuterMiddleware(self.queries.in_front_of(app), self._config.origins)

    async def health(self, _request: Request) -> Response:
        """`GET /health`: the process runs."""
        return JSONResponse({"status": "ok"})

    async def ready(self, _request: Request) -> Response:
        """`GET /ready`."""
        state = await self.readiness()
        return JSONResponse(state, 200 if state["ready"] else 503)

    async def readiness(self) -> dict[str, Any]:
        """The JSON of `/ready`. Push is ready without Redis: streams continue, only browser tickets
        fail."""
        return {
            "ready": self.delivery.answered and self.revocations.ready and not self.draining.begun,
            "kafka": self.delivery.answered,
            "redis": await self.redis.reachable(),
            "draining": self.draining.begun,
        }

    async def run(
        self, listening: socket.socket, stop: asyncio.Event, hurry: asyncio.Event
    ) -> None:
        """Serve on `bound` until `stop`, then drain; `hurry` ends the drain.

        Raises:
            settings.Misconfigured: the admin address is taken.
        """
        config = self._config
        http = server.make(
            self.application(),
            config,
            ws_max_bytes=WS_MAX_BYTES,
            drain_s=config.drain_s,
        )
        parts: list[runner.Part] = [
            *(self.delivery, self.revocations, self.key_sets, self.feeds, self.pools)
        ]
        if config.admin_port:
            parts.append(admin.AdminServer(config.host, config.admin_port, self.readiness))
        gc_tuning.freeze()
        try:
            async with asyncio.TaskGroup() as tasks:
                background = [tasks.create_task(part.run()) for part in parts]
                background.append(tasks.create_task(http.serve(sockets=[listening])))
                telemetry.log(telemetry.Action.SERVICE_STARTED, port=config.port)
                await stop.wait()
                await self._drain(hurry)
                http.should_exit = True
                await asyncio.sleep(LAST_WRITES_S)
                for task in background:
                    task.cancel()
        finally:
            await self.redis.aclose()
            telemetry.log(telemetry.Action.SERVICE_STOPPED)

    async def _drain(self, hurry: asyncio.Event) -> None:
        """Readiness off, then sockets and streams end, spread over some seconds. Clients resume
        elsewhere by their position."""
        telemetry.log(telemetry.Action.DRAIN_STARTED, sockets=len(self.queries.sockets))
        self.draining.begin()
        await drain.until_zero(
            lambda: 0 if hurry.is_set() else len(self.queries.sockets),
            min(self._config.drain_s, drain.SPREAD_S + drain.CLOSE_S),
        )


async def serve(config: settings.PushSettings) -> None:
    """One push process.

    Raises:
        settings.Misconfigured, IssuersRefused: before it serves anyone.
        Exception: a part failed for good; the process has to be started again.
    """
    issuers = load_issuers(config.issuers)
    listening = listener.bind(config.host, config.port)
    with contextlib.closing(listening):
        layout = await runner.layout(config.kafka)
        clients = log_clients.over_kafka(config.kafka, config.name)
        await Push(config, issuers, layout, clients, RedisStore(config.redis)).run(
            listening, *runner.on_signals()
        )
