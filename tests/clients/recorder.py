"""A proxy on the loopback interface that keeps what a client sends, and changes nothing.

It copies bytes. What they say is read afterwards from the copy: one request or message a file.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import h11
from websockets.extensions.permessage_deflate import ServerPerMessageDeflateFactory
from websockets.frames import OP_BINARY, OP_CONT, OP_TEXT, Frame
from websockets.http11 import Request
from websockets.server import ServerProtocol

from gateway.parsing import (
    chat_api,
    completions_api,
    conversations_api,
    embeddings_api,
    responses_api,
)
from tailrace.protocol import errors
from tailrace.settings.catalog import Catalog
from tailrace.settings.shapes import Pool

MODEL: Final = "smollm2-135m-instruct"
CHUNK: Final = 65_536
SAMPLE: Final = 200  # characters of a text
_NAME: Final = re.compile(r"/(?:conv|resp|file|msg|rs|fc|fco)_[A-Za-z0-9_-]+")
POOLS: Final = Catalog(
    (Pool("default", (MODEL,), max_model_len=1 << 20, default_output_tokens=1024),)
)


class Recorder:
    """Between a client and `port`, in a thread of its own."""

    def __init__(self, port: int, folder: Path) -> None:
        self.port = 0
        self._to = port
        self._folder = folder
        self._numbers = itertools.count()
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run)
        folder.mkdir(parents=True)

    def __enter__(self) -> Recorder:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        for copy in sorted(self._folder.glob("*.raw")):
            for number, body in enumerate(bodies(copy.read_bytes())):
                copy.with_suffix(f".{number:03}.json").write_text(json.dumps(body, indent=1))
            copy.unlink()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        server.close()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        copy = self._folder / f"{next(self._numbers):04}.raw"
        # Cancelled at the end, which a server's own task takes for an error.
        gone = (OSError, asyncio.CancelledError)
        with copy.open("wb", buffering=0) as kept, contextlib.suppress(*gone):
            there, back = await asyncio.open_connection("127.0.0.1", self._to)
            await asyncio.gather(_copied(reader, back, kept), _copied(there, writer, None))


async def _copied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kept: Any) -> None:
    try:
        while data := await reader.read(CHUNK):
            if kept is not None:
                kept.write(data)
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()


def bodies(raw: bytes) -> Iterator[dict[str, Any]]:
    """What was asked on one connection: `{"path": …, "body": …}` for each request or message."""
    if b"upgrade: websocket" in raw[:4000].lower():
        yield from _messages(raw)
        return
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(raw)
    target, body = "", b""
    with contextlib.suppress(h11.RemoteProtocolError):
        while True:
            event = connection.next_event()
            if isinstance(event, h11.Request):
                target, body = f"{event.method.decode()} {event.target.decode()}", b""
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                yield {"path": target, "body": _decoded(body)}
                # As if it were answered: the next request is read only then.
                connection.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
                connection.send(h11.EndOfMessage())
                if connection.our_state is h11.MUST_CLOSE:
                    return
                connection.start_next_cycle()
            elif event in (h11.NEED_DATA, h11.PAUSED) or isinstance(event, h11.ConnectionClosed):
                return


def _messages(raw: bytes) -> Iterator[dict[str, Any]]:
    protocol = ServerProtocol(
        extensions=[ServerPerMessageDeflateFactory()],
        select_subprotocol=lambda _, offered: offered[0] if offered else None,
    )
    head, _, rest = raw.partition(b"\r\n\r\n")
    protocol.receive_data(head + b"\r\n\r\n")
    path = ""
    for event in protocol.events_received():
        assert isinstance(event, Request)
        path = f"WS {event.path}"
        protocol.send_response(protocol.accept(event))
    protocol.receive_data(rest)
    message = b""
    for event in protocol.events_received():
        assert isinstance(event, Frame)
        if event.opcode in (OP_TEXT, OP_BINARY, OP_CONT):
            message += event.data
            if event.fin:
                yield {"path": path, "body": _decoded(message)}
                message = b""


def _decoded(body: bytes) -> Any:
    try:
        return json.loads(body) if body else None
    except ValueError:
        return body.decode(errors="replace")


def sample(folder: Path) -> list[dict[str, Any]]:
    """One body of each shape in the folders below `folder`, for the unit tests of the parsing;
    long texts are cut."""
    found: dict[str, dict[str, Any]] = {}
    for copy in sorted(folder.glob("*/*.json")):
        kept = json.loads(copy.read_text())
        if isinstance(kept["body"], dict):
            body = _cut(kept["body"])
            path = _NAME.sub("/{id}", kept["path"])
            key = json.dumps([copy.parent.name, path, _shape(body)])
            found.setdefault(key, {"client": copy.parent.name, "path": path, "body": body})
    return list(found.values())


def _cut(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _cut(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_cut(each) for each in value]
    return value[:SAMPLE] if isinstance(value, str) else value


def _shape(value: Any) -> Any:
    """Names and types."""
    if isinstance(value, dict):
        return {key: _shape(each) for key, each in sorted(value.items())}
    if isinstance(value, list):
        return sorted({json.dumps(_shape(each)) for each in value})
    return type(value).__name__


def refused(folder: Path) -> list[str]:
    """What the gateway's parsing refuses of the bodies in `folder`, and why."""
    found = []
    for copy in sorted(folder.glob("*.json")):
        kept = json.loads(copy.read_text())
        path, body = kept["path"], kept["body"]
        if not isinstance(body, dict):
            continue
        body.pop("event_id", None)
        try:
            if path.startswith("POST /v1/chat/completions"):
                chat_api.parse(body, POOLS)
            elif path == "POST /v1/completions":
                completions_api.parse(body, POOLS)
            elif path == "POST /v1/embeddings":
                embeddings_api.parse(body, POOLS)
            elif path == "POST /v1/conversations":
                conversations_api.parse_create(body)
            elif path.startswith("POST /v1/conversations/"):
                read = (
                    conversations_api.parse_items
                    if "items" in body
                    else conversations_api.parse_update
                )
                read(body)
            elif path == "POST /v1/responses" or body.get("type") == "response.create":
                responses_api.parse(body, POOLS)
        except errors.ApiError as error:
            found.append(f"{copy.name} {error.param}: {error.message}")
    return found
