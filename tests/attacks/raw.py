"""Clients that do not keep to the rules: bytes on a TCP connection, WebSocket frames by hand.

Every address of 127.0.0.0/8 is this machine, so an attacker has an address of its own (`ATTACKER`,
or any `127.0.0.x`) and the bystander another one: caps per address tell them apart.
"""

from __future__ import annotations

import base64
import contextlib
import os
import select
import socket
import struct
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

ATTACKER: Final = "127.0.0.2"
CONNECT_S: Final = 5.0
TEXT, BINARY, CONTINUATION, CLOSE, PING, PONG = 0x1, 0x2, 0x0, 0x8, 0x9, 0xA


def connect(port: int, *, source: str = ATTACKER, receive_bytes: int = 0) -> socket.socket:
    """A TCP connection; blocking, with a timeout. `receive_bytes`: size of its receive buffer (for
    clients that do not read)."""
    made = socket.socket()
    if receive_bytes:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    made.settimeout(CONNECT_S)
    try:
        made.bind((source, 0))
        made.connect(("127.0.0.1", port))
    except BaseException:
        made.close()
        raise
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


@contextlib.contextmanager
def connections(port: int, count: int, *, source: str = ATTACKER) -> Iterator[list[socket.socket]]:
    """As many of `count` connections as the service accepts; closed at the end."""
    made: list[socket.socket] = []
    try:
        for _ in range(count):
            with contextlib.suppress(OSError):
                made.append(connect(port, source=source))
        yield made
    finally:
        for one in made:
            one.close()


def drip(sock: socket.socket, data: bytes, every_s: float) -> bool:
    """Send one byte after the other. Returns whether all of it was taken."""
    for byte in data:
        try:
            sock.send(bytes([byte]))
        except OSError:
            return False
        if is_closed(sock, within_s=every_s):
            return False
    return True


def flood(sock: socket.socket, data: bytes, *, bytes_at_most: int, seconds: float) -> int:
    """Send `data` again and again without reading. Returns how many bytes were taken.

    Ends at the bound, after `seconds`, or when the service has closed the connection.
    """
    end, taken = time.monotonic() + seconds, 0
    view = memoryview(data)
    offset = 0
    sock.setblocking(False)
    try:
        while taken < bytes_at_most and (left := end - time.monotonic()) > 0:
            if not _ready(sock, select.POLLOUT, min(left, 0.2)):
                continue
            try:
                sent = sock.send(view[offset:])
            except BlockingIOError:
                continue
            except OSError:
                break
            taken += sent
            offset = (offset + sent) % len(data)
    finally:
        sock.settimeout(CONNECT_S)
    return taken


def read(sock: socket.socket, within_s: float = 10.0, until: bytes = b"") -> bytes:
    """What comes until the service closes, `until` has come, or `within_s` seconds are over."""
    end, got = time.monotonic() + within_s, bytearray()
    while (left := end - time.monotonic()) > 0 and not (until and until in got):
        sock.settimeout(left)
        try:
            some = sock.recv(65_536)
        except OSError:
            break
        if not some:
            break
        got += some
    sock.settimeout(CONNECT_S)
    return bytes(got)


def is_closed(sock: socket.socket, within_s: float) -> bool:
    """Whether the service closes the connection in this time. What it sends is thrown away."""
    end = time.monotonic() + within_s
    while (left := end - time.monotonic()) > 0:
        if not _ready(sock, select.POLLIN, left):
            return False
        try:
            if not sock.recv(65_536):
                return True
        except OSError:
            return True
    return False


def still_open(socks: list[socket.socket]) -> list[socket.socket]:
    """Those that the service has not closed. What it sent is thrown away."""
    return [sock for sock in socks if not is_closed(sock, within_s=0.001)]


def _ready(sock: socket.socket, event: int, within_s: float) -> bool:
    # `select` knows no more than 1,024 descriptors.
    poll = select.poll()
    poll.register(sock, event)
    return bool(poll.poll(1000 * within_s))


def status(answer: bytes) -> int:
    """The HTTP status of an answer; 0 when there is none."""
    with contextlib.suppress(IndexError, ValueError):
        return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/") else 0
    return 0


