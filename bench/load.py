"""Cheap clients: server-sent events over HTTP and WebSocket frames, in closed and in open loop.

Closed loop: each of N clients repeats when its answer has ended. It measures throughput. Open
loop: the times of the questions are drawn beforehand, and latency counts from the time when a
question was due. So a server that stalls does not get fewer questions while it stalls. A reader
searches bytes and parses no JSON, and it reads the clock once per read of the socket. The client's
own cost is in the result.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import os
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast
from urllib.parse import urlsplit

import httptools

from bench import measure

ANSWER_DEADLINE_S: Final = 180.0
# A chunk of a completion (text, a call); a delta of a response.
_CONTENT: Final = (b'"content":"', b'"arguments":"', b'"delta":"')
_EMPTY: Final = (b'"content":""', b'"arguments":""', b'"delta":""')


class RequestFailed(Exception):
    """The server refused, broke the connection, or took too long. The text says which."""


class RequestRefused(RequestFailed):
    """The server answered with a status that is not 200."""

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        super().__init__(f"{status} {body[:300]!r}")
        self.status = status
        self.headers = headers


@dataclass(slots=True)
class Answer:
    """What one client saw of one answer. Times are seconds of `time.perf_counter`.

    Attributes:
        due: when the question was sent, or was due (open loop).
        began: when its first event of any kind arrived; 0 before.
        stamps: when events with text arrived.
        ended: when the answer was complete.
        tokens, prompt_tokens, cached_tokens: as the server counts them.
        error: why there is no answer; empty if there is one.
        retry_after_s: the wait in a refusal by 429; None for others.
        expired: the response was not started before its deadline.
        by_fallback: another model answered than the requested one.
        rid: id of the response; empty where the API names none at its end.
        started: when it was said that a worker has it (`response.in_progress`); 0 before, and where
            the API does not say.
        places: its queue places (the member `queue`), with their times.
    """

    due: float
    began: float = 0.0
    stamps: list[float] = field(default_factory=list)
    ended: float = 0.0
    tokens: int = 0
    prompt_tokens: int = 0
    text: list[str] = field(default_factory=list)
    error: str = ""
    retry_after_s: float | None = None
    expired: bool = False
    by_fallback: bool = False
    cached_tokens: int = 0
    rid: str = ""
    started: float = 0.0
    places: list[tuple[float, dict[str, Any]]] = field(default_factory=list)

    @property
    def first(self) -> float:
        return self.stamps[0] - self.due

    @property
    def gaps(self) -> list[float]:
        """Seconds between reads of the socket that brought text, as a person sees the text grow.
        Events of one read count once."""
        return [b - a for a, b in itertools.pairwise(dict.fromkeys(self.stamps))]

    @property
    def per_token(self) -> float:
        """Seconds per token after the first event. Unlike `gaps` it does not depend on how many
        tokens are in one event."""
        return (self.stamps[-1] - self.stamps[0]) / max(1, self.tokens - 1)


Send = Callable[[int, float], Awaitable[Answer]]


@dataclass
class Result:
    """Answers of one load. `wall` is seconds from the first question to the last end."""

    answers: list[Answer]
    wall: float

    @property
    def good(self) -> list[Answer]:
        return [answer for answer in self.answers if not answer.error]

    @property
    def tokens(self) -> int:
        return sum(answer.tokens for answer in self.good)

    def values(self) -> dict[str, float]:
        """Throughput and latencies, the values of a row."""
        good = self.good
        return {
            "tokens_per_s": self.tokens / self.wall,
            "answers_per_s": len(good) / self.wall,
            **measure.spread("begun", (a.began - a.due for a in good)),
            **measure.spread("first", (a.first for a in good)),
            **measure.spread("gap", (gap for a in good for gap in a.gaps)),
            **measure.spread("per_token", (a.per_token for a in good if a.tokens > 1)),
            **measure.spread("answer", (a.ended - a.due for a in good)),
            "answers": float(len(good)),
            "tokens": float(self.tokens),
            "failed": float(len(self.answers) - len(good)),
        }


async def closed_loop(send: Send, clients: int, each: int) -> Result:
    """Run a closed loop: each of `clients` sends `each` requests, one after the other."""

    async def client(number: int) -> list[Answer]:
        return [await send(number + clients * turn, time.perf_counter()) for turn in range(each)]

    began = time.perf_counter()
    groups = await asyncio.gather(*map(client, range(clients)))
    return Result([answer for group in groups for answer in group], time.perf_counter() - began)


def arrivals(rate: float, count: int, seed: int) -> list[float]:
    """Times in seconds at which `count` questions are due: a Poisson process of `rate` per second.

    The same seed gives the same times, for both sides.
    """
    rng = random.Random(seed)
    return list(itertools.accumulate(rng.expovariate(rate) for _ in range(count)))


async def open_loop(send: Send, rate: float, count: int, seed: int = 1) -> Result:
    """Run an open loop: each question is sent at its time of `arrivals`."""
    began = time.perf_counter()

    async def one(number: int, at: float) -> Answer:
        await asyncio.sleep(began + at - time.perf_counter())
        return await send(number, began + at)

    answers = await asyncio.gather(
        *(one(n, at) for n, at in enumerate(arrivals(rate, count, seed)))
    )
    return Result(list(answers), time.perf_counter() - began)


class EventReader:
    """Splits a body into events (pure).

    `feed` adds bytes. `on_event` is called with the bytes of each event, without its blank line.
    """

    def __init__(self, on_event: Callable[[bytes], None]) -> None:
        self._on_event = on_event
        self._rest = b""

    def feed(self, body: bytes) -> None:
        *whole, self._rest = (self._rest + body).split(b"\n\n")
        for event in whole:
            self._on_event(event)


def has_text(event: bytes) -> bool:
    """Whether an event has text: a chunk with content, or a delta, and not an empty one.

    JSON escapes quotes, so text cannot look like a member.
    """
    return any(mark in event for mark in _CONTENT) and not any(mark in event for mark in _EMPTY)


def event_data(event: bytes) -> dict[str, Any]:
    """The JSON object in an event's data."""
    data: dict[str, Any] = json.loads(
        next(line[6:] for line in event.split(b"\n") if line.startswith(b"data: "))
    )
    return data


