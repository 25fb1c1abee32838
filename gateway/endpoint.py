"""`WS /v1/responses`: moves bytes between a socket, the connection's state machine and the log.
`lanes` decides what happens when."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

import msgspec
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from gateway import (
    lanes,
    request_parsing,
    response_operations,
    response_stream,
    submission,
)
from tailrace import log, settings, telemetry
from tailrace.auth.principal import Principal
from tailrace.delivery import outbox
from tailrace.protocol import close_codes, errors
from tailrace.web import access, drain, error_mapping

WRITE_DEADLINE_S: Final = 10.0
CLOSE_DEADLINE_S: Final = 2.0
AGE_GRACE_S: Final = 60.0  # a response that runs when its socket gets too old may still end on it

_encode = msgspec.json.Encoder().encode


class Sockets:
    """Accepts sockets and knows the open ones.

    Attributes:
        _open: all open connections.
        _by_principal: how many of them each principal has.
    """

    def __init__(
        self,
        config: settings.GatewaySettings,
        gate: access.Access,
        submit: submission.Submission,
        operations: response_operations.ResponseOperations,
        draining: drain.Draining,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._config = config
        self._gate = gate
        self._submit = submit
        self._operations = operations
        self._draining = draining
        self._spawn = spawn
        self._open: set[Connection] = set()
        self._by_principal: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._open)

    async def serve(self, socket: WebSocket) -> None:
        """One handshake and, if it is accepted, one connection."""
        try:
            self._gate.check_origin(socket)
            if self._submit.refusing:
                raise errors.unavailable("This instance is shutting down; connect again.")
            principal = await self._gate.principal(socket)
            self._check_room(principal)
            resumed = await self._resumed(socket, principal)
        except errors.ApiError as error:
            telemetry.log(telemetry.Action.SOCKET_REFUSED, status=error.status, code=error.code)
            await socket.send_denial_response(error_mapping.error_response(error))
            return
        try:
            await socket.accept(
                subprotocol=access.SUBPROTOCOL
                if access.SUBPROTOCOL in access.offered(socket)
                else None
            )
        except (WebSocketDisconnect, RuntimeError):
            if resumed is not None:
                self._submit.continue_in_background(resumed[1])
            return
        connection = Connection(
            socket,
            principal,
            self._config,
            self._submit,
            self._operations,
            self._gate.clock,
            self._spawn,
        )
        self._open.add(connection)
        self._by_principal[principal.key] += 1
        telemetry.OPEN_SOCKETS.labels(kind="responses").inc()
        telemetry.log(telemetry.Action.SOCKET_OPENED, resumed=resumed is not None)
        try:
            await connection.run(self._draining, resumed)
        finally:
            self._open.discard(connection)
            self._by_principal[principal.key] -= 1
            self._by_principal += Counter()  # drops zeros
            telemetry.OPEN_SOCKETS.labels(kind="responses").dec()

    def leave(self) -> None:
        """Idle sockets close now, the others when what they run has ended."""
        for connection in list(self._open):
            connection.leave(lanes.Leaving.DRAIN)

    def _check_room(self, principal: Principal) -> None:
        limits = self._config.limits
        if (
            len(self._open) >= limits.sockets
            or self._by_principal[principal.key] >= limits.sockets_per_principal
        ):
            raise errors.overloaded(1.0)

    async def _resumed(
        self, socket: WebSocket, principal: Principal
    ) -> tuple[lanes.Lane, response_stream.ResponseStream] | None:
        """`?resume=resp_…&starting_after=N[&stream_id=…]`: the rest of a response that lost its
        socket."""
        query = socket.query_params
        rid = query.get("resume")
        if rid is None:
            return None
        after = error_mapping.cursor(query.get("starting_after"))
        lane = lanes.lane_of({"stream_id": query.get("stream_id")})
        try:
            return lane, await self._submit.follow(rid, access.owner_of(principal), after)
        except error_mapping.DELIVERY_ERRORS as error:
            raise error_mapping.api_error(rid, error) from error


class Connection:
    """One accepted socket.

    Attributes:
        _lanes: the task of each busy lane; it submits, then pumps. Removed when the lane's response
            ended.
        _pumping: lanes whose task has its response; only these may be cancelled when the socket
            goes, a submission under way is always finished.
        _verdict: why the socket is to be closed; set once by whoever finds out first. None: the
            client left.
        _gone: nothing can be sent any more.
    """

    def __init__(
        self,
        socket: WebSocket,
        principal: Principal,
        config: settings.GatewaySettings,
        submit: submission.Submission,
        operations: response_operations.ResponseOperations,
        clock: Callable[[], float],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._socket = socket
        self._principal = principal
        self._config = config
        self._submit = submit
        self._operations = operations
        self._clock = clock
        self._spawn = spawn
        self._scheduler = lanes.LaneScheduler()
        self._lanes: dict[lanes.Lane, asyncio.Task[None]] = {}
        self._pumping: set[lanes.Lane] = set()
        self._verdict: asyncio.Future[close_codes.CloseCode | None] = (
            asyncio.get_running_loop().create_future()
        )
        self._gone = False

    async def run(
        self,
        draining: drain.Draining,
        resumed: tuple[lanes.Lane, response_stream.ResponseStream] | None = None,
    ) -> None:
        """Serve until the client leaves, the credential expires, the socket is too old, the service
        leaves, or the client proves too slow."""
        if resumed is not None:
            lane, run = resumed
            self._scheduler.adopt(run.rid, lane)
            self._start(lane, self._deliver(lane, run))
        watchers = [
            asyncio.ensure_future(t)
            for t in (self._read(), self._expire(), self._grow_old(), self._drain(draining))
        ]
        for task in watchers:
            task.add_done_callback(self._watched)
        try:
            code = await self._verdict
        finally:
            self._gone = True
            for task in watchers:
                task.cancel()
            await asyncio.gather(*watchers, return_exceptions=True)
            await self._release_lanes()
        await self._close(code)

    def leave(self, why: lanes.Leaving) -> None:
        """No more creates; what runs goes on."""
        self._spawn(self._act(self._scheduler.leave(why)))

    def _decide(self, code: close_codes.CloseCode | None) -> None:
        if not self._verdict.done():
            self._verdict.set_result(code)

    def _watched(self, task: asyncio.Future[None]) -> None:
        if not task.cancelled() and (e := task.exception()) is not None:
            telemetry.log(telemetry.Action.SOCKET_FAILED, exc_info=e)
            self._decide(close_codes.CloseCode.INTERNAL)

    async def _release_lanes(self) -> None:
        """Runs go to keepers; submissions under way find the connection gone and do the same."""
        pumping = [task for lane, task in self._lanes.items() if lane in self._pumping]
        for task in pumping:
            task.cancel()
        await asyncio.gather(*pumping, return_exceptions=True)

    async def _close(self, code: close_codes.CloseCode | None) -> None:
        shown = close_codes.for_sdk(code) if code is not None else None
        telemetry.SOCKET_CLOSES.labels(
            code=str(int(shown)) if shown is not None else "client"
        ).inc()
        telemetry.log(
            telemetry.Action.SOCKET_CLOSED,
            code=shown,
            reason=code.name.lower() if code is not None else "client",
        )
        if (
            code is None
            or shown is None
            or self._socket.application_state is not WebSocketState.CONNECTED
        ):
            return
        with contextlib.suppress(RuntimeError, WebSocketDisconnect, TimeoutError, OSError):
            async with asyncio.timeout(CLOSE_DEADLINE_S):
                await self._socket.close(int(shown), close_codes.TABLE[code].reason)

    # ---- from the client
    # -----------------------------------------------------------------------------

    async def _read(self) -> None:
        while True:
            message = await self._socket.receive()
            if message["type"] == "websocket.disconnect":
                self._decide(None)
                return
            text = message.get("text")
            try:
                if text is None:
                    raise errors.invalid_request("Messages are JSON text frames.")
                actions = self._scheduler.received(request_parsing.decode(text), len(text))
            except errors.ApiError as error:
                actions = [lanes.Reply(errors.ws_event(error))]
            await self._act(actions)

    async def _act(self, actions: Sequence[lanes.Action]) -> None:
        for action in actions:
            if self._gone:
                return  # what still waited on this connection had nobody to answer to
            match action:
                case lanes.Begin(lane, body):
                    self._start(lane, self._create(lane, body))
                case lanes.Reply(event):
                    await self._send([_encode(event)])
                case lanes.Cancel(ours=True):
                    self._spawn(self._cancel(action))
                case lanes.Cancel():
                    # Looked up in the log before the next message is read, so that guessing ids is
                    # no faster than reading.
                    await self._cancel(action)
                case lanes.Close(code):
                    self._decide(code)

    def _start(self, lane: lanes.Lane, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._lanes[lane] = task
        task.add_done_callback(lambda t: self._lane_done(lane, t))

    def _lane_done(self, lane: lanes.Lane, task: asyncio.Task[None]) -> None:
        if self._lanes.get(lane) is task:
            del self._lanes[lane]
        if not task.cancelled() and (e := task.exception()) is not None:
            telemetry.log(telemetry.Action.SOCKET_FAILED, exc_info=e)
            self._decide(close_codes.CloseCode.INTERNAL)

    async def _create(self, lane: lanes.Lane, body: dict[str, Any]) -> None:
        previous = body.get("previous_response_id")
        try:
            create = request_parsing.of_responses(body, self._config.pools, websocket=True)
            run = await self._submit.submit(
                create, self._principal, lambda rid: self._scheduler.recall(lane, rid)
            )
        except errors.ApiError as error:
            await self._act(self._scheduler.rejected(lane, error, previous))
            return
        if self._gone:
            self._submit.continue_in_background(run)
            return
        await self._deliver(lane, run)

    async def _cancel(self, action: lanes.Cancel) -> None:
        try:
            await self._operations.cancel(action.rid, access.owner_of(self._principal))
        except error_mapping.DELIVERY_ERRORS as error:
            if action.ours:
                self._scheduler.cancel_failed(action.lane)
            await self._act(
                [
                    lanes.Reply(
                        errors.ws_event(error_mapping.api_error(action.rid, error), action.lane)
                    )
                ]
            )

    # ---- to the client
    # -------------------------------------------------------------------------------

    async def _deliver(self, lane: lanes.Lane, run: response_stream.ResponseStream) -> None:
        """Pump a run to its end. Whatever happens, the run is finished or handed over, once."""
        self._pumping.add(lane)
        lost: errors.ApiError | None = None
        try:
            await self._act(self._scheduler.accepted(lane, run.rid))
            while run.final is None and (batch := await run.next_events()):
                await self._send([event.on_lane(lane) for event in batch])
        except log.HistoryLost:
            lost = errors.history_lost(run.rid)
        except outbox.Slow:
            telemetry.OUTBOX_CLOSES.labels(verdict="slow").inc()
            self._decide(close_codes.CloseCode.SLOW)
        finally:
            self._pumping.discard(lane)
            if run.final is not None or lost is not None:
                self._submit.finished(run)
            else:
                self._submit.continue_in_background(run)
        if lost is not None:
            await self._act(self._scheduler.rejected(lane, lost, run.previous))
        elif run.final is not None or run.subscription.ended:
            await self._act(self._scheduler.ended(lane, run.remembered, run.previous))

    async def _send(self, bodies: Sequence[bytes]) -> None:
        if self._gone:
            return
        try:
            async with asyncio.timeout(WRITE_DEADLINE_S):
                for body in bodies:
                    await self._socket.send({"type": "websocket.send", "text": body.decode()})
        except TimeoutError:
            self._decide(close_codes.CloseCode.SLOW)
        except (WebSocketDisconnect, RuntimeError):
            self._decide(None)  # the reader will hear of it too

    # ---- deadlines
    # -----------------------------------------------------------------------------------

    async def _expire(self) -> None:
        await asyncio.sleep(max(0.0, self._principal.expires_at - self._clock()))
        self._decide(close_codes.CloseCode.CREDENTIAL_EXPIRED)

    async def _grow_old(self) -> None:
        await asyncio.sleep(self._config.connection_limit_s)
        await self._act(self._scheduler.leave(lanes.Leaving.AGE))
        await asyncio.sleep(AGE_GRACE_S)
        self._decide(close_codes.CloseCode.LIFETIME)

    async def _drain(self, draining: drain.Draining) -> None:
        await draining.wait()
        self._decide(close_codes.CloseCode.DRAINING)
