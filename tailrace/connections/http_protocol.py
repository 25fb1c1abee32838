"""uvicorn's HTTP protocol, with bounds on what an unknown client can use.

    connection   refused when its address, or the process, holds too many
    head         at most MAX_HEAD_BYTES, within HEAD_S; of a WebSocket handshake within HANDSHAKE_S
    body         within BODY_S; how large is the application's affair
    pipelining   at most MAX_PIPELINED requests wait after a running one

A head is counted by what came on the wire, because the parser keeps a header whose end has not come
without an answer and without a log line.

Where uvicorn does not follow RFC 9110 and 9112, this class does:

    upgrade      to anything but WebSocket is ignored, and the request served as it is
    Host         is there once (HTTP/1.1), and so is each other header of ONCE that is there
    HTTP/1.0     an answer without a length ends with the connection; it is not chunked
    half-closed  a client that ends only its side still gets what is answered within HALF_CLOSED_S;
                 most of those that do so have left, and what they asked for ends with them

The head of an answer and what follows at once are one write.

The class depends on names that uvicorn does not document. `missing` lists those that are gone;
then `chosen` returns uvicorn's own class, and a proxy in front has to bound what this one does.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections import Counter
from typing import Any, Final

import httptools
import uvicorn
from uvicorn.protocols.http import httptools_impl
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
# Two of one of these and it depends on the reader which one counts.
ONCE: Final = frozenset(
    {b"authorization", b"content-type", b"host", b"idempotency-key", b"last-event-id", b"origin"}
)
# Nothing that can be sent before the answer tells a client that reads on from one that is gone.
HALF_CLOSED_S: Final = 5.0

_OFFERS: Final = frozenset({b"upgrade", b"http2-settings"})

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
            self._unset_keepalive_if_required()
            self._feed(piece)
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

    def _feed(self, data: bytes) -> None:
        """Parse. The parser stops behind a head that offers an upgrade, as if it had no body. If
        the offer is ignored, a new parser gets the head without it, and then the rest."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if self._should_upgrade():
                self.handle_websocket_upgrade()
            elif self.parser.get_method() == b"CONNECT":
                self._refuse(errors.method_not_allowed("CONNECT"), "malformed")
            else:
                head = self._head_without_offer()
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # like uvicorn
                self._feed(head + data[upgrade.args[0] :])
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")

    def _should_upgrade(self) -> bool:
        """Whether this is the handshake of a WebSocket."""
        return (
            self._should_upgrade_to_ws()
            and self.parser.get_method() == b"GET"
            and self.parser.get_http_version() == "1.1"
            and b"websocket" in self._tokens(b"upgrade")
            and b"upgrade" in self._tokens(b"connection")
        )

    def _ignores_offer(self) -> bool:
        return bool(self.parser.should_upgrade() and not self._should_upgrade())

    def _tokens(self, header: bytes) -> list[bytes]:
        """The members of a header that is a list, in lower case."""
        values = [value for name, value in self.headers if name == header]
        return [token.strip().lower() for token in b",".join(values).split(b",")]

    def _head_without_offer(self) -> bytes:
        """The head that was parsed, without what offers an upgrade."""
        kept = [token for token in self._tokens(b"connection") if token not in {b"", *_OFFERS}]
        headers = [
            (name, value)
            for name, value in self.headers
            if name not in _OFFERS and name != b"connection"
        ]
        headers += [(b"connection", b", ".join(kept))] if kept else []
        version = self.parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, version)]
        return b"\r\n".join([*lines, *(b"%b: %b" % header for header in headers), b"", b""])

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """The client sends no more. Returns whether it still gets an answer. While requests wait
        behind another one nothing is read, so this is about the last of them."""
        if self._state != IDLE or self.cycle is None or self.cycle.response_complete:
            return None
        self.cycle.keep_alive = False  # of the last request: the connection ends behind its answer
        self._stop_timer()
        self._timer = self.loop.call_later(HALF_CLOSED_S, self._left)
        return True

    def _left(self) -> None:
        """End the connection, unless an answer is under way, which fails if the client is gone."""
        self._timer = None
        if not self.cycle.response_started:
            self.transport.close()

    def on_message_begin(self) -> None:
        """A head begins."""
        self._state = HEAD
        self._head_bytes = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """The head is complete."""
        if self._ignores_offer():
            return  # it is parsed again
        if mistake := self._mistake():
            self._refuse(errors.invalid_request(mistake, code="invalid_http"), "malformed")
            raise Refused
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
        if self.parser.should_upgrade():
            return
        # `cycle` is that of the newest request.
        self.cycle.transport = JoinedHead(self.transport, self.loop)  # type: ignore[assignment]
        if self.parser.get_http_version() == "1.0":
            # As if the application had said a length.
            self.cycle.chunked_encoding = False
            self.cycle.expected_content_length = _AnyLength()
        if len(self.pipeline) > MAX_PIPELINED:
            telemetry.CONNECTIONS_REFUSED.labels(reason="pipeline").inc()
            self.transport.abort()
            raise Refused

    def _mistake(self) -> str:
        """What the headers do not keep of RFC 9112; empty if they keep it."""
        counts = Counter(name for name, _ in self.headers if name in ONCE)
        if not counts[b"host"] and self.parser.get_http_version() == "1.1":
            return "A request of HTTP/1.1 has the header 'host'."
        twice = [name.decode() for name, count in counts.items() if count > 1]
        return f"The header '{twice[0]}' is there more than once." if twice else ""

    def on_message_complete(self) -> None:
        """The body is complete."""
        if self._ignores_offer():
            return
        self._state = IDLE
        super().on_message_complete()

    def handle_websocket_upgrade(self) -> None:
        """Hand the connection and its place over. Nothing of this object stays referenced."""
        self._stop_timer()
        # The parser of handshakes refuses any length; Java 17's client always sends 0.
        self.scope["headers"] = [each for each in self.headers if not _is_empty_length(*each)]
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


