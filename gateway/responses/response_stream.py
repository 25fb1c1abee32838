"""One response as its connection follows it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self

from gateway.load import rate_limits
from gateway.responses import context
from gateway.responses.memory import ResponseMemory
from tailrace import log, telemetry
from tailrace.delivery import delivery
from tailrace.protocol import events, records

OnFirstToken = Callable[["ResponseStream", float], None]
_HEADER_VALUE: Final = re.compile(r"[\x21-\x7e]{1,200}")


@dataclass(slots=True, eq=False)
class ResponseStream:
    """A context manager around one response that a connection follows.

    Leaving the block ends the connection's part. Then `on_release` closes a stream that is over, or
    starts a background task that follows it.

    Attributes:
        echo: static part of the Response object.
        store: whether the response is stored.
        on_release: called once with this stream, when the connection releases it.
        request: the request record, for the memory; None if the request was submitted elsewhere.
        previous: id of the response that this one continues.
        submitted_here: the response counts in `admission.Running` until it ends.
        charge: the charge of its principal; None if it was submitted elsewhere.
        headers: HTTP headers of the answer; after the end also the model revision, if reported.
        on_first_token: called with the seconds until the first token.
        pool: label of the metrics; empty if the request was submitted elsewhere.
        awaited_since: when the request arrived (monotonic seconds); 0 after the first token, and if
            the request was submitted elsewhere.
        last_token_at: when the last tokens were read (monotonic seconds); 0 before the first one,
            and if the request was submitted elsewhere.
        final: the terminal Response object; None until the terminal event was read.
        lost: the log no longer holds the response.
        released: the connection released the stream.
    """

    rid: str
    owner: records.Owner
    echo: dict[str, Any]
    subscription: delivery.Subscription
    store: bool
    on_release: Callable[[ResponseStream], None]
    request: bytes | None = None
    previous: str | None = None
    submitted_here: bool = False
    charge: rate_limits.Charge | None = None
    headers: dict[str, str] = field(default_factory=dict)
    on_first_token: OnFirstToken = lambda _stream, _seconds: None
    pool: str = ""
    awaited_since: float = 0.0
    last_token_at: float = 0.0
    final: dict[str, Any] | None = None
    lost: bool = False
    released: bool = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    def release(self) -> None:
        """Release the stream; idempotent."""
        if not self.released:
            self.released = True
            self.on_release(self)

    async def next_events(self) -> list[events.Event]:
        """Wait for the next events. Returns an empty list after the terminal event or `keepalive`.

        Raises:
            outbox.Slow, log.HistoryLost: like `Subscription.next_events`.
        """
        try:
            batch = await self.subscription.next_events()
        except log.HistoryLost:
            self.lost = True
            raise
        if batch and batch[-1].terminal:
            self.final = batch[-1].response
            self._add_final_headers()
        if (self.awaited_since or self.last_token_at) and any(e.delta is not None for e in batch):
            self._measure(time.monotonic())
        return batch

    async def to_end(self) -> None:
        """Read all events. Raises like `next_events`."""
        while await self.next_events():
            pass

    def _measure(self, now: float) -> None:
        if self.awaited_since:
            telemetry.FIRST_TOKEN_SECONDS.labels(pool=self.pool).observe(now - self.awaited_since)
            self.on_first_token(self, now - self.awaited_since)
            self.awaited_since = 0.0
        else:
            telemetry.inter_token_seconds(self.pool).observe(now - self.last_token_at)
        self.last_token_at = now

    def _add_final_headers(self) -> None:
        revision = (self.final or {}).get(events.REVISION)
        if isinstance(revision, str) and _HEADER_VALUE.fullmatch(revision):
            self.headers = {**self.headers, "x-tailrace-revision": revision}
        if (self.final or {}).get(events.CACHED_ANSWER):
            self.headers = {**self.headers, "x-tailrace-cached-answer": "true"}

    def keepalive(self) -> None:
        """Make a waiting `next_events` return an empty list."""
        self.subscription.keepalive()

    @property
    def ended(self) -> bool:
        """Whether the terminal event was returned."""
        return self.final is not None

    @property
    def over(self) -> bool:
        """Whether no event can follow."""
        return self.final is not None or self.lost

    @property
    def memory(self) -> ResponseMemory | None:
        """The memory for a continuation; None unless the response ended and can be continued."""
        messages = self.dialogue
        return ResponseMemory(self.rid, context.pack(messages)) if messages is not None else None

    @property
    def dialogue(self) -> context.Messages | None:
        """The messages with the answer; None unless the response ended and can be continued."""
        if self.final is None or not context.continuable(self.final):
            return None
        request = records.decode_request(self.request)
        if request is None:
            return None
        before = context.without_instructions(request)
        return context.with_answer(before, self.final, continues=request.continue_final)
