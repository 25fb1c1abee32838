"""uvicorn's HTTP protocol, with bounds on what an unknown client can use.

    connection   refused when its address, or the process, holds too many
    head         at most MAX_HEAD_BYTES, within HEAD_S; of a WebSocket handshake within HANDSHAKE_S
    body         within BODY_S; how large is the application's affair
    pipelining   at most MAX_PIPELINED requests wait after a running one

A head is counted by what came on the wire, because the parser keeps a header whose end has not come
without an answer and without a log line.

The class depends on names that uvicorn does not document. `missing` lists those that are gone;
then `chosen` returns uvicorn's own class, and a proxy in front has to bound what this one does.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tailrace import telemetry
from tailrace.connections import caps, refusal
from tailrace.protocol import errors

TRIED_WITH: Final = "0.54"
# What is counted as the head is at most one slice too much: a head of half the bound always passes.
MAX_HEAD_BYTES: Final = 32 * 1024
MAX_KEPT_BYTES: Final = 512 * 1024  # of one request; the application refuses what is longer
SLICE_BYTES: Final = 16 * 1024
HEAD_S: Final = 10.0
HANDSHAKE_S: Final = 5.0
BODY_S: Final = 75.0  # more than the application waits, whose answer says more
MAX_PIPELINED: Final = 16
RETRY_S: Final = 1.0

IDLE, HEAD, BODY = 0, 1, 2


class Refused(Exception):
    """Stops the parser; the client has got its answer."""


class HttpProtocol(HttpToolsProtocol):
    """One connection. A subclass made by `over` has its caps.

    Attributes:
        caps: of this server.
        place: among them; None before the connection has one, and after it was given back or on.
        _via_proxy: whether the peer is a trusted proxy.
        _state: IDLE between requests, HEAD, BODY.
        _head_bytes: bytes of the present request that have arrived.
        _timer: ends a head or a body that does not come; None while there is neither.
    """

    caps: caps.Caps
    transport: Any

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.place: caps.Place | None = None
        self._via_proxy = False
        self._state = IDLE
        self._head_bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    # ---- the connection

    def connection_made(self, transport: Any) -> None:
        """Give the connection a place, or refuse it."""
        super().connection_made(transport)
        if self.caps.full():
            self._refuse(errors.unavailable("Too many connections are open.", RETRY_S), "total")
            return
        peer = self.client[0] if self.client else ""
        self.place = caps.Place(self.caps)
        self._via_proxy = self.caps.proxies.trusts(peer)
        if self._via_proxy or self._charge(peer):
            self._timer = self.loop.call_later(HANDSHAKE_S, self._head_is_late)

    def connection_lost(self, exc: Exception | None) -> None:
        """Give the place back."""
        self._stop_timer()
        super().connection_lost(exc)
        if self.place is not None:
            self.place.leave()
            self.place = None

    def _charge(self, address: str) -> bool:
        """Charge the connection to this address, or refuse it."""
        if self.place is None or self.place.charge(address):
            return True
        self._refuse(errors.too_many_connections(RETRY_S), "address")
        return False

    # ---- the request

    def data_received(self, data: bytes) -> None:
        """Parse in slices: what is counted as a head is never much more than it."""
        for start in range(0, len(data), SLICE_BYTES):
            piece = data if len(data) <= SLICE_BYTES else data[start : start + SLICE_BYTES]
            if self._state == HEAD and self._head_bytes + len(piece) > MAX_HEAD_BYTES:
                self._refuse(errors.request_head_too_large(MAX_HEAD_BYTES), "head")
                return
            super().data_received(piece)
            if self.parser is None or self.transport.is_closing():
                return  # another protocol has the connection, or it was refused
            self._head_bytes += len(piece)
        if self._state == IDLE:
            self._stop_timer()
            if self.place is not None and self.place.kept:
                self.place.keep(0)
            return
        if self._timer is None:
            if self._state == HEAD:
                self._timer = self.loop.call_later(HANDSHAKE_S, self._head_is_late)
            else:
                self._timer = self.loop.call_later(BODY_S, self._late, "body")
        if self.place is not None and not self.place.keep(min(self._head_bytes, MAX_KEPT_BYTES)):
            self._refuse(errors.too_many_connections(RETRY_S), "bytes")

    def on_message_begin(self) -> None:
        """A head begins."""
        self._state = HEAD
        self._head_bytes = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """The head is complete."""
        self._state = BODY
        self._stop_timer()
        if self._via_proxy:
            peer = self.client[0] if self.client else ""
            hops = [value for name, value in self.headers if name == b"x-forwarded-for"]
            address = self.caps.proxies.client_of(peer, hops)
            if not self._charge(address):
                raise Refused
            self.scope["client"] = (address, 0)
        super().on_headers_complete()
        if len(self.pipeline) > MAX_PIPELINED:
            telemetry.CONNECTIONS_REFUSED.labels(reason="pipeline").inc()
            self.transport.abort()
            raise Refused

    def on_message_complete(self) -> None:
        """The body is complete."""
        self._state = IDLE
        super().on_message_complete()

    def handle_websocket_upgrade(self) -> None:
        """Hand the connection and its place over. Nothing of this object stays referenced."""
        self._stop_timer()
        successor: Any = self.ws_protocol_class
        if getattr(successor, "takes_places", False):
            arguments = {"place": self.place, "client": self.scope["client"]}
            self.ws_protocol_class = functools.partial(successor, **arguments)  # type: ignore[assignment]
        elif self.place is not None:
            self.place.leave()
        self.place = None
        super().handle_websocket_upgrade()
        self.parser = None  # type: ignore[assignment] # it refers back to this object

    # ---- refusals

    def _head_is_late(self) -> None:
        """After HANDSHAKE_S, and again at HEAD_S for a request that is not a handshake."""
        self._timer = None
        if self._state == HEAD and any(name == b"upgrade" for name, _ in self.headers):
            self._late("handshake")
        else:
            self._timer = self.loop.call_later(HEAD_S - HANDSHAKE_S, self._late, "head")

    def _late(self, part: str) -> None:
        self._timer = None
        if self._state == HEAD:
            self._refuse(errors.request_timeout(), part)
        else:  # nothing came, or an answer may be under way
            telemetry.CONNECTIONS_REFUSED.labels(reason=part).inc()
            self.transport.close()

    def _refuse(self, error: errors.ApiError, reason: str) -> None:
        """Answer and close."""
        self._stop_timer()
        telemetry.CONNECTIONS_REFUSED.labels(reason=reason).inc()
        if not self.transport.is_closing():
            self.transport.write(refusal.answer(error))
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """The answer to data that the parser does not understand; none after a refusal."""
        if not self.transport.is_closing():
            self._refuse(errors.invalid_request(msg, code="invalid_http"), "malformed")

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def missing(base: type = HttpToolsProtocol) -> list[str]:
    """Names that `HttpProtocol` needs and `base` lacks; empty if it has all."""
    try:
        source = inspect.getsource(base)
    except (OSError, TypeError):
        return ["its source"]
    methods = (
        *("connection_made", "connection_lost", "data_received", "handle_websocket_upgrade"),
        *("on_message_begin", "on_headers_complete", "on_message_complete", "send_400_response"),
    )
    features = {
        "self.parser.feed_data(data)": "a parser that is fed",
        "except httptools.HttpParserError": "an error of a callback ends the parsing",
        "self.ws_protocol_class(": "ws_protocol_class",
        "self.pipeline.appendleft(": "pipeline",
        "self.scope = {": "scope",
        "self.headers.append((name, value))": "headers",
        "self.parser = None": "a parser that may be dropped",
    }
    missing_methods = [name for name in methods if not callable(getattr(base, name, None))]
    return missing_methods + [feature for text, feature in features.items() if text not in source]


def over(bounds: caps.Caps, base: type = HttpToolsProtocol) -> Any:
    """The class of HTTP connections of one server: `HttpProtocol` with these caps, or uvicorn's own
    where it has changed."""
    if differences := missing(base):
        telemetry.log(
            telemetry.Action.NOTE,
            part="http_protocol",
            version=uvicorn.__version__,
            tried_with=TRIED_WITH,
            changed=differences,
        )
        return "httptools"
    return type("HttpProtocol", (HttpProtocol,), {"caps": bounds})
