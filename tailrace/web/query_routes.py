"""The routes of queries: the Response object, its event series over SSE, and the socket on which
one client follows many responses.

The gateway mounts the same routes, so a client that knows only one address misses nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from tailrace import telemetry
from tailrace.delivery import delivery
from tailrace.protocol import errors
from tailrace.web import access, drain, error_mapping, event_stream, watch_socket

LOOK_S = 2.5


class Endpoint:
    """The routes over one `Delivery`."""

    def __init__(
        self,
        deliver: delivery.Delivery,
        gate: access.Access,
        draining: drain.Draining,
        *,
        expose_object: Callable[[dict[str, Any]], bool] = lambda r: bool(r["store"]),
    ) -> None:
        self._delivery = deliver
        self._gate = gate
        self._draining = draining
        self._expose = expose_object
        self.sockets: set[watch_socket.WatchConnection] = set()
        self._looking: asyncio.TimerHandle | None = None

    def routes(self) -> list[BaseRoute]:
        """`GET /v1/responses/{id}`."""
        return [Route("/v1/responses/{response_id}", self.retrieve, methods=["GET"])]

    def before(self, app: ASGIApp) -> ASGIApp:
        """`app` with `WS /v1/watch` in front of it: every layer of a web framework is a suspended
        frame for as long as a socket is open, and of these sockets there are thousands that say
        nothing."""

        async def dispatch(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "websocket" and scope["path"] == "/v1/watch":
                await self.watch(WebSocket(scope, receive, send))
            else:
                await app(scope, receive, send)

        return dispatch

    async def retrieve(self, request: Request) -> Response:
        """The object, or with `stream=true` the events after `starting_after`."""
        rid = request.path_params["response_id"]
        try:
            self._gate.check_origin(request)
            owner = access.owner_of(await self._gate.principal(request))
            if request.query_params.get("stream", "false").lower() not in ("true", "1"):
                found = await self._delivery.find(rid, owner)
                if not self._expose(found.response):
                    raise errors.response_not_found(rid)
                return JSONResponse(found.response)
            subscription = await self._delivery.watch(
                rid, owner, error_mapping.cursor(request.query_params.get("starting_after"))
            )
        except error_mapping.DELIVERY_ERRORS as error:
            return error_mapping.error_response(error_mapping.api_error(rid, error))
        return event_stream.EventStream(subscription, self._draining)

    async def watch(self, socket: WebSocket) -> None:
        """A watch socket."""
        connection = await self._accepted(socket)
        if connection is None:
            return
        self.sockets.add(connection)
        if self._looking is None:
            self._look()
        telemetry.OPEN_SOCKETS.labels(kind="watch").inc()
        try:
            await connection.run(self._draining)
        finally:
            self.sockets.discard(connection)
            telemetry.OPEN_SOCKETS.labels(kind="watch").dec()

    def _look(self) -> None:
        """Now and then at all sockets, instead of a timer per message that is cancelled again at
        once."""
        loop = asyncio.get_running_loop()
        for connection in list(self.sockets):
            connection.look(loop.time())
        self._looking = loop.call_later(LOOK_S, self._look) if self.sockets else None

    async def _accepted(self, socket: WebSocket) -> watch_socket.WatchConnection | None:
        """The handshake; None when it was refused."""
        asked = HTTPConnection(socket.scope)
        try:
            self._gate.check_origin(asked)
            if self._draining.begun:
                raise errors.unavailable("This instance is draining.")
            principal = await self._gate.principal(asked)
        except errors.ApiError as error:
            await socket.send_denial_response(error_mapping.error_response(error))
            return None
        await socket.accept(
            subprotocol=access.SUBPROTOCOL if access.SUBPROTOCOL in access.offered(asked) else None
        )
        socket.scope[
            "headers"
        ] = []  # nobody asks for them any more, and every open socket would keep its own
        return watch_socket.WatchConnection(socket, self._delivery, principal, self._gate.clock)
