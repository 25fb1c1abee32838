"""Queries out: the Response object, its event series over SSE, and a socket on which one client follows many responses.

The gateway mounts the same routes, so a client that knows only one address misses nothing.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Mapping, MutableMapping, Sequence
from typing import Any

import msgspec
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from push import access, delivery, outbox
from wire import closing, credentials, errors, log, telemetry

KEEP_ALIVE_S = 15.0
KEEP_ALIVE = b": keep-alive\n\n"
DONE = b"data: [DONE]\n\n"
WRITE_DEADLINE_S = 10.0
LOOK_S = 2.5
MAX_WATCHES = 64
DRAIN_SPREAD_S = 5.0
SSE_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}

_encode = msgspec.json.Encoder().encode


class Draining:
    """Set once, when the service is told to stop; sockets and streams then end so that clients resume elsewhere.

    Attributes:
        told: called when it begins; whoever has thousands of sockets cannot have a task wait for each.
    """

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.told: set[Callable[[], None]] = set()

    def begin(self) -> None:
        """Idempotent."""
        if not self._event.is_set():
            self._event.set()
            for tell in list(self.told):
                tell()

    @property
    def begun(self) -> bool:
        """Whether the service is on its way out."""
        return self._event.is_set()

    async def wait(self) -> None:
        """Until draining begins."""
        await self._event.wait()


def api_error(rid: str | None, e: Exception) -> errors.ApiError:
    """What a client is told when a response cannot be delivered."""
    shown = rid or ""
    if isinstance(e, errors.ApiError):
        return e
    if isinstance(e, delivery.NotFound):
        return errors.response_not_found(shown)
    if isinstance(e, log.HistoryLost):
        return errors.history_lost(shown)
    if isinstance(e, log.TooLarge):  # an unavailable log would be tried again and again
        return errors.record_too_large()
    if isinstance(e, log.LogUnavailable):
        return errors.unavailable("The log cannot be read right now.")
    raise e


DELIVERY_ERRORS = (errors.ApiError, delivery.NotFound, log.HistoryLost, log.LogUnavailable)


def error_response(e: errors.ApiError) -> JSONResponse:
    """An error as HTTP answer."""
    return JSONResponse(errors.http_body(e), e.status, headers=dict(e.headers))


def cursor(value: str | None) -> int:
    """`starting_after` of a query; absent means from the beginning.

    Raises:
        errors.ApiError: not an integer >= 0.
    """
    if value is None:
        return -1
    if not value.isascii() or not value.isdigit() or len(value) > 15:
        raise errors.invalid_request("starting_after must be an integer", "starting_after", "invalid_value")
    return int(value)


class EventBody(Response, abc.ABC):
    """The body of an event stream. It ends with `[DONE]` after the terminal event; any other end breaks the body off, because a clean early end would
    look like a complete answer to the SDKs. Returning without the last part is how an ASGI application has its server cut the connection.

    Attributes:
        _writing: since when a part waits to be taken (monotonic seconds); 0 while none does.
        _wrote: when the last one was.
    """

    def __init__(self, rid: str, headers: Mapping[str, str]) -> None:
        super().__init__(headers={**SSE_HEADERS, **headers}, media_type="text/event-stream")
        del self.headers["content-length"]
        self._rid = rid
        self._writing = self._wrote = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pump until the end, the client's leaving, or whatever else `cuts`."""
        telemetry.OPEN_STREAMS.inc()
        tasks: list[asyncio.Future[None]] = []
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            self._wrote = time.monotonic()
            tasks += [asyncio.ensure_future(t) for t in (self.pump(send), gone(receive), *self.cuts())]
            # One look now and then at all that has a deadline: a timer per event would cost a tenth of what an event costs.
            while not (await asyncio.wait(tasks, timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED))[0] and not self._overdue(time.monotonic()):
                pass
        finally:
            for task in tasks:
                task.cancel()
            for outcome in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(outcome, Exception):
                    telemetry.log(telemetry.Action.REQUEST_FAILED, exc_info=outcome)
            telemetry.OPEN_STREAMS.dec()
            self.release()

    def _overdue(self, now: float) -> bool:
        """Whether the client does not take what is written; one that has had nothing for long gets a sign of life."""
        if self._writing:
            if now - self._writing < WRITE_DEADLINE_S:
                return False
            self.broken(TimeoutError())
            return True
        if now - self._wrote >= KEEP_ALIVE_S:
            self.nudge()
        return False

    @abc.abstractmethod
    async def pump(self, send: Send) -> None:
        """Write events, `[DONE]` last; return early to break off."""

    @abc.abstractmethod
    def nudge(self) -> None:
        """Have `pump` write a sign of life, if it waits for events."""

    def cuts(self) -> Sequence[Coroutine[Any, Any, None]]:
        """What else ends the body by returning."""
        return ()

    @abc.abstractmethod
    def release(self) -> None:
        """Nothing is written any more."""

    async def write(self, send: Send, body: bytes, *, more: bool = True) -> None:
        """One part; nothing when it is empty and not the last."""
        if body or not more:
            self._writing = time.monotonic()
            await send({"type": "http.response.body", "body": body, "more_body": more})
            self._writing, self._wrote = 0.0, time.monotonic()

    def broken(self, e: Exception) -> None:
        """Say why a body was broken off."""
        if isinstance(e, outbox.Slow | TimeoutError):
            telemetry.OUTBOX_CLOSES.labels(verdict="slow" if isinstance(e, outbox.Slow) else "blocked").inc()
        telemetry.log(telemetry.Action.STREAM_BROKEN, response=self._rid, reason=type(e).__name__)


