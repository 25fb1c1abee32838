"""A uvicorn with the protocols of this room, and clients that write bytes."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import uvicorn

from tailrace import admin
from tailrace.connections import caps, http_protocol, token_buckets, websocket_protocol
from tailrace.web import listener
from tests.support import waiting

HANDSHAKE = (
    "GET /socket HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: "
    f"{base64.b64encode(bytes(16)).decode()}\r\n"
)
GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


@dataclass
class App:
    """Answers requests with the client's address, at /echo with their body, at /stream in two parts
    without a length, while `answering`, and takes messages of sockets while `taking`.

    Attributes:
        seen: addresses of clients.
        messages: what came over sockets.
        closing: whether a message is answered with a close.
        refusing: whether a handshake is refused.
    """

    seen: list[str] = field(default_factory=list)
    messages: list[Any] = field(default_factory=list)
    taking: asyncio.Event = field(default_factory=asyncio.Event)
    closing: bool = False
    refusing: bool = False
    accepting: asyncio.Event = field(default_factory=asyncio.Event)
    answering: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.taking.set()
        self.accepting.set()
        self.answering.set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.seen.append(scope["client"][0])
        if scope["type"] == "http":
            body = scope["client"][0].encode()
            if scope["path"] == "/echo":
                body = b""
                more = True
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return
                    body += message["body"]
                    more = message["more_body"]
            await self.answering.wait()
            if scope["path"] == "/stream":
                await send({"type": "http.response.start", "status": 200, "headers": []})
                await send({"type": "http.response.body", "body": b"one,", "more_body": True})
                await send({"type": "http.response.body", "body": b"two"})
                return
            headers = [(b"content-length", str(len(body)).encode())]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": body})
            return
        assert (await receive())["type"] == "websocket.connect"
        await self.accepting.wait()
        if self.refusing:
            start = {"type": "websocket.http.response.start", "status": 401, "headers": []}
            await send(start)
            await send({"type": "websocket.http.response.body", "body": b"no", "more_body": True})
            await send({"type": "websocket.http.response.body", "body": b"body"})
            return
        await send({"type": "websocket.accept"})
        while True:
            await self.taking.wait()
            message = await receive()
            if message["type"] == "websocket.disconnect":
                return
            self.messages.append(message.get("text") or message.get("bytes"))
            if self.closing:
                await send({"type": "websocket.close", "code": 4000})


@dataclass
class Server:
    """A server that listens."""

    app: App
    bounds: caps.Caps
    port: int

    @contextlib.asynccontextmanager
    async def client(self, source: str = "127.0.0.2") -> AsyncIterator[Client]:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self.port, local_addr=(source, 0)
        )
        try:
            yield Client(reader, writer)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    @contextlib.asynccontextmanager
    async def socket(self, source: str = "127.0.0.2") -> AsyncIterator[Client]:
        """A WebSocket after its handshake."""
        async with self.client(source) as client:
            client.send(HANDSHAKE.encode() + b"\r\n")
            assert b" 101 " in await client.read(b"\r\n\r\n")
            yield client


@dataclass
class Client:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def read(self, until: bytes) -> bytes:
        """Up to and with this mark."""
        async with asyncio.timeout(10):
            return await self.reader.readuntil(until)

    async def rest(self) -> bytes:
        """Everything until the server closes."""
        got = bytearray()
        async with asyncio.timeout(10):
            with contextlib.suppress(ConnectionError):
                while some := await self.reader.read(65_536):
                    got += some
        return bytes(got)

    async def close_code(self) -> int:
        """The code of the close frame, which must be the last that comes."""
        got = await self.rest()
        at = got.rfind(b"\x88")
        assert at >= 0, got
        return int.from_bytes(got[at + 2 : at + 4], "big")


@contextlib.asynccontextmanager
async def serving(
    total: int = 100,
    per_address: int = 50,
    proxies: caps.Proxies | None = None,
    frames: token_buckets.TokenBuckets | None = None,
) -> AsyncIterator[Server]:
    app, bounds = App(), caps.Caps(total, per_address, proxies, frames)
    server = admin.Server(
        uvicorn.Config(
            app,
            http=http_protocol.over(bounds),
            ws=websocket_protocol.protocol_class(),
            ws_max_size=128 * 1024,
            ws_per_message_deflate=False,
            lifespan="off",
            log_config=None,
            access_log=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=1,
        )
    )
    with contextlib.closing(listener.bind("127.0.0.1", 0)) as bound:
        task = asyncio.ensure_future(server.serve(sockets=[bound]))
        await waiting.eventually(lambda: server.started, "it listens")
        try:
            yield Server(app, bounds, bound.getsockname()[1])
        finally:
            server.should_exit = True
            await asyncio.wait_for(task, 20)
    await waiting.eventually(lambda: bounds.open == 0, "every place is given back")
    assert not bounds.by_address
    assert not bounds.kept


def frame(opcode: int, payload: bytes = b"", *, fin: bool = True) -> bytes:
    """A masked frame with a mask of zeros."""
    head = bytes([(0x80 if fin else 0) | opcode])
    if len(payload) < 126:
        return head + bytes([0x80 | len(payload)]) + bytes(4) + payload
    if len(payload) < 65_536:
        return head + b"\xfe" + len(payload).to_bytes(2, "big") + bytes(4) + payload
    return head + b"\xff" + len(payload).to_bytes(8, "big") + bytes(4) + payload