class JoinedHead:
    """A transport for one answer: its head goes out with what is written in the same turn of the
    loop. A write costs a system call, and the client a packet."""

    __slots__ = ("_head", "_loop", "_started", "_transport")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._started = False
        self._head = b""

    def write(self, data: bytes) -> None:
        """The first one is held until the next one, or the next turn of the loop."""
        if self._head:
            head, self._head = self._head, b""
            self._transport.write(head + data)
        elif self._started:
            self._transport.write(data)
        else:
            self._started, self._head = True, data
            self._loop.call_soon(self._flush)

    def is_closing(self) -> bool:
        """Whether the connection is closed or closing."""
        return self._transport.is_closing()

    def close(self) -> None:
        """Close the connection once all is written."""
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        if self._head and not self._transport.is_closing():
            self.write(b"")


class _AnyLength(int):
    """The expected length of a body that the end of the connection ends: any is right."""

    def __lt__(self, _: int) -> bool:
        return False

    def __ne__(self, _: object) -> bool:
        return False

    def __sub__(self, _: int) -> _AnyLength:
        return self

    __hash__ = int.__hash__


def _is_empty_length(name: bytes, value: bytes) -> bool:
    return name == b"content-length" and not value.strip(b"0")


def missing(base: type = HttpToolsProtocol) -> list[str]:
    """Names that `HttpProtocol` needs and `base` lacks; empty if it has all."""
    try:
        source, cycle = inspect.getsource(base), inspect.getsource(httptools_impl)
    except (OSError, TypeError):
        return ["its source"]
    methods = (
        *("connection_made", "connection_lost", "data_received", "handle_websocket_upgrade"),
        *("on_message_begin", "on_headers_complete", "on_message_complete", "send_400_response"),
        *("eof_received", "_unset_keepalive_if_required", "_should_upgrade_to_ws"),
    )
    features = {
        "self.parser = httptools.HttpRequestParser(self)": "the parser",
        "self.cycle = RequestResponseCycle(": "cycle",
        "self.parser.get_method()": "the parser's method",
        "self.ws_protocol_class(": "ws_protocol_class",
        "self.pipeline.appendleft(": "pipeline",
        "self.scope = {": "scope",
        "self.headers.append((name, value))": "headers",
        "self.parser = None": "a parser that may be dropped",
    }
    of_cycle = (
        *("if self.chunked_encoding is None and", "num_bytes > self.expected_content_length"),
        *("self.expected_content_length -= num_bytes", "self.expected_content_length != 0"),
        'self.transport.write(b"".join(content))',
    )
    missing_methods = [name for name in methods if not callable(getattr(base, name, None))]
    return [
        *missing_methods,
        *(feature for text, feature in features.items() if text not in source),
        *(text for text in of_cycle if text not in cycle),
    ]


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