def request(method: str, path: str, headers: Mapping[str, str], body: bytes = b"") -> bytes:
    """An HTTP/1.1 request. `Host` and the length of the body are added unless given."""
    given = {"Host": "127.0.0.1", **headers}
    if body:
        given.setdefault("Content-Length", str(len(body)))
    lines = [f"{method} {path} HTTP/1.1", *(f"{n}: {v}" for n, v in given.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def handshake(path: str, headers: Mapping[str, str]) -> bytes:
    """The request that opens a WebSocket."""
    wanted = {
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": base64.b64encode(os.urandom(16)).decode(),
    }
    return request("GET", path, {**wanted, **headers})


def frame(
    opcode: int, payload: bytes = b"", *, fin: bool = True, masked: bool = True, rsv: int = 0
) -> bytes:
    """One WebSocket frame. `rsv`: the three reserved bits as a number from 0 to 7."""
    head = bytes([(0x80 if fin else 0) | rsv << 4 | opcode])
    mark = 0x80 if masked else 0
    if len(payload) < 126:
        head += bytes([mark | len(payload)])
    elif len(payload) < 65_536:
        head += bytes([mark | 126]) + struct.pack("!H", len(payload))
    else:
        head += bytes([mark | 127]) + struct.pack("!Q", len(payload))
    # A mask of zeros leaves the payload as it is, and is allowed.
    return head + (bytes(4) if masked else b"") + payload


@dataclass
class Socket:
    """A WebSocket by hand. Open it with `opened`.

    Attributes:
        _left: bytes that were read and are no whole frame yet.
    """

    tcp: socket.socket
    _left: bytearray = field(default_factory=bytearray)

    def send(self, opcode: int, payload: bytes = b"", **how: bool) -> None:
        """Send one frame. `how`: as for `frame`."""
        self.tcp.sendall(frame(opcode, payload, **how))

    def next_frame(self, within_s: float = 10.0) -> tuple[int, bytes] | None:
        """The next frame's opcode and payload; None when the connection closed or nothing came."""
        end = time.monotonic() + within_s
        while (found := self._cut()) is None:
            if (left := end - time.monotonic()) <= 0:
                return None
            self.tcp.settimeout(left)
            try:
                some = self.tcp.recv(65_536)
            except OSError:
                return None
            if not some:
                return None
            self._left += some
        return found

    def closed_by_peer(self) -> bool:
        """Whether the service has closed the connection. Reads nothing."""
        try:
            return _ready(self.tcp, select.POLLIN, 0) and not self.tcp.recv(1, socket.MSG_PEEK)
        except OSError:
            return True

    def close_code(self, within_s: float = 10.0) -> int:
        """The code that the service closes with, whatever it sends before; 1006 when the connection
        ends without one; 0 when it is still open."""
        end = time.monotonic() + within_s
        while (left := end - time.monotonic()) > 0:
            found = self.next_frame(left)
            if found is None:
                return 1006 if time.monotonic() < end else 0
            if found[0] == CLOSE:
                return int.from_bytes(found[1][:2], "big") if len(found[1]) >= 2 else 1005
        return 0

    def _cut(self) -> tuple[int, bytes] | None:
        data = self._left
        if len(data) < 2:
            return None
        length, at = data[1] & 0x7F, 2
        if length >= 126:
            size = 2 if length == 126 else 8
            if len(data) < 2 + size:
                return None
            length, at = int.from_bytes(data[2 : 2 + size], "big"), 2 + size
        if len(data) < at + length:
            return None
        found = data[0] & 0x0F, bytes(data[at : at + length])
        del data[: at + length]
        return found


@contextlib.contextmanager
def opened(
    port: int,
    path: str,
    headers: Mapping[str, str],
    *,
    source: str = ATTACKER,
    receive_bytes: int = 0,
) -> Iterator[Socket]:
    """A WebSocket after its handshake; the connection is closed at the end."""
    with connect(port, source=source, receive_bytes=receive_bytes) as tcp:
        tcp.sendall(handshake(path, headers))
        answer = read(tcp, until=b"\r\n\r\n")
        assert status(answer) == 101, answer[:500]
        yield Socket(tcp, bytearray(answer.partition(b"\r\n\r\n")[2]))
