"""Events of one response as server-sent events: the body of every streaming answer.

A stream ends with `[DONE]` after the terminal event. Every other end breaks the body off, because
SDKs take a clean early end for a complete answer. Returning without the last part is how an ASGI
application has its server cut the connection.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Generic, Protocol, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tailrace import log, telemetry
from tailrace.auth.principal import Principal
from tailrace.delivery import outbox
from tailrace.web import admitted, credential_timer, drain, write_deadline

KEEP_ALIVE_S: Final = 15.0
KEEP_ALIVE: Final = b": keep-alive\n\n"
DONE: Final = b"data: [DONE]\n\n"
# A proxy that compresses would keep events until it has enough of them: no-transform forbids it.
SSE_HEADERS: Final = {"cache-control": "no-store, no-transform", "x-accel-buffering": "no"}


class CredentialExpired(Exception):
    """The credential of the request has expired. A new one resumes."""


E = TypeVar("E")
E_co = TypeVar("E_co", covariant=True)


class Source(Protocol[E_co]):
    """Where a body's events come from: `delivery.Subscription` is one."""

    @property
    def rid(self) -> str:
        """Id of the response."""

    @property
    def ended(self) -> bool:
        """Whether the terminal event was returned."""

    async def next_events(self) -> Sequence[E_co]:
        """The next events; empty after `keepalive`.

        Raises:
            outbox.Slow, log.HistoryLost
        """

    def keepalive(self) -> None:
        """Make a waiting `next_events` return."""


class EventStream(Response, Generic[E]):
    """Pumps a source's events to the client until its end, the client's leaving, the service's
    draining, its credential's revocation or end, or the write deadline.

    Attributes:
        _deadline: of the writes to the client.
        _cancellation: done when the body must be aborted; None before the body began.
    """

    def __init__(
        self,
        source: Source[E],
        on_end: Callable[[], None],
        draining: drain.Draining,
        checks: write_deadline.DeadlineChecks,
        admitted: admitted.Admitted,
        principal: Principal,
        *,
        encode: Callable[[E], bytes],
        headers: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.time,
        later: credential_timer.Later = credential_timer.on_loop,
    ) -> None:
        """`on_end` is called once, when nothing more is written. `principal`: who gets the
        events. `clock`, in seconds since the epoch, and `later`: for the end of the
        credential."""
        super().__init__(headers={**SSE_HEADERS, **(headers or {})}, media_type="text/event-stream")
        del self.headers["content-length"]
        self._source = source
        self._on_end = on_end
        self._draining = draining
        self._checks = checks
        self._admitted = admitted
        self.principal = principal
        self._encode = encode
        self._deadline = write_deadline.WriteDeadline()
        self._expiry = credential_timer.CredentialTimer(clock, self._expire, later=later)
        self._cancellation: asyncio.Future[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        telemetry.OPEN_STREAMS.inc()
        self._cancellation = asyncio.get_running_loop().create_future()
        self._checks.add(self)
        self._draining.callbacks.add(self._break_off)
        tasks: list[asyncio.Future[None]] = []
        try:
            if self._draining.begun:
                self._break_off()
            self._admitted.add(self)
            self._expiry.start(self.principal.expires_at)
            tasks = [
                asyncio.ensure_future(each)
                for each in (self._pump(send), wait_for_disconnect(receive), self._cancellation)
            ]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._checks.discard(self)
            self._expiry.cancel()
            self._admitted.discard(self)
            self._draining.callbacks.discard(self._break_off)
            for task in tasks:
                task.cancel()
            for outcome in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(outcome, Exception):
                    telemetry.log(telemetry.Action.REQUEST_FAILED, exc_info=outcome)
            telemetry.OPEN_STREAMS.dec()
            self._on_end()

    def check_deadlines(self, now: float) -> None:
        """Break off a body whose client reads nothing. Have a keep-alive comment written after a
        long time without any other event. `now`: monotonic seconds."""
        if self._deadline.overdue(now):
            if self._cancellation is not None and not self._cancellation.done():
                self._report_failure(TimeoutError())
                self._break_off()
        elif self._deadline.idle_s(now) >= KEEP_ALIVE_S:
            self._source.keepalive()

    def revoke(self) -> None:
        """The credential of the request was revoked."""
        self._break_off()

    def _expire(self) -> None:
        self._report_failure(CredentialExpired())
        self._break_off()

    def _break_off(self) -> None:
        if self._cancellation is not None and not self._cancellation.done():
            self._cancellation.set_result(None)

    async def _pump(self, send: Send) -> None:
        # It is one write with the first events, if there are any. Its first step comes before any
        # cancellation, so there always is a head, and a body that is broken off is seen as such.
        start = {"status": self.status_code, "headers": self.raw_headers}
        with self._deadline:
            await send({"type": "http.response.start", **start})
        try:
            while True:
                body = b"" if self._source.ended else await self._next()
                ended = self._source.ended
                # One part for the last events and `[DONE]`: a part costs a call of the system.
                await self._write(send, body + DONE if ended else body, more=not ended)
                if ended:
                    return
        except (outbox.Slow, log.HistoryLost) as error:
            self._report_failure(error)

    async def _next(self) -> bytes:
        batch = await self._source.next_events()
        return b"".join(map(self._encode, batch)) if batch else KEEP_ALIVE

    async def _write(self, send: Send, body: bytes, *, more: bool = True) -> None:
        """One part; nothing when it is empty."""
        if body:
            with self._deadline:
                await send({"type": "http.response.body", "body": body, "more_body": more})

    def _report_failure(self, error: Exception) -> None:
        """Count and log why a body was broken off."""
        if isinstance(error, outbox.Slow | TimeoutError):
            verdict = "slow" if isinstance(error, outbox.Slow) else "blocked"
            telemetry.OUTBOX_CLOSES.labels(verdict=verdict).inc()
        telemetry.log(
            telemetry.Action.STREAM_BROKEN,
            response=self._source.rid,
            reason=type(error).__name__,
        )


async def wait_for_disconnect(receive: Receive) -> None:
    """Returns when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass
