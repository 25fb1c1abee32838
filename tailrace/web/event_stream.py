"""Events of one response as server-sent events, and what every body of such a stream has in
common."""

from __future__ import annotations

import abc
import asyncio
import time
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tailrace import log, telemetry
from tailrace.delivery import delivery, outbox
from tailrace.web import drain

KEEP_ALIVE_S = 15.0
KEEP_ALIVE = b": keep-alive\n\n"
DONE = b"data: [DONE]\n\n"
WRITE_DEADLINE_S = 10.0
LOOK_S = 2.5
SSE_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}


class EventBody(Response, abc.ABC):
    """The body of an event stream. It ends with `[DONE]` after the terminal event; any other end
    breaks the body off, because a clean early end would look like a complete answer to the SDKs.
    Returning without the last part is how an ASGI application has its server cut the connection.

    Attributes:
        _writing: since when a part waits to be taken (monotonic seconds); 0 while none does.
        _wrote: when the last one was.
    """

    def __init__(self, rid: str, headers: Mapping[str, str]) -> None:
        super().__init__(headers={**SSE_HEADERS, **headers}, media_type="text/event-stream")
        del self.headers["content-length"]
        self._rid = rid
        self._writing = self._wrote = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pump until the end, the client's leaving, or whatever else `cuts`."""
        telemetry.OPEN_STREAMS.inc()
        tasks: list[asyncio.Future[None]] = []
        try:
            await send(
                {
                    "type": "http.response.start",
                    "status": self.status_code,
                    "headers": self.raw_headers,
                }
            )
            self._wrote = time.monotonic()
            tasks += [
                asyncio.ensure_future(t) for t in (self.pump(send), gone(receive), *self.cuts())
            ]
            # One look now and then at all that has a deadline: a timer per event would cost a tenth
            # of what an event costs.
            while not (
                await asyncio.wait(tasks, timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED)
            )[0] and not self._overdue(time.monotonic()):
                pass
        finally:
            for task in tasks:
                task.cancel()
            for outcome in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(outcome, Exception):
                    telemetry.log(telemetry.Action.REQUEST_FAILED, exc_info=outcome)
            telemetry.OPEN_STREAMS.dec()
            self.release()

    def _overdue(self, now: float) -> bool:
        """Whether the client does not take what is written; one that has had nothing for long gets
        a sign of life."""
        if self._writing:
            if now - self._writing < WRITE_DEADLINE_S:
                return False
            self.broken(TimeoutError())
            return True
        if now - self._wrote >= KEEP_ALIVE_S:
            self.nudge()
        return False

    @abc.abstractmethod
    async def pump(self, send: Send) -> None:
        """Write events, `[DONE]` last; return early to break off."""

    @abc.abstractmethod
    def nudge(self) -> None:
        """Have `pump` write a sign of life, if it waits for events."""

    def cuts(self) -> Sequence[Coroutine[Any, Any, None]]:
        """What else ends the body by returning."""
        return ()

    @abc.abstractmethod
    def release(self) -> None:
        """Nothing is written any more."""

    async def write(self, send: Send, body: bytes, *, more: bool = True) -> None:
        """One part; nothing when it is empty and not the last."""
        if body or not more:
            self._writing = time.monotonic()
            await send({"type": "http.response.body", "body": body, "more_body": more})
            self._writing, self._wrote = 0.0, time.monotonic()

    def broken(self, e: Exception) -> None:
        """Say why a body was broken off."""
        if isinstance(e, outbox.Slow | TimeoutError):
            telemetry.OUTBOX_CLOSES.labels(
                verdict="slow" if isinstance(e, outbox.Slow) else "blocked"
            ).inc()
        telemetry.log(telemetry.Action.STREAM_BROKEN, response=self._rid, reason=type(e).__name__)


class EventStream(EventBody):
    """A watched response."""

    def __init__(self, subscription: delivery.Subscription, draining: drain.Draining) -> None:
        super().__init__(subscription.rid, {})
        self._subscription = subscription
        self._draining = draining

    def cuts(self) -> Sequence[Coroutine[Any, Any, None]]:
        return (self._draining.wait(),)

    def nudge(self) -> None:
        self._subscription.keepalive()

    def release(self) -> None:
        self._subscription.close()

    async def pump(self, send: Send) -> None:
        try:
            while not self._subscription.ended:
                await self.write(
                    send,
                    b"".join(e.sse() for e in await self._subscription.next_events()) or KEEP_ALIVE,
                )
            await self.write(send, DONE, more=False)
        except (outbox.Slow, log.HistoryLost) as error:
            self.broken(error)


async def gone(receive: Receive) -> None:
    """Returns when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass
