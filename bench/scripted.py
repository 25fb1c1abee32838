"""Questions to the scripted engine, which answers with a given number of tokens at a given pace. So
everything but a model is measured."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any, Final

from bench import load, stacks
from tailrace.protocol import events
from tailrace.web import access

# Bytes that only the terminal event of a response contains.
TERMINAL_MARKS: Final = tuple(f'"type":"{kind}"'.encode() for kind in events.TERMINAL_TYPES)

_NUMBER_KEY: Final = b'"sequence_number":'


def body(
    side: stacks.Side, number: int, tokens: int, pace_ms: float, **more: Any
) -> dict[str, Any]:
    """The body of a create in the Responses API. Prompts of different numbers share no prefix."""
    cues = {"script_tokens": str(tokens), "script_pace_ms": str(pace_ms)}
    return {
        "model": side.model,
        "input": f"{number}: go on",
        "max_output_tokens": tokens,
        "metadata": cues,
        **more,
    }


async def send(
    side: stacks.Side, number: int, due: float, tokens: int, pace_ms: float
) -> load.Answer:
    """Stream one response at the gateway."""
    return await load.stream(
        side.url,
        "POST",
        "/v1/responses",
        side.headers,
        body(side, number, tokens, pace_ms, stream=True),
        due,
    )


def sender(side: stacks.Side, tokens: int, pace_ms: float) -> load.Send:
    """Questions of one kind for a loop."""

    async def send_one(number: int, due: float) -> load.Answer:
        return await send(side, number, due, tokens, pace_ms)

    return send_one


async def warm(side: stacks.Side) -> None:
    """Warm up lazy initialisation and the broker's JIT compiler, so that no suite measures them."""
    result = await load.closed_loop(sender(side, 40, 2), 16, 20)
    if len(result.good) != len(result.answers):
        raise load.RequestFailed(
            f"warming up: {next(answer.error for answer in result.answers if answer.error)}"
        )


async def start(side: stacks.Side, number: int, tokens: int, pace_ms: float) -> str:
    """Start a background response and return its id."""
    response = await load.fetch(
        side.url,
        "POST",
        "/v1/responses",
        side.headers,
        body(side, number, tokens, pace_ms, background=True),
    )
    return str(response["id"])


async def wait_for_response(side: stacks.Side, rid: str, poll_s: float = 0.2) -> dict[str, Any]:
    """Wait until the response has ended and return it. Raises TimeoutError after the deadline."""
    async with asyncio.timeout(load.ANSWER_DEADLINE_S):
        while True:
            response: dict[str, Any] = await load.fetch(
                side.url, "GET", f"/v1/responses/{rid}", side.headers
            )
            if response["status"] not in ("queued", "in_progress"):
                return response
            await asyncio.sleep(poll_s)


class Watcher:
    """One socket of the push service that watches one response and counts events without parsing.

    Attributes:
        events, messages, bytes: received so far; messages of events alone.
        refused: number of look-ups refused with 429; each is repeated.
        first: set at the first message of events; done: at the end of the response.
    """

    def __init__(
        self, on_message: Callable[[bytes], None] | None = None, *, compact: bool = False
    ) -> None:
        """`on_message` gets every message of events. `compact`: request their compact form."""
        self.events = 0
        self.messages = 0
        self.bytes = 0
        self.refused = 0
        self.first = asyncio.Event()
        self.done = asyncio.Event()
        self.error = ""
        self._on_message = on_message
        self._offer = {"sec-websocket-protocol": access.COMPACT_SUBPROTOCOL} if compact else {}
        self._socket: load.Socket | None = None
        self._rid = ""

    async def open(self, base: str, headers: dict[str, str]) -> None:
        offering = {**headers, **self._offer}
        self._socket = await load.connect(base, "/v1/watch", offering, self._message)

    def watch(self, rid: str) -> None:
        """Watch a response from its first event on."""
        assert self._socket is not None
        self._rid = rid
        self._socket.send({"type": "watch", "response_id": rid})

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()

    def _message(self, payload: bytes) -> None:
        self.bytes += len(payload)
        if payload.startswith((b"[", b'{"type":"watch.events"')):
            self.events += _events_in(payload) if self._offer else payload.count(_NUMBER_KEY)
            self.messages += 1
            self.first.set()
            if self._on_message is not None:
                self._on_message(payload)
        elif payload.startswith(b'{"type":"watch.done"'):
            self.done.set()
        else:
            self._trouble(json.loads(payload))

    def _trouble(self, message: dict[str, Any]) -> None:
        if message.get("status") == 429:
            self.refused += 1
            asyncio.get_running_loop().call_later(0.2, self.watch, self._rid)
            return
        self.error = json.dumps(message)
        self.first.set()
        self.done.set()


def _events_in(payload: bytes) -> int:
    """Events in a message of the compact form. Most have texts alone, where no text has `","`."""
    if payload.startswith(b"[") and b'{"type":' not in payload:
        return payload.count(b'","') + 1
    message = json.loads(payload)
    return len(message) - 1 if isinstance(message, list) else len(message["events"])


async def wait_for_watchers(watchers: list[Watcher]) -> None:
    """Wait until all have seen the end. Raises load.Failed if one did not."""
    try:
        async with asyncio.timeout(load.ANSWER_DEADLINE_S):
            for each in watchers:
                await each.done.wait()
    except TimeoutError:
        raise load.RequestFailed(
            f"{sum(not w.done.is_set() for w in watchers)} of {len(watchers)} watchers saw no end"
        ) from None
    if bad := next((w.error for w in watchers if w.error), ""):
        raise load.RequestFailed(bad)
