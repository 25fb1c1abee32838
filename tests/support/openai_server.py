"""A small OpenAI-compatible server on a real socket, with the manners of bad ones on cue.

The last user message says what to do: `n` words are streamed; `status 400`, `cut`, `garbage`,
`error`, `no usage`, `silent`, `slow`, `think`, `call`, `mute`, `filtered` misbehave or do more.

It counts as tokens: of a prompt 3 and the words of all messages, 3 where an assistant's message
begins, 2 where it ends; of an answer its words. With `continues` it leaves the last
message of an assistant open when it is asked to, and goes on with the word behind it. It is an
authorization server too (`POST /token`).
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs


@dataclass
class Refusal:
    """One answer that is not 200."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    error: dict[str, Any] = field(default_factory=lambda: {"message": "not now"})


class Server:
    """
    Attributes:
        requests: bodies of streamed chat requests.
        questions: bodies of chat requests that are not streamed: canaries.
        headers: heads of streamed chat requests.
        open: streams not yet ended.
        closed_early: streams that the client left.
        fail_first: so many streamed chat requests are answered with 503.
        refusals: the next answers to streamed chat requests.
        refuses: members of streamed chat requests that are answered with 400.
        broken: chat requests that are not streamed are answered with 500.
        keys: credentials that count; None: it asks for none.
        continues, trims, formats, tools: what it honours; `trims`: its template trims messages.
        hangs: so many streams say nothing more after their third word.
        cut_after: so many words, then the connection is lost; once.
        token_requests: forms of token requests, with `basic` as they were authorized.
        token_answers: the next answers of the token endpoint: status and object.
        lifetime_s: `expires_in` of the tokens.
    """

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.questions: list[dict[str, Any]] = []
        self.headers: list[str] = []
        self.open = 0
        self.closed_early = 0
        self.fail_first = 0
        self.refusals: list[Refusal] = []
        self.refuses: set[str] = set()
        self.broken = False
        self.keys: set[str] | None = None
        self.continues = self.trims = self.formats = self.tools = False
        self.hangs = 0
        self.cut_after: int | None = None
        self.token_requests: list[dict[str, str]] = []
        self.token_answers: list[tuple[int, dict[str, Any]]] = []
        self.lifetime_s: float = 3600
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
                length = int(_header(head, "content-length") or 0)
                content = await reader.readexactly(length) if length else b""
                if not await self._route(head, content, reader, writer):
                    break
                await writer.drain()
        writer.close()

    async def _route(
        self,
        head: str,
        content: bytes,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> bool:
        """Whether the connection is kept."""
        path = head.split(" ")[1]
        if path == "/token":
            self._token(writer, head, content)
            return True
        key = _header(head, "authorization").removeprefix("Bearer ")
        if self.keys is not None and key not in self.keys:
            error = {"message": f"Incorrect API key provided: {key}", "code": "invalid_api_key"}
            _answer(writer, 401, {"error": error})
            return True
        if path == "/v1/models":
            _answer(writer, 200, {"data": [{"id": "m"}]})
        elif path == "/tokenize" and self.continues:
            count = self._words(json.loads(content)["prompt"])
            _answer(writer, 200, {"count": count, "tokens": list(range(count))})
        elif path == "/v1/chat/completions":
            body = json.loads(content)
            if not body.get("stream"):
                self.questions.append(body)
                _answer(writer, *self._whole(body))
                return True
            self.requests.append(body)
            self.headers.append(head)
            return await self._chat(body, reader, writer)
        else:
            _answer(writer, 404, {"error": {"message": "no such path"}})
        return True

    # ---- tokens of OAuth2 ------------------------------------------------------------------------

    def _token(self, writer: asyncio.StreamWriter, head: str, content: bytes) -> None:
        form = {name: values[0] for name, values in parse_qs(content.decode()).items()}
        basic = _header(head, "authorization").removeprefix("Basic ")
        self.token_requests.append({**form, "basic": base64.b64decode(basic).decode()})
        if self.token_answers:
            status, told = self.token_answers.pop(0)
            _answer(writer, status, told)
            return
        token = f"token-{len(self.token_requests)}"
        if self.keys is not None:
            self.keys.add(token)
        told = {"access_token": token, "token_type": "Bearer", "expires_in": self.lifetime_s}
        _answer(writer, 200, told)

    # ---- answers ---------------------------------------------------------------------------------

    def _words(self, text: str) -> int:
        """Tokens of a text. White space at the end is one, if it is not trimmed."""
        return len(text.split()) + (text != text.rstrip() and not self.trims)

    def _prompt(self, body: dict[str, Any]) -> int:
        """Tokens of the prompt."""
        tokens, last = 3, body["messages"][-1]
        for message in body["messages"]:
            tokens += self._words(message["content"])
            tokens += 5 * (message["role"] == "assistant")
        continued = self.continues and body.get("continue_final_message")
        if continued and last["role"] == "assistant":
            tokens -= 2
        if not self.continues or body.get("add_generation_prompt", True):
            tokens += 3
        return tokens

    def _whole(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if self.broken:
            return 500, {"error": {"message": "broken"}}
        message: dict[str, Any] = {"role": "assistant", "content": "hello"}
        if body.get("tools"):
            if not self.tools:
                return 400, {"error": {"message": "no tools here", "code": 400}}
            if isinstance(body["tool_choice"], dict):
                call = {"name": body["tools"][0]["function"]["name"], "arguments": "{}"}
                message = {"role": "assistant", "tool_calls": [{"id": "c", "function": call}]}
        elif body.get("response_format") and self.formats:
            schema = body["response_format"]["json_schema"]["schema"]
            word = schema["properties"]["word"]["enum"][0]
            message["content"] = json.dumps({"word": word})
        usage = {"prompt_tokens": self._prompt(body), "completion_tokens": 1}
        return 200, {"choices": [{"index": 0, "message": message}], "usage": usage}

    async def _chat(
        self, body: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Whether the connection is kept."""
        users = [m for m in body["messages"] if m["role"] == "user"]
        cue = users[-1]["content"]
        if self.refusals:
            refusal = self.refusals.pop(0)
            _answer(writer, refusal.status, {"error": refusal.error}, refusal.headers)
            return True
        if self.fail_first > 0:
            self.fail_first -= 1
            _answer(writer, 503, {"error": {"message": "loading"}})
            return True
        if refused := self.refuses & body.keys():
            _answer(writer, 400, {"error": {"message": f"no {min(refused)} here"}})
            return True
        if cue.startswith("status "):
            error = {"message": f"refused: {cue}", "code": "bad_thing"}
            _answer(writer, int(cue[7:10]), {"error": error})
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
        first = self._first(body)
        end = min(wanted, first + body.get("max_tokens", 10**6))
        if cue.startswith("think"):
            _delta(writer, reasoning_content="hm, ")
            _delta(writer, reasoning="well")
        if cue.startswith("mute"):
            _raw(writer, ": keep-alive\n\n")
            await gone
            return False
        for i in range(first, end):
            if gone.done():
                self.closed_early += 1
                return False
            _delta(writer, content=self._word(body, i, first))
            await writer.drain()
            if (i == 2 and cue.startswith("cut")) or i + 1 == self.cut_after:
                self.cut_after = None
                writer.transport.abort()
                return False
            if i == 2 and self.hangs:
                self.hangs -= 1
                await gone
                self.closed_early += 1
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
        finish = "length" if end < wanted else "stop"
        if cue.startswith("call"):
            finish = "tool_calls"
            self._call(writer)
        if cue.startswith("filtered"):
            finish = "content_filter"
        if not cue.startswith("endless"):
            choice = {"index": 0, "delta": {}, "finish_reason": finish}
            _chunk(writer, {"choices": [choice]})
        if not cue.startswith("no usage"):
            details = {"cached_tokens": 2}
            usage = {
                "prompt_tokens": self._prompt(body) if self.continues else 7,
                "completion_tokens": end - first,
                "prompt_tokens_details": details,
            }
            _chunk(writer, {"choices": [], "usage": usage})
        _raw(writer, "data: [DONE]\n\n")
        writer.write(b"0\r\n\r\n")
        return not gone.done()

    def _first(self, body: dict[str, Any]) -> int:
        """Number of the first word."""
        if not (self.continues and body.get("continue_final_message")):
            return 0
        return len(body["messages"][-1]["content"].split())

    def _word(self, body: dict[str, Any], i: int, first: int) -> str:
        """The space behind a word comes with it; where it was cut off, it comes first."""
        open_word = first and i == first and not body["messages"][-1]["content"].endswith(" ")
        return f"{' ' if open_word else ''}wörd{i} "

    def _call(self, writer: asyncio.StreamWriter) -> None:
        for index, city in enumerate(("Paris", "Rome")):
            function = {"name": "weather", "arguments": ""}
            _delta(writer, tool_calls=[{"index": index, "id": "c", "function": function}])
            for part in ('{"city": ', f'"{city}"}}'):
                _delta(writer, tool_calls=[{"index": index, "function": {"arguments": part}}])


def _header(head: str, name: str) -> str:
    lines = (line.partition(":") for line in head.split("\r\n")[1:])
    return next((value.strip() for key, _, value in lines if key.lower() == name), "")


def _answer(
    writer: asyncio.StreamWriter,
    status: int,
    value: dict[str, Any],
    headers: dict[str, str] | None = None,
) -> None:
    body = json.dumps(value).encode()
    more = "".join(f"{name}: {text}\r\n" for name, text in (headers or {}).items())
    head = (
        f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\n{more}content-length: "
        f"{len(body)}\r\n\r\n"
    )
    writer.write(head.encode() + body)


def _delta(writer: asyncio.StreamWriter, **delta: Any) -> None:
    _chunk(writer, {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})


def _chunk(writer: asyncio.StreamWriter, value: dict[str, Any]) -> None:
    _raw(writer, f"data: {json.dumps({'object': 'chat.completion.chunk', **value})}\n\n")


def _raw(writer: asyncio.StreamWriter, text: str) -> None:
    data = text.encode()
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