class EventStream(EventBody):
    """A watched response."""

    def __init__(self, subscription: delivery.Subscription, draining: Draining) -> None:
        super().__init__(subscription.rid, {})
        self._subscription = subscription
        self._draining = draining

    def cuts(self) -> Sequence[Coroutine[Any, Any, None]]:
        return (self._draining.wait(),)

    def nudge(self) -> None:
        self._subscription.nudge()

    def release(self) -> None:
        self._subscription.close()

    async def pump(self, send: Send) -> None:
        try:
            while not self._subscription.ended:
                await self.write(send, b"".join(e.sse() for e in await self._subscription.take()) or KEEP_ALIVE)
            await self.write(send, DONE, more=False)
        except (outbox.Slow, log.HistoryLost) as e:
            self.broken(e)


async def gone(receive: Receive) -> None:
    """Returns when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


class Endpoint:
    """The routes over one `Delivery`."""

    def __init__(
        self,
        deliver: delivery.Delivery,
        gate: access.Access,
        draining: Draining,
        *,
        expose_object: Callable[[dict[str, Any]], bool] = lambda r: bool(r["store"]),
    ) -> None:
        self._delivery = deliver
        self._gate = gate
        self._draining = draining
        self._expose = expose_object
        self.sockets: set[WatchConnection] = set()
        self._looking: asyncio.TimerHandle | None = None

    def routes(self) -> list[BaseRoute]:
        """`GET /v1/responses/{id}`."""
        return [Route("/v1/responses/{response_id}", self.retrieve, methods=["GET"])]

    def before(self, app: ASGIApp) -> ASGIApp:
        """`app` with `WS /v1/watch` in front of it: every layer of a web framework is a suspended frame for as long as a socket is open, and of these
        sockets there are thousands that say nothing."""

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
            subscription = await self._delivery.watch(rid, owner, cursor(request.query_params.get("starting_after")))
        except DELIVERY_ERRORS as e:
            return error_response(api_error(rid, e))
        return EventStream(subscription, self._draining)

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
        """Now and then at all sockets, instead of a timer per message that is cancelled again at once."""
        loop = asyncio.get_running_loop()
        for connection in list(self.sockets):
            connection.look(loop.time())
        self._looking = loop.call_later(LOOK_S, self._look) if self.sockets else None

    async def _accepted(self, socket: WebSocket) -> WatchConnection | None:
        """The handshake; None when it was refused."""
        asked = HTTPConnection(socket.scope)
        try:
            self._gate.check_origin(asked)
            if self._draining.begun:
                raise errors.unavailable("This instance is draining.")
            principal = await self._gate.principal(asked)
        except errors.ApiError as e:
            await socket.send_denial_response(error_response(e))
            return None
        await socket.accept(subprotocol=access.SUBPROTOCOL if access.SUBPROTOCOL in access.offered(asked) else None)
        socket.scope["headers"] = []  # nobody asks for them any more, and every open socket would keep its own
        return WatchConnection(socket, self._delivery, principal, self._gate.clock)


class WatchConnection:
    """One watch socket: commands in, events of all watched responses out, through one sender.

    A socket that is idle holds the task that serves it, which reads, and one timer; the sender exists only while there is something to send.

    Attributes:
        _watches: subscriptions by response id; only the reader adds and removes, the sender removes ended ones.
        _pending: response ids with something to send, in the order they became ready.
        _notes: messages that belong to no event series (errors, draining), sent first.
        _sender: sends until `_pending` and `_notes` are empty; None then.
        _reader: the task that serves the socket, while it reads; None before and afterwards.
        _writing: since when a message waits to be taken (the loop's clock); 0 while none does.
        _over, _code: whether the socket ends, and what it is closed with; None when the client has left.
    """

    __slots__ = (
        *("_clock", "_code", "_delivery", "_loop", "_notes", "_over", "_owner", "_pending"),
        *("_principal", "_reader", "_sender", "_socket", "_starting", "_watches", "_writing"),
    )

    def __init__(self, socket: WebSocket, deliver: delivery.Delivery, principal: credentials.Principal, clock: Callable[[], float]) -> None:
        self._socket = socket
        self._delivery = deliver
        self._principal = principal
        self._owner = access.owner_of(principal)
        self._clock = clock
        self._watches: dict[str, delivery.Subscription] = {}
        self._starting: dict[str, asyncio.Task[None]] = {}
        self._pending: dict[str, None] = {}
        self._notes: list[dict[str, Any]] = []
        self._sender: asyncio.Task[closing.CloseCode | None] | None = None
        self._loop = asyncio.get_running_loop()
        self._reader: asyncio.Task[Any] | None = None
        self._writing = 0.0
        self._over = False
        self._code: closing.CloseCode | None = None

    async def run(self, draining: Draining) -> None:
        """Serve until the client leaves, the credential expires, the service drains or the client proves too slow."""
        expiry = self._loop.call_later(max(0.0, self._principal.expires_at - self._clock()), self._end, closing.CloseCode.CREDENTIAL_EXPIRED)
        draining.told.add(self._drain)
        if draining.begun:  # while the handshake was answered
            self._drain()
        try:
            await self._read_until_over()
        finally:
            self._over = True
            draining.told.discard(self._drain)
            expiry.cancel()
            tasks = [*([self._sender] if self._sender is not None else []), *self._starting.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for subscription in self._watches.values():
                subscription.close()
            await self._close(self._code)

    async def _read_until_over(self) -> None:
        """A task of its own for the reader would be the greater part of what an idle socket takes; so whoever ends the socket ends the reading."""
        self._reader = asyncio.current_task()
        try:
            await self._read()
        except asyncio.CancelledError:
            if not self._over or self._reader is None or self._reader.uncancel():
                raise  # by somebody else
        except (WebSocketDisconnect, RuntimeError):
            pass  # the client has left
        except Exception as e:
            telemetry.log(telemetry.Action.SOCKET_FAILED, error=type(e).__name__)
            self._code = closing.CloseCode.INTERNAL
        finally:
            self._reader = None

    def _end(self, code: closing.CloseCode | None) -> None:
        if self._over:
            return
        self._over, self._code = True, code
        if self._reader is not None:
            self._reader.cancel()

    async def _close(self, code: closing.CloseCode | None) -> None:
        if code is None or self._socket.application_state is not WebSocketState.CONNECTED:
            return
        telemetry.SOCKET_CLOSES.labels(code=str(int(code))).inc()
        with contextlib.suppress(RuntimeError, WebSocketDisconnect, TimeoutError, OSError):
            async with asyncio.timeout(2.0):
                await self._socket.close(int(code), closing.TABLE[code].reason)

    # --------------------------------------------------------------- commands

    async def _read(self) -> None:
        while not self._over:
            message = await self._socket.receive()
            if message["type"] == "websocket.disconnect":
                return
            self._command(message)

    def _command(self, message: MutableMapping[str, Any]) -> None:
        text = message.get("text")
        if text is None:
            return self._refuse(None, errors.invalid_request("Messages are JSON text frames."))
        try:
            command = msgspec.json.decode(text)
        except (msgspec.MsgspecError, RecursionError, UnicodeError):
            return self._refuse(None, errors.invalid_json())
        rid = command.get("response_id") if isinstance(command, dict) else None
        if not isinstance(command, dict) or command.get("type") not in ("watch", "unwatch"):
            return self._refuse(None, errors.invalid_request("The 'type' must be 'watch' or 'unwatch'.", "type"))
        if not isinstance(rid, str):
            return self._refuse(None, errors.missing_required_parameter("response_id"))
        if command["type"] == "unwatch":
            return self._unwatch(rid)
        after = command.get("starting_after", -1)
        if type(after) is not int or after < -1:
            return self._refuse(rid, errors.invalid_request("starting_after must be an integer", "starting_after", "invalid_value"))
        if len(self._watches) + len(self._starting) >= MAX_WATCHES:
            return self._refuse(
                rid, errors.invalid_request(f"This connection follows its maximum of {MAX_WATCHES} responses.", "response_id", "watch_limit_reached")
            )
        self._unwatch(rid)  # a second watch of the same response replaces the first: the position is the client's to choose
        task = asyncio.create_task(self._watch(rid, after))
        self._starting[rid] = task
        return None

    async def _watch(self, rid: str, after: int) -> None:
        try:
            subscription = await self._delivery.watch(rid, self._owner, after, lambda: self._ready(rid))
        except DELIVERY_ERRORS as e:
            self._refuse(rid, api_error(rid, e))
        else:
            self._watches[rid] = subscription
            self._ready(rid)
        finally:
            if self._starting.get(rid) is asyncio.current_task():
                del self._starting[rid]

    def _unwatch(self, rid: str) -> None:
        starting = self._starting.pop(rid, None)
        if starting is not None:
            starting.cancel()
        subscription = self._watches.pop(rid, None)
        if subscription is not None:
            subscription.close()
        self._pending.pop(rid, None)

    def _refuse(self, rid: str | None, e: errors.ApiError) -> None:
        self._note({"type": "watch.error", "response_id": rid, "status": e.status, **errors.http_body(e)})

    def _note(self, message: dict[str, Any]) -> None:
        self._notes.append(message)
        self._wake()

    # ----------------------------------------------------------------- sender

    def _ready(self, rid: str) -> None:
        self._pending[rid] = None
        self._wake()

    def _wake(self) -> None:
        if self._sender is None and not self._over:
            self._sender = self._loop.create_task(self._send())
            self._sender.add_done_callback(self._sent)

    def _sent(self, task: asyncio.Task[closing.CloseCode | None]) -> None:
        self._sender = None
        if task.cancelled():
            return
        error = task.exception()
        if isinstance(error, WebSocketDisconnect | RuntimeError):
            self._end(None)  # the client has left
        elif error is not None:
            telemetry.log(telemetry.Action.SOCKET_FAILED, error=type(error).__name__)
            self._end(closing.CloseCode.INTERNAL)
        elif (verdict := task.result()) is not None:
            self._end(verdict)
        elif self._notes or self._pending:  # since it looked last
            self._wake()

    async def _send(self) -> closing.CloseCode | None:
        """Everything there is to send; the code to close with when the client does not take it."""
        try:
            while self._notes or self._pending:
                for note in self._take_notes():
                    await self._write(_encode(note))
                if self._pending:
                    await self._send_one(next(iter(self._pending)))
        except outbox.Slow:
            telemetry.OUTBOX_CLOSES.labels(verdict="slow").inc()
            return closing.CloseCode.SLOW
        return None

    def _take_notes(self) -> list[dict[str, Any]]:
        notes, self._notes = self._notes, []
        return notes

    async def _send_one(self, rid: str) -> None:
        """One batch of one response; what is left keeps its turn behind the others, so no response starves another."""
        del self._pending[rid]
        subscription = self._watches.get(rid)
        if subscription is None:
            return
        try:
            batch = subscription.pending()
        except log.HistoryLost as e:
            self._unwatch(rid)
            self._refuse(rid, api_error(rid, e))
            return
        if batch:
            await self._write(b'{"type":"watch.events","response_id":"%s","events":[%s]}' % (rid.encode(), b",".join(e.body for e in batch)))
        if self._watches.get(rid) is not subscription:
            return  # unwatched while the socket was being written
        if subscription.ended:
            self._unwatch(rid)
            await self._write(_encode({"type": "watch.done", "response_id": rid, "status": subscription.status}))
        elif batch:
            self._pending[rid] = None  # there may be more; an empty take ends the round

    async def _write(self, body: bytes) -> None:
        self._writing = self._loop.time()
        await self._socket.send({"type": "websocket.send", "text": body.decode()})
        self._writing = 0.0

    # -------------------------------------------------------------- deadlines

    def look(self, now: float) -> None:
        """Close it if the client has not taken what is written for too long; `now` by the loop's clock."""
        if self._writing and now - self._writing >= WRITE_DEADLINE_S and not self._over:
            telemetry.OUTBOX_CLOSES.labels(verdict="blocked").inc()
            self._end(closing.CloseCode.SLOW)

    def _drain(self) -> None:
        # Spread over the sockets, so that their clients do not all come back in one instant.
        delay = (hash(id(self)) % 1000) / 1000 * DRAIN_SPREAD_S
        self._note({"type": "watch.draining", "after_ms": int(delay * 1000)})
        self._loop.call_later(delay, self._end, closing.CloseCode.DRAINING)
