"""Server-sent events of one run: the body of a streaming answer, ended honestly.

A stream ends with `[DONE]` after the terminal event. Every other end breaks the body abnormally,
because SDKs take a clean early end for a complete answer."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from starlette.types import Send

from gateway import response_stream, submission
from tailrace import log
from tailrace.delivery import outbox
from tailrace.protocol import events
from tailrace.web import drain, event_stream

Encode = Callable[[events.Event], bytes]


class CreatedResponseBody(event_stream.EventBody):
    """Streams a run's events, as `encode` spells them, and gives the run back when the client
    leaves or the service does."""

    def __init__(
        self,
        run: response_stream.ResponseStream,
        submit: submission.Submission,
        draining: drain.Draining,
        encode: Encode,
    ) -> None:
        super().__init__(run.rid, run.headers)
        self._run = run
        self._submit = submit
        self._draining = draining
        self._encode = encode

    def cuts(self) -> Sequence[Coroutine[Any, Any, None]]:
        return (self._draining.wait(),)

    def nudge(self) -> None:
        self._run.subscription.keepalive()

    def release(self) -> None:
        if self._run.final is not None:
            self._submit.finished(self._run)
        else:
            self._submit.continue_in_background(self._run)

    async def pump(self, send: Send) -> None:
        try:
            while self._run.final is None:
                batch = await self._run.next_events()
                await self.write(
                    send, b"".join(map(self._encode, batch)) if batch else event_stream.KEEP_ALIVE
                )
            await self.write(send, event_stream.DONE, more=False)
        except (outbox.Slow, log.HistoryLost) as error:
            self.broken(error)
