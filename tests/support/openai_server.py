"""A small OpenAI-compatible server on a real socket, with the manners of bad ones on cue.

The last user message says what to do: `n` words are streamed; `status 400`, `cut`, `garbage`,
`error`, `no usage`, `silent`, `slow` misbehave.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any


class Server:
    """Attributes: `requests` are the bodies received; `open` streams not yet ended; `closed_early`
    those the client left."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.headers: list[str] = []
        self.open = 0
        self.closed_early = 0
        self.fail_first = 0  # so many chat requests are answered with 503
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aenter__(self) -> Server:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = next(
                    (
                        int(line[15:])
                        for line in head.split("\r\n")
                        if line.lower().startswith("content-length:")
                    ),
                    0,
                )
                body = json.loads(await reader.readexactly(length)) if length else {}
                if head.startswith("GET /v1/models"):
                    self._answer(writer, 200, {"data": [{"id": "m"}]})
                elif head.startswith("POST /v1/chat/completions"):
                    self.requests.append(body)
                    self.headers.append(head)
                    if not await self._chat(body, reader, writer):
                        break
                else:
                    self._answer(writer, 404, {"error": {"message": "no such path"}})
                await writer.drain()
        writer.close()

    def _answer(self, writer: asyncio.StreamWriter, status: int, value: dict[str, Any]) -> None:
        body = json.dumps(value).encode()
        writer.write(
            (
                f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: "
                f"{len(body)}\r\n\r\n"
            ).encode()
            + body
        )

    async def _chat(
        self, body: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Whether the connection is kept."""
        cue = body["messages"][-1]["content"]
        if self.fail_first > 0:
            self.fail_first -= 1
            self._answer(writer, 503, {"error": {"message": "loading"}})
            return True
        if cue.startswith("status "):
            self._answer(
                writer,
                int(cue[7:10]),
                {"error": {"message": f"refused: {cue}", "code": "bad_thing"}},
            )
            return True
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: "
            b"chunked\r\n\r\n"
        )
        self.open += 1
        gone = asyncio.ensure_future(reader.read(1))
        try:
            return await self._stream(body, cue, writer, gone)
        finally:
            self.open -= 1
            gone.cancel()

    async def _stream(
        self,
        body: dict[str, Any],
        cue: str,
        writer: asyncio.StreamWriter,
        gone: asyncio.Future[bytes],
    ) -> bool:
        wanted = int(cue.split()[-1]) if cue.split()[-1].isdigit() else 5
        words = min(wanted, body.get("max_tokens", 10**6))
        for i in range(words):
            if gone.done():
                self.closed_early += 1
                return False
            _chunk(
                writer,
                {
                    "choices": [
                        {"index": 0, "delta": {"content": f"wörd{i} "}, "finish_reason": None}
                    ]
                },
            )
            await writer.drain()
            if i == 2 and cue.startswith("cut"):
                writer.transport.abort()
                return False
            if i == 2 and cue.startswith("garbage"):
                _raw(writer, "data: {not json\n\n")
            if i == 2 and cue.startswith("error"):
                _chunk(writer, {"error": {"message": "out of memory"}})
            if cue.startswith("slow"):
                await asyncio.sleep(0.02)
        if cue.startswith("silent"):
            await gone
            self.closed_early += 1
            return False
        _chunk(
            writer,
            {
                "choices": [
                    {
                        "index": 0,
                        "delta": {},
                        "finish_reason": "length" if words < wanted else "stop",
                    }
                ]
            },
        )
        if not cue.startswith("no usage"):
            details = {"cached_tokens": 2}
            _chunk(
                writer,
                {
                    "choices": [],
                    "usage": {
                        "prompt_tokens": 7,
                        "completion_tokens": words,
                        "prompt_tokens_details": details,
                    },
                },
            )
        _raw(writer, "data: [DONE]\n\n")
        writer.write(b"0\r\n\r\n")
        return not gone.done()


def _chunk(writer: asyncio.StreamWriter, value: dict[str, Any]) -> None:
    _raw(writer, f"data: {json.dumps({'object': 'chat.completion.chunk', **value})}\n\n")


def _raw(writer: asyncio.StreamWriter, text: str) -> None:
    data = text.encode()
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
