"""The least that a server of streamed tokens can be: uvicorn, one process, and this file. Its
engine steps as the scripted one does, and its events have the form of the Responses API.

    python -m bench.floor_server PORT STEPS

`STEPS` as in TAILRACE_SCRIPT_STEPS."""

from __future__ import annotations

import json
import sys
from typing import Any, Final

import msgspec
import uvicorn

from tailrace.settings import kinds
from worker.engines import scripted_steps

_HEADERS: Final = [(b"content-type", b"text/event-stream")]
_encode = msgspec.json.Encoder().encode


class Floor:
    """The application."""

    def __init__(self, steps: tuple[tuple[int, float], ...]) -> None:
        self._running = 0
        self._clock = scripted_steps.StepClock(steps, lambda: self._running)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body = b""
        while (message := await receive()).get("more_body"):
            body += message["body"]
        body += message["body"]
        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        if body:
            await self._answer(int(json.loads(body)["metadata"]["script_tokens"]), send)
        await send({"type": "http.response.body", "body": b""})

    async def _answer(self, tokens: int, send: Any) -> None:
        self._running += 1
        try:
            for number in range(tokens):
                await self._clock.next()
                await _send(
                    send, "output_text.delta", sequence_number=number, delta=f"{number:02} "
                )
        finally:
            self._running -= 1
        usage = {"input_tokens": 1, "output_tokens": tokens}
        await _send(send, "completed", response={"id": "resp_floor", "usage": usage})


async def _send(send: Any, kind: str, **fields: Any) -> None:
    event = _encode({"type": f"response.{kind}", **fields})
    data = b"event: response.%s\ndata: %s\n\n" % (kind.encode(), event)
    await send({"type": "http.response.body", "body": data, "more_body": True})


if __name__ == "__main__":
    uvicorn.run(
        Floor(kinds.STEPS.parse(sys.argv[2])),
        host="127.0.0.1",
        port=int(sys.argv[1]),
        loop="uvloop",
        http="httptools",
        lifespan="off",
        log_level="warning",
    )
