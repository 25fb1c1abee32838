"""One response as the connection that asked for it follows it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from gateway import context, lanes
from tailrace import telemetry
from tailrace.delivery import delivery
from tailrace.protocol import events, records


@dataclass(slots=True)
class ResponseStream:
    """One response as the connection that asked for it follows it.

    Attributes:
        messages: its context, to be remembered with its answer; None when this run only follows a
            response submitted elsewhere.
        counted: it takes a place in `Running` until it ends.
        awaited_since: when its request came in (monotonic seconds); 0 once its first token was
            taken, and for runs submitted elsewhere.
        told_at: when its last tokens were taken (monotonic seconds); 0 before, and for runs
            submitted elsewhere.
        final: the terminal Response object; None until the terminal event was taken.
    """

    rid: str
    owner: records.Owner
    echo: dict[str, Any]
    subscription: delivery.Subscription
    store: bool
    messages: context.Messages | None = None
    previous: str | None = None
    counted: bool = False
    headers: dict[str, str] = field(default_factory=dict)
    pool: str = ""
    awaited_since: float = 0.0
    told_at: float = 0.0
    final: dict[str, Any] | None = None

    async def next_events(self) -> list[events.Event]:
        """The next events; an empty list after the terminal one. Raises like
        `Subscription.take`."""
        batch = await self.subscription.next_events()
        if batch and batch[-1].terminal:
            self.final = batch[-1].response
        if (self.awaited_since or self.told_at) and any(e.delta is not None for e in batch):
            self._measure(time.monotonic())
        return batch

    def _measure(self, now: float) -> None:
        if self.awaited_since:
            telemetry.FIRST_TOKEN_SECONDS.labels(pool=self.pool).observe(now - self.awaited_since)
            self.awaited_since = 0.0
        else:
            telemetry.inter_token_seconds(self.pool).observe(now - self.told_at)
        self.told_at = now

    @property
    def remembered(self) -> lanes.Remembered | None:
        """What a connection keeps of it, once it ended well."""
        if self.final is None or self.messages is None or not context.continuable(self.final):
            return None
        return lanes.Remembered(self.rid, context.with_answer(self.messages, self.final))
