"""`WS /v1/responses`: accepts sockets, counts them, and runs one `Connection` for each."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

from starlette.websockets import WebSocket, WebSocketDisconnect

from gateway.requests.submission import Submission
from gateway.responses import response_operations, response_stream
from gateway.sockets import connection, lanes
from tailrace import settings, telemetry
from tailrace.auth.principal import CredentialScope, Principal
from tailrace.delivery import kept_bytes
from tailrace.protocol import errors
from tailrace.web import access, drain, error_mapping, write_deadline


class Sockets:
    """Accepts sockets.

    Attributes:
        _open: all open connections.
    """

    def __init__(
        self,
        config: settings.GatewaySettings,
        pools: settings.CurrentPools,
        gate: access.Access,
        submission: Submission,
        operations: response_operations.ResponseOperations,
        draining: drain.Draining,
        checks: write_deadline.DeadlineChecks,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        budget: kept_bytes.KeptBytes,
    ) -> None:
        self._config = config
        self._pools = pools
        self._budget = budget
        self._gate = gate
        self._submission = submission
        self._operations = operations
        self._draining = draining
        self._checks = checks
        self._spawn = spawn
        self._open: set[connection.Connection] = set()

    def __len__(self) -> int:
        return len(self._open)

    async def serve(self, socket: WebSocket) -> None:
        """One handshake and, if it is accepted, one connection."""
        try:
            self._gate.check_origin(socket)
            if self._submission.intake.refusing:
                raise errors.unavailable("This instance is shutting down; connect again.")
            principal = await self._gate.principal(socket, CredentialScope.CREATE)
            self._gate.room.check_room(principal)
            resumption = await self._resume(socket, principal)
        except errors.ApiError as error:
            telemetry.log(telemetry.Action.SOCKET_REFUSED, status=error.status, code=error.code)
            await socket.send_denial_response(error_mapping.error_response(error))
            return
        with resumption[1] if resumption is not None else contextlib.nullcontext():
            try:
                await socket.accept(
                    subprotocol=access.SUBPROTOCOL
                    if access.SUBPROTOCOL in access.offered_subprotocols(socket)
                    else None
                )
            except (WebSocketDisconnect, RuntimeError):
                return  # the client left during the handshake
            await self._run(socket, principal, resumption)

    async def _run(
        self,
        socket: WebSocket,
        principal: Principal,
        resumption: tuple[lanes.Lane, response_stream.ResponseStream] | None,
    ) -> None:
        account = self._budget.account(principal.key)
        open_connection = connection.Connection(
            socket,
            principal,
            self._config,
            self._pools,
            self._submission,
            self._operations,
            self._gate,
            self._spawn,
            account,
            own_protocol=access.SUBPROTOCOL in access.offered_subprotocols(socket),
            origin=socket.headers.get("origin"),
        )
        self._open.add(open_connection)
        self._checks.add(open_connection)
        self._gate.admitted.add(open_connection)
        self._gate.room.enter(principal)
        telemetry.OPEN_SOCKETS.labels(kind="responses").inc()
        telemetry.log(telemetry.Action.SOCKET_OPENED, resumed=resumption is not None)
        try:
            with account:
                await open_connection.run(self._draining, resumption)
        finally:
            self._open.discard(open_connection)
            self._checks.discard(open_connection)
            self._gate.admitted.discard(open_connection)
            self._gate.room.leave(principal)
            telemetry.OPEN_SOCKETS.labels(kind="responses").dec()

    def leave(self) -> None:
        """Close idle sockets now, and the others after their responses have ended."""
        for open_connection in list(self._open):
            open_connection.leave(lanes.Leaving.DRAIN)

    async def _resume(
        self, socket: WebSocket, principal: Principal
    ) -> tuple[lanes.Lane, response_stream.ResponseStream] | None:
        """The lane and the remaining events of a response that lost its socket.

        The client names it: `?resume=resp_…&starting_after=N[&stream_id=…]`.
        """
        query = socket.query_params
        rid = query.get("resume")
        if rid is None:
            return None
        after = error_mapping.cursor(query.get("starting_after"))
        lane = lanes.lane_of(query.get("stream_id"))
        try:
            return lane, await self._submission.streams.follow(
                rid, access.owner_of(principal), after
            )
        except error_mapping.DELIVERY_ERRORS as error:
            raise error_mapping.api_error(rid, error) from error
