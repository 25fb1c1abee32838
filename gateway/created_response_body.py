"""The SSE body of a response created here: Responses events or Chat Completions chunks."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from starlette.types import Send

from gateway import response_stream
from tailrace import log
from tailrace.delivery import outbox
from tailrace.protocol import events
from tailrace.web import drain, event_stream

Encode = Callable[[events.Event], bytes]


class CreatedResponseBody(event_stream.EventBody):
    """Sends a stream's events, as `encode` spells them.

    The body ends with `[DONE]` after the terminal event. Every other end breaks it off, because
    SDKs take a clean early end for a complete answer. The stream is released in either case.
    """

    def __init__(
        self,
        stream: response_stream.ResponseStream,
        draining: drain.Draining,
        encode: Encode,
    ) -> None:
        super().__init__(stream.rid, stream.headers)
        self._stream = stream
        self._draining = draining
        self._encode = encode

    def cuts(self) -> Sequence[Coroutine[Any, Any, None]]:
        return (self._draining.wait(),)

    def nudge(self) -> None:
        self._stream.subscription.keepalive()

    def release(self) -> None:
        self._stream.release()

    async def pump(self, send: Send) -> None:
        try:
            while self._stream.final is None:
                batch = await self._stream.next_events()
                await self.write(
                    send, b"".join(map(self._encode, batch)) if batch else event_stream.KEEP_ALIVE
                )
            await self.write(send, event_stream.DONE, more=False)
        except (outbox.Slow, log.HistoryLost) as error:
            self.broken(error)
