"""The routes of queries: the Response object, its events over SSE, and the watch socket.

The gateway mounts the same routes, so a client that knows only one address misses nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final

from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from tailrace import telemetry
from tailrace.auth.principal import CredentialScope
from tailrace.delivery import delivery, feed
from tailrace.protocol import errors, events
from tailrace.protocol import feed as positions
from tailrace.web import (
    access,
    drain,
    encoded_json,
    error_mapping,
    event_stream,
    watch_socket,
    write_deadline,
)

# Of the watch socket. The client's first one of them is taken.
_SUBPROTOCOLS: Final = frozenset({access.SUBPROTOCOL, access.COMPACT_SUBPROTOCOL})


class QueryRoutes:
    """The routes over one `Delivery`.

    Attributes:
        sockets: the open watch sockets.
    """

    def __init__(
        self,
        deliver: delivery.Delivery,
        gate: access.Access,
        draining: drain.Draining,
        checks: write_deadline.DeadlineChecks,
        feeds: feed.Feeds,
    ) -> None:
        self._delivery = deliver
        self._gate = gate
        self._draining = draining
        self._checks = checks
        self._feeds = feeds
        self.sockets: set[watch_socket.WatchConnection] = set()

    def routes(self) -> list[BaseRoute]:
        """`GET /v1/responses/{id}`, `GET /v1/feed`."""
        return [
            Route("/v1/responses/{response_id}", self.retrieve, methods=["GET"]),
            Route("/v1/feed", self.feed, methods=["GET"]),
        ]

    def in_front_of(self, app: ASGIApp) -> ASGIApp:
        """`app` with `WS /v1/watch` in front of it.

        Every layer of a web framework is a suspended frame while a socket is open, and there are
        thousands of these idle sockets. So this is not a coroutine either.
        """

        def dispatch(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
            if scope["type"] == "websocket" and scope["path"] == "/v1/watch":
                return self.watch(WebSocket(scope, receive, send))
            return app(scope, receive, send)

        return dispatch

    async def retrieve(self, request: Request) -> Response:
        """The object, or with `stream=true` the events after `starting_after`."""
        rid = request.path_params["response_id"]
        try:
            self._gate.check_origin(request)
            principal = await self._gate.principal(request, CredentialScope.READ)
            owner = access.owner_of(principal)
            if request.query_params.get("stream", "false").lower() not in ("true", "1"):
                snapshot = await self._delivery.find(rid, owner)
                self._gate.permit(principal)  # a look-up may have taken seconds
                if not snapshot.response["store"]:
                    raise errors.response_not_found(rid)
                return encoded_json.EncodedJSON(snapshot.response)
            self._gate.room.check_room(principal)
            subscription = await self._delivery.watch(
                rid, owner, error_mapping.cursor(request.query_params.get("starting_after"))
            )
        except error_mapping.DELIVERY_ERRORS as error:
            return error_mapping.error_response(error_mapping.api_error(rid, error))
        return event_stream.EventStream(
            subscription,
            self._gate.room.counted(principal, subscription.close),
            self._draining,
            self._checks,
            self._gate.admitted,
            principal,
            encode=events.Event.sse,
            clock=self._gate.clock,
            later=self._gate.later,
        )

    async def feed(self, request: Request) -> Response:
        """The owner's feed: all events after the position `last-event-id` (a header) or `after`,
        then new ones."""
        self._gate.check_origin(request)
        principal = await self._gate.principal(request, CredentialScope.READ)
        text = request.headers.get("last-event-id") or request.query_params.get("after")
        try:
            after = positions.parse_position(text) if text else None
        except positions.InvalidPosition:
            raise errors.invalid_value("after", "Invalid 'after': no such position.") from None
        self._gate.room.check_room(principal)
        subscription = self._feeds.watch(access.owner_of(principal), after)
        return event_stream.EventStream(
            subscription,
            self._gate.room.counted(principal, subscription.close),
            self._draining,
            self._checks,
            self._gate.admitted,
            principal,
            encode=positions.Event.sse,
            clock=self._gate.clock,
            later=self._gate.later,
        )

    async def watch(self, socket: WebSocket) -> None:
        """A watch socket, from its handshake to its end."""
        connection = await self._accept(socket)
        if connection is None:
            return
        self.sockets.add(connection)
        self._checks.add(connection)
        self._gate.admitted.add(connection)
        self._gate.room.enter(connection.principal)
        telemetry.OPEN_SOCKETS.labels(kind="watch").inc()
        try:
            await connection.run(self._draining)
        finally:
            self.sockets.discard(connection)
            self._checks.discard(connection)
            self._gate.admitted.discard(connection)
            self._gate.room.leave(connection.principal)
            telemetry.OPEN_SOCKETS.labels(kind="watch").dec()

    async def _accept(self, socket: WebSocket) -> watch_socket.WatchConnection | None:
        """The handshake; None when it was refused."""
        connection = HTTPConnection(socket.scope)
        try:
            self._gate.check_origin(connection)
            if self._draining.begun:
                raise errors.unavailable("This instance is draining.")
            principal = await self._gate.principal(connection, CredentialScope.READ)
            self._gate.room.check_room(principal)
        except errors.ApiError as error:
            await socket.send_denial_response(error_mapping.error_response(error))
            return None
        subprotocol = next(
            (p for p in access.offered_subprotocols(connection) if p in _SUBPROTOCOLS), None
        )
        await socket.accept(subprotocol=subprotocol)
        origin = connection.headers.get("origin")
        # Nothing reads the handshake later, and every open socket would keep its own.
        socket.scope.clear()
        return watch_socket.WatchConnection(
            *(socket, self._delivery, principal, self._gate, origin, self._feeds),
            compact=subprotocol == access.COMPACT_SUBPROTOCOL,
        )
