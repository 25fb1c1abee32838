"""uvicorn's WebSocket protocol, with bounds on what a client can make it do, and less of it kept.

    handshake      answered within HANDSHAKE_S, also when the library finds it malformed
    frames         at most MAX_FRAMES a second, MAX_CONTROLS of them control frames
    fragments      at most MAX_FRAGMENTS of one message, which comes within MESSAGE_S
    reading        stops while a message waits for the application, and while the client does not
                   take what is written to it (its pongs); what has come already waits as bytes
    parsing        SLICE_BYTES at a time, at most TURN_FRAMES frames before others have their turn,
                   and not before the frames of all sockets of the address are within its rate
    backlog        data that waits to be parsed for BACKLOG_S without a pause is a flood, if more
                   than BACKLOG_FRAMES were read in that time
    keep-alive     not of a client whose frames wait here: its pong may be among them

A client above a bound is closed with 1008. So is one that has us keep more than there is room for
at its address (`tailrace/connections/caps.py`).

There are thousands of sockets that say nothing. For each uvicorn keeps a queue of four deques for
messages that are read one by one, and the request of the handshake, which nothing reads again:
together 4 KiB, a sixth of what an idle socket takes. This class keeps neither.

The class depends on names that uvicorn does not document. `missing` lists those that are gone;
then `protocol_class` returns uvicorn's own class, which has none of these bounds.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import re
from collections import deque
from collections.abc import Awaitable
from typing import Any, Final

import uvicorn
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame, Opcode
from websockets.http11 import Request
from websockets.server import ServerProtocol

from tailrace import telemetry
from tailrace.connections import caps, refusal
from tailrace.protocol import close_codes, errors

TRIED_WITH: Final = "0.54"

HANDSHAKE_S: Final = 5.0
MAX_FRAMES: Final = 1_000
MAX_CONTROLS: Final = 100
MAX_FRAGMENTS: Final = 256
MESSAGE_S: Final = 30.0
BACKLOG_S: Final = 10.0
BACKLOG_FRAMES: Final = 2_500
# A flood is not divided by a moment in which all that came is parsed.
PAUSE_S: Final = 1.0
# A frame takes 6 bytes or more, and some 8 µs: a slice of the smallest ones takes 1.4 ms.
SLICE_BYTES: Final = 1024
TURN_FRAMES: Final = 128

_CONTROL: Final = 0x8  # opcodes from here on are control frames


class Inbox:
    """The part of `asyncio.Queue` that the protocol uses: one reader, no bound (the protocol pauses
    reading by itself).

    Attributes:
        _items: what came and was not read; None while there is nothing.
        _waiter: of the reader, while it waits; None otherwise.
    """

    __slots__ = ("_items", "_waiter")

    def __init__(self) -> None:
        self._items: deque[Any] | None = None
        self._waiter: asyncio.Future[None] | None = None

    def empty(self) -> bool:
        """Whether nothing waits to be read."""
        return not self._items

    def qsize(self) -> int:
        """How many items wait to be read."""
        return len(self._items or ())

    def put_nowait(self, item: Any) -> None:
        """Add an item; never waits."""
        if self._items is None:
            self._items = deque()
        self._items.append(item)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def get(self) -> Any:
        """Wait for the oldest item and remove it. Safe to cancel."""
        while not self._items:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        item = self._items.popleft()
        if not self._items:
            self._items = None
        return item


class Frames(ServerProtocol):
    """The library's frames of one connection, to which a close in the middle of a message would be
    a violation. RFC 6455 (section 5.4) allows it there, and the client gets its own code back."""

    def recv_frame(self, frame: Frame) -> None:
        """Take one frame."""
        if frame.opcode is Opcode.CLOSE:
            self.cur_size = None
        super().recv_frame(frame)


class Protocol(WebSocketsSansIOProtocol):
    """One connection.

    The attributes that count stand in the class until the client sends its first frame: an idle
    socket keeps none of them.

    Attributes:
        _place: among the server's connections; None when they are not counted.
        _at: where the client is, until the connection is made.
        held: bytes that were read and not parsed yet; empty while the parser keeps up.
        _turn: whether the rest of `held` is parsed in a later turn of the event loop.
        _second, _frames, _controls: how many frames came in which second of the loop's clock.
        _fragments: of the message that is not complete.
        _backlog_since, _backlog: since when something has waited to be parsed, and how many frames
            were read since then.
        _caught_up: when all that had come was parsed; None while something waits.
        _slow_timer: reads on when it is the turn of this connection among those of its address that
            sends too much; None while it waits for none.
        _late: ends a handshake or a message that is not complete in time; None while there is none.
    """

    takes_places = True

    queue: Any
    request: Any
    transport: Any
    held: bytes = b""
    _turn = False
    _second = 0
    _frames = 0
    _controls = 0
    _fragments = 0
    _backlog_since = 0.0
    _backlog = 0
    _caught_up: float | None = -PAUSE_S
    _slow_timer: asyncio.TimerHandle | None = None
    _late: asyncio.TimerHandle | None = None
    _place: caps.Place | None = None
    _at: tuple[str, int] | None = None

    def __init__(
        self,
        *args: Any,
        place: caps.Place | None = None,
        client: tuple[str, int] | None = None,
        **options: Any,
    ) -> None:
        """
        Args:
            place: of this connection, which counts already.
            client: where the client is, if not where the connection comes from.
        """
        super().__init__(*args, **options)
        self.conn.__class__ = Frames  # made by uvicorn, with its options
        self.queue = Inbox()
        if place is not None:
            self._place = place
        if client is not None:
            self._at = client

    # ---- the connection

    def connection_made(self, transport: Any) -> None:
        """The handshake begins."""
        super().connection_made(transport)
        if self._at is not None:
            self.client = self._at
            del self._at
        self._late = self.loop.call_later(HANDSHAKE_S, self._handshake_is_late)

    def connection_lost(self, exc: Exception | None) -> None:
        """Give the place back."""
        self._in_time()
        if self._slow_timer is not None:
            self._slow_timer.cancel()
            self._slow_timer = None
        self.held = b""
        super().connection_lost(exc)
        if self._place is not None:
            self._place.leave()
            self._place = None

    def handle_connect(self, event: Request) -> None:
        """Answer the handshake. Its request is in the application's scope from then on."""
        super().handle_connect(event)
        self.request = None

    def _handshake_is_late(self) -> None:
        self._late = None
        if not self.handshake_complete:
            self._deny(errors.request_timeout(), "handshake")

    def _deny(self, error: errors.ApiError, reason: str) -> None:
        """Answer a handshake that the application does not answer."""
        telemetry.CONNECTIONS_REFUSED.labels(reason=reason).inc()
        if not self.transport.is_closing():
            self.transport.write(refusal.answer(error))
            self.close_sent = self.handshake_complete = True
            self.transport.close()

    def start_keepalive(self) -> None:
        """The handshake is complete: what came before its answer has its turn."""
        self._in_time()
        super().start_keepalive()
        if self.held:
            self._resume()

    def _in_time(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    # ---- reading

    def data_received(self, data: bytes) -> None:
        """Parse the data, or hold it while the application or the client lags."""
        if not self.handshake_initiated:
            super().data_received(data)
            if not self.handshake_initiated:  # malformed, and the library says nothing
                message = "Invalid WebSocket handshake received."
                self._deny(errors.invalid_request(message, code="invalid_http"), "malformed")
        elif self.held and not self.close_sent:
            self.held += data  # a read may have been under way when reading stopped
        else:
            # Once a close frame was sent, the client's is still to come, after what waits.
            rest, self.held = self.held + data, b""
            self._parse(rest)
        if self._place is not None:
            memory = len(self.held) + len(self.conn.reader.buffer) + (self.conn.cur_size or 0)
            if memory != self._place.kept and not self._place.keep(memory):
                self._abuse("bytes")

    def _parse(self, data: bytes, waited: bool = False) -> None:
        """Parse slice by slice until a peer is slow or others have their turn. `waited`: it is the
        address's turn for the first slice."""
        start, frames = 0, 0
        while start < len(data):
            if self.transport.is_closing():
                return  # nothing more is read
            if self._behind():
                self._hold(data[start:])
                return
            if frames >= TURN_FRAMES:
                self._hold(data[start:])
                self._take_turn()
                return
            if self._is_early(waited=waited and not start):
                self._hold(data[start:])
                return
            before = self._frames
            whole = not start and len(data) <= SLICE_BYTES
            super().data_received(data if whole else data[start : start + SLICE_BYTES])
            frames += max(0, self._frames - before)
            start += SLICE_BYTES

    def _behind(self) -> bool:
        """Whether the application or the client must do something before more is parsed, or the
        address has sent too much."""
        return (
            self.read_paused
            or not self.handshake_complete
            or not self.writable.is_set()
            or self._slow_timer is not None
        )

    def _hold(self, rest: bytes) -> None:
        """Keep what cannot be parsed yet, unless this has been so for too long."""
        self.held = rest
        self.transport.pause_reading()
        now = self.loop.time()
        if self._caught_up is not None:
            if now - self._caught_up >= PAUSE_S:
                self._backlog_since, self._backlog = now, 0
            self._caught_up = None
        if self._backlog > BACKLOG_FRAMES and now - self._backlog_since >= BACKLOG_S:
            self._abuse("backlog")

    def _take_turn(self) -> None:
        if not self._turn:
            self._turn = True
            self.loop.call_soon(self._continue)

    def _continue(self, waited: bool = False) -> None:
        if waited:
            self._slow_timer = None
        else:
            self._turn = False
        rest, self.held = self.held, b""
        if rest and not self.transport.is_closing():
            self._parse(rest, waited)
        if not self.held:
            self._resume()

    def _is_early(self, waited: bool) -> bool:
        """Whether the address has sent too much, and this connection now waits for its turn."""
        if waited or self._place is None or not (wait_s := self._place.wait_s(self.loop.time())):
            return False
        telemetry.CLIENTS_SLOWED.labels(reason="frames").inc()
        self._slow_timer = self.loop.call_later(wait_s, self._continue, True)
        return True

    def _resume(self) -> None:
        """Continue to read, unless a peer lags."""
        if self._behind() or self.transport.is_closing():
            return
        if self.held:
            self._take_turn()
        else:
            if self._caught_up is None:
                self._caught_up = self.loop.time()
            self.transport.resume_reading()

    def keepalive_timeout(self) -> None:
        """No pong came in time. That proves nothing while the pong may be among unread data."""
        timeout_s, caught_up = self.ping_timeout or 0.0, self._caught_up
        lags = caught_up is None or self.loop.time() - caught_up < timeout_s
        if lags or self.read_paused:
            self.pong_timer = self.loop.call_later(timeout_s, self.keepalive_timeout)
        else:
            super().keepalive_timeout()

    async def receive(self) -> Any:
        """The next message for the application. Reading continues when none remains."""
        message = await self.queue.get()
        if self.read_paused and self.queue.empty():
            self.read_paused = False
            self._resume()
        return message

    def pause_writing(self) -> None:
        """The client does not read its data, so no more data is read from it."""
        super().pause_writing()
        if not self.transport.is_closing():
            self.transport.pause_reading()

    def resume_writing(self) -> None:
        """The client has read its data."""
        super().resume_writing()
        self._resume()

    def send(self, message: Any) -> Awaitable[None]:  # type: ignore[override]
        """Send the application's message. Not a coroutine itself: every message passes it."""
        return super().send(message) if self.initial_response is None else self._refuse(message)

    async def _refuse(self, message: Any) -> None:
        """Send the body of an answer that refuses the handshake. uvicorn takes a handshake that was
        answered so for one without an answer, and logs an error."""
        await super().send(message)
        if self.close_sent:
            self.handshake_complete = True

    # ---- frames

    def handle_events(self) -> None:
        """Count the frames, then handle them."""
        if not self.handshake_complete:
            super().handle_events()
            return
        if self.conn.events:
            now = self.loop.time()
            if not self._within_bounds(int(now)):
                self._abuse("frames")
                return
            if self._place is not None:
                self._place.spend(len(self.conn.events), now)
            super().handle_events()
        if self.close_sent:
            return
        if self._late is None and (self.conn.reader.buffer or self.conn.cur_size is not None):
            self._late = self.loop.call_later(MESSAGE_S, self._message_is_late)

    def _within_bounds(self, second: int) -> bool:
        """Whether the frames that came in this second are not too many. Counts them."""
        if second != self._second:
            self._second, self._frames, self._controls = second, 0, 0
        for event in self.conn.events:
            if not isinstance(event, Frame):
                continue
            opcode = event.opcode
            self._frames += 1
            self._backlog += 1
            if opcode >= _CONTROL:
                self._controls += 1
            elif opcode is Opcode.CONT and not event.fin:
                self._fragments += 1
                if self._fragments > MAX_FRAGMENTS:
                    return False
            elif event.fin:
                if self._fragments:
                    self._fragments = 0
                self._in_time()
        return self._frames <= MAX_FRAMES and self._controls <= MAX_CONTROLS

    def send_receive_event_to_app(self) -> None:
        """Hand a whole message to the application. Reading stops until it is taken."""
        data, self.frames = b"".join(self.frames), []
        if self.close_sent:
            return
        if self.curr_msg_data_type == "text":
            try:
                message: dict[str, Any] = {"type": "websocket.receive", "text": data.decode()}
            except UnicodeDecodeError:  # an everyday refusal, where uvicorn logs a trace
                self.conn.fail(int(close_codes.CloseCode.INVALID_TEXT))
                self.handle_parser_exception()
                return
        else:
            message = {"type": "websocket.receive", "bytes": data}
        self.queue.put_nowait(message)
        if not self.read_paused:
            self.read_paused = True
            self.transport.pause_reading()

    def _message_is_late(self) -> None:
        self._late = None
        if self.conn.reader.buffer or self.conn.cur_size is not None:
            self._abuse("message")

    def _abuse(self, reason: str) -> None:
        """Close with 1008; nothing more of the client is read."""
        telemetry.CONNECTIONS_REFUSED.labels(reason=reason).inc()
        if self.close_sent:
            self.transport.abort()
            return
        code = close_codes.CloseCode.POLICY
        self.conn.fail(int(code), close_codes.TABLE[code].reason)
        self.held = b""
        self.frames = []
        self.handle_parser_exception()


@functools.cache
def _source(base: type) -> str | None:
    try:
        return inspect.getsource(base)
    except (OSError, TypeError):
        return None


def missing(base: type = WebSocketsSansIOProtocol) -> list[str]:
    """Names that `Protocol` needs and `base` lacks; empty if it has all."""
    source = _source(base)
    if source is None:
        return ["its source"]
    methods = (
        *("connection_made", "connection_lost", "data_received", "handle_connect"),
        *("handle_events", "handle_parser_exception", "pause_writing", "resume_writing"),
        *("receive", "send", "start_keepalive", "keepalive_timeout"),
    )
    relied_on = {
        **{name: hasattr(base, name) for name in methods},
        "queue": "self.queue" in source,
        "queue.put_nowait": "self.queue.put_nowait(" in source,
        "queue.get": "await self.queue.get()" in source,
        "request, set and not read": re.findall(r"self\.request\b( = )?", source) == [" = "],
        "conn, which receives all data": "self.conn.receive_data(data)" in source,
        "events, handled after each": "for event in self.conn.events_received():" in source,
        "read_paused": "self.read_paused = True" in source,
        "writable": "self.writable.clear()" in source,
        "handshake_initiated": "self.handshake_initiated = True" in source,
        "handshake_complete": "self.handshake_complete = True" in source,
        "close_sent": "self.close_sent = True" in source,
        "initial_response": "self.initial_response = (" in source,
        "pong_timer": "call_later(self.ping_timeout, self.keepalive_timeout)" in source,
    }
    members = {part.split("(")[0].split(")")[0] for part in source.split("self.queue.")[1:]}
    others = sorted(f"queue.{name}" for name in members if not hasattr(Inbox, name))
    connection = vars(ServerProtocol())
    others += [
        f"conn.{name}" for name in ("events", "reader", "cur_size") if name not in connection
    ]
    if not callable(getattr(ServerProtocol, "recv_frame", None)):
        others.append("conn.recv_frame")
    return [name for name, there in relied_on.items() if not there] + others


def protocol_class(base: type = WebSocketsSansIOProtocol) -> Any:
    """The class of WebSocket connections: `Protocol`, or uvicorn's own where it has changed."""
    if differences := missing(base):
        telemetry.log(
            telemetry.Action.NOTE,
            part="websocket_protocol",
            version=uvicorn.__version__,
            tried_with=TRIED_WITH,
            changed=differences,
        )
        return "websockets-sansio"
    return Protocol