class _Exchange(asyncio.Protocol):
    """One HTTP request and its answer on one connection."""

    def __init__(self, request: bytes, on_body: Callable[[bytes], None]) -> None:
        self._request = request
        self._on_body = on_body
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._body: list[bytes] = []  # of this read
        self._refusal = b""
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.status = 0
        self.headers: dict[str, str] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._finish(RequestFailed(f"not HTTP: {error}"))
        if self._body:
            body, self._body = b"".join(self._body), []
            self._on_body(body)  # once per read, so that its events get one time

    def connection_lost(self, exc: Exception | None) -> None:
        self._finish(RequestFailed("the connection ended before the answer did"))

    # Called by the parser.

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode().lower()] = value.decode()

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        if self.status == 200:
            self._body.append(body)
        else:
            self._refusal += body

    def on_message_complete(self) -> None:
        self._finish(
            None if self.status == 200 else RequestRefused(self.status, self.headers, self._refusal)
        )

    def _finish(self, error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(error) if error else self.done.set_result(None)
        if self._transport is not None:
            self._transport.close()


async def exchange(
    base: str,
    method: str,
    path: str,
    headers: Mapping[str, str],
    body: bytes = b"",
    on_body: Callable[[bytes], None] = lambda _: None,
) -> dict[str, str]:
    """Send one HTTP request and call `on_body` once per read of the socket.

    Returns the answer's headers.

    Raises:
        Failed: no answer, not 200, cut off, or not within ANSWER_DEADLINE_S.
    """
    address = urlsplit(base)
    head = {
        "host": address.netloc,
        "content-length": str(len(body)),
        "connection": "close",
        **headers,
    }
    if body:
        head["content-type"] = "application/json"
    lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
    request = f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode() + body
    try:
        async with asyncio.timeout(ANSWER_DEADLINE_S):
            _, protocol = await asyncio.get_running_loop().create_connection(
                lambda: _Exchange(request, on_body), address.hostname or "", address.port or 80
            )
            await protocol.done
    except (OSError, TimeoutError) as error:
        raise RequestFailed(f"{type(error).__name__}: {error}") from error
    return protocol.headers


async def fetch(
    base: str, method: str, path: str, headers: Mapping[str, str], body: Any = None
) -> Any:
    """Send one HTTP request and return the JSON of its answer. Raises Failed."""
    parts: list[bytes] = []
    await exchange(
        base,
        method,
        path,
        headers,
        b"" if body is None else json.dumps(body).encode(),
        parts.append,
    )
    return json.loads(b"".join(parts))


async def stream(
    base: str,
    method: str,
    path: str,
    headers: Mapping[str, str],
    body: Any,
    due: float,
    *,
    store_text: bool = False,
    answer: Answer | None = None,
) -> Answer:
    """Read one streamed answer of either API. A failure is in the answer's `error`.

    Args:
        answer: to be filled, for callers that read it before its end.
    """
    answer = answer or Answer(due)

    def on_event(event: bytes) -> None:
        answer.began = answer.began or arrived_at
        if b'"type":"response.failed"' in event:
            error = event_data(event)["response"]["error"]
            answer.error, answer.expired = str(error), error["code"] == "expired"
        elif b'"usage":{' in event:  # the last one; a response has all of its items in it again
            _count(answer, event_data(event))
        elif b'"type":"response.in_progress"' in event:
            answer.started = answer.started or arrived_at
        elif b'"type":"response.queued"' in event:
            if (place := event_data(event).get("queue")) is not None:
                answer.places.append((arrived_at, place))
        elif has_text(event):
            answer.stamps.append(arrived_at)
            if store_text:
                error = event_data(event)
                answer.text.append(
                    error["delta"] if "delta" in error else error["choices"][0]["delta"]["content"]
                )

    reader, arrived_at = EventReader(on_event), 0.0

    def on_body(chunk: bytes) -> None:
        nonlocal arrived_at
        arrived_at = time.perf_counter()
        reader.feed(chunk)

    try:
        await exchange(
            base, method, path, headers, b"" if body is None else json.dumps(body).encode(), on_body
        )
    except RequestFailed as error:
        answer.error = str(error)
        if isinstance(error, RequestRefused) and error.status == 429:
            retry_after_ms = error.headers.get("retry-after-ms")
            answer.retry_after_s = int(retry_after_ms) / 1000 if retry_after_ms else None
    answer.ended = time.perf_counter()
    if not answer.error and not (answer.stamps and answer.tokens):
        answer.error = "an answer without text or usage"
    return answer


def _count(answer: Answer, event: Mapping[str, Any]) -> None:
    response = event.get("response", {})
    usage = event["usage"] if "usage" in event else response["usage"]
    answer.by_fallback = bool(response.get("fallback"))
    answer.tokens = usage.get("completion_tokens", usage.get("output_tokens", 0))
    answer.prompt_tokens = usage.get("prompt_tokens", usage.get("input_tokens", 0))
    answer.cached_tokens = (usage.get("input_tokens_details") or {}).get("cached_tokens", 0)
    answer.rid = str(response.get("id", ""))


class FrameReader:
    """Splits a byte stream into unmasked frames (pure).

    `feed` calls `on_frame(opcode, payload)` for each complete frame.
    """

    def __init__(self, on_frame: Callable[[int, bytes], None]) -> None:
        self._on_frame = on_frame
        self._rest = b""

    def feed(self, data: bytes) -> None:
        data, at = self._rest + data if self._rest else data, 0
        while (frame := _frame_at(data, at)) is not None:
            opcode, begin, at = frame
            self._on_frame(opcode, data[begin:at])
        self._rest = data[at:]


def _frame_at(data: bytes, at: int) -> tuple[int, int, int] | None:
    """(opcode, begin, end of the payload) of the frame at `at` (RFC 6455 5.2).

    None while it is incomplete.
    """
    if len(data) < at + 2:
        return None
    size, begin = data[at + 1], at + 2
    if size == 126:
        begin, size = at + 4, int.from_bytes(data[at + 2 : at + 4], "big")
    elif size == 127:
        begin, size = at + 10, int.from_bytes(data[at + 2 : at + 10], "big")
    return (
        (data[at] & 15, begin, begin + size)
        if len(data) >= begin + size and begin <= len(data)
        else None
    )


def frame(opcode: int, payload: bytes) -> bytes:
    """A client's frame. Its mask is zero: masks protect proxies from browser scripts, and both are
    absent here."""
    size = len(payload)
    length = (
        bytes((0x80 | size,))
        if size < 126
        else b"\xfe" + size.to_bytes(2, "big")
        if size < 1 << 16
        else b"\xff" + size.to_bytes(8, "big")
    )
    return bytes((0x80 | opcode,)) + length + b"\0\0\0\0" + payload


class Socket(asyncio.Protocol):
    """A WebSocket client without compression. `on_text` gets each text message as bytes.

    Attributes:
        opened: done when the server has upgraded the connection; Failed if it refused.
        closed: done when the connection has ended.
    """

    def __init__(self, request: bytes, on_text: Callable[[bytes], None]) -> None:
        self._request = request
        self._on_text = on_text
        self._head: bytes | None = b""  # None once the upgrade was answered
        self._frames = FrameReader(self._on_frame)
        self._transport: asyncio.Transport | None = None
        loop = asyncio.get_running_loop()
        self.opened: asyncio.Future[None] = loop.create_future()
        self.closed: asyncio.Future[str] = loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if self._head is not None:
            head, end, data = (self._head + data).partition(b"\r\n\r\n")
            if not end:
                self._head = head
                return
            self._head = None
            if b" 101 " not in head.split(b"\r\n", 1)[0]:
                self.opened.set_exception(RequestFailed(f"{head[:60]!r} {data[:200]!r}"))
                return
            self.opened.set_result(None)
        if data:
            self._frames.feed(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.opened.done():
            self.opened.set_exception(RequestFailed("closed before the upgrade"))
        if not self.closed.done():
            self.closed.set_result("lost")

    def _on_frame(self, opcode: int, payload: bytes) -> None:
        if opcode == 1:
            self._on_text(payload)
        elif opcode == 9:
            self._write(frame(10, payload))
        elif opcode == 8 and not self.closed.done():
            self.closed.set_result(str(int.from_bytes(payload[:2], "big")))

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def send(self, message: Any) -> None:
        """Send a JSON message."""
        self._write(frame(1, json.dumps(message).encode()))

    def close(self) -> None:
        """Send a close frame and close, without waiting for the server's close frame."""
        if self._transport is not None:
            self._write(frame(8, (1000).to_bytes(2, "big")))
            self._transport.close()


async def connect(
    base: str, path: str, headers: Mapping[str, str], on_text: Callable[[bytes], None]
) -> Socket:
    """Open a WebSocket. Raises Failed."""
    address = urlsplit(base)
    key = base64.b64encode(os.urandom(16)).decode()
    head = {
        "host": address.netloc,
        "upgrade": "websocket",
        "connection": "Upgrade",
        "sec-websocket-version": "13",
        "sec-websocket-key": key,
        **headers,
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
    request = f"GET {path} HTTP/1.1\r\n{lines}\r\n".encode()
    try:
        async with asyncio.timeout(ANSWER_DEADLINE_S):
            _, socket = await asyncio.get_running_loop().create_connection(
                lambda: Socket(request, on_text), address.hostname or "", address.port or 80
            )
            await socket.opened
    except (OSError, TimeoutError) as error:
        raise RequestFailed(f"{type(error).__name__}: {error}") from error
    return socket


async def gather_limited(work: Sequence[Awaitable[Any]], at_once: int = 50) -> list[Any]:
    """Await all of these, a limited number at a time, because a listen queue is short."""
    slots = asyncio.Semaphore(at_once)

    async def one(each: Awaitable[Any]) -> Any:
        async with slots:
            return await each

    return list(await asyncio.gather(*map(one, work)))
