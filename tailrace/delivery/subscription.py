"""One subscriber of one response, and a snapshot of a response."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tailrace.delivery import hub
from tailrace.protocol import events, fold, records


class NotFound(Exception):
    """No such response for this caller: unknown, malformed, deleted or another principal's.

    One error for all of them, so that ids cannot be probed.
    """


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A response in its present state.

    Attributes:
        response: the Response object.
        phase: the phase of the fold.
        echo: the static part of the Response object, as the request record holds it.
        claim: the first accepted claim; None before there is one.
        owner: the principal whose response it is.
        withdrawn: the gateway that wrote its request has withdrawn it.
        tokens: the number of accepted tokens.
        archived: the log has lost it.
    """

    response: dict[str, Any]
    phase: fold.Phase
    echo: dict[str, Any]
    claim: records.Claim | None
    owner: records.Owner
    withdrawn: bool = False
    tokens: int = 0
    archived: bool = False


class Subscription:
    """One subscriber of one response.

    Attributes:
        rid: the response's id.
        _event: set when there may be something to return.
        _keepalive_due: the next `next_events` returns although nothing arrived.
    """

    def __init__(
        self, stream: hub.Stream, after: int, on_ready: Callable[[], None] | None = None
    ) -> None:
        self.rid = stream.rid
        self._stream = stream
        self._event = asyncio.Event()
        self._keepalive_due = False
        self._on_ready = on_ready
        self._box = stream.subscribe(after, self._wake)
        if on_ready is not None and self.ready:
            on_ready()

    @property
    def ready(self) -> bool:
        """Whether `pending` returns something or raises."""
        return self._box.ready or self._stream.lost is not None

    @property
    def ended(self) -> bool:
        """Whether the terminal event was returned."""
        return self._box.ended

    @property
    def status(self) -> str:
        """The present status of the response."""
        series = self._stream.series
        return str(series.snapshot()["status"]) if series is not None else "queued"

    @property
    def echo(self) -> dict[str, Any]:
        """The static part of the Response object, as the request record holds it."""
        return self._series.base

    @property
    def request(self) -> bytes | None:
        """The request record, if this instance has it."""
        return self._stream.request

    @property
    def state(self) -> fold.Fold:
        """The response under the reader rule, by the records that this instance has read."""
        return self._stream.state

    @property
    def vectors(self) -> tuple[bytes, ...]:
        """The vectors of an embeddings request that has ended; else none."""
        return self._stream.vectors

    @property
    def response(self) -> dict[str, Any]:
        """The present Response object."""
        return self._series.snapshot()

    def pending(self) -> list[events.Event]:
        """The events that have arrived, without waiting; empty if there are none or the end was
        returned.

        Raises:
            outbox.Slow: this subscriber lags too much.
            log.HistoryLost: the log lost the response.
        """
        batch = [] if self._stream.hidden else self._box.dequeue()
        if not batch and self._stream.lost is not None:
            raise self._stream.lost
        return batch

    async def next_events(self) -> list[events.Event]:
        """Wait for events and return all that are pending (a bounded batch).

        An empty list means that the terminal event was returned before, or that a keep-alive is
        due. Safe to cancel: an event is removed only when it is returned. Raises like `pending`.
        """
        while True:
            batch = self.pending()
            if batch or self._box.ended or self._keepalive_due:
                self._keepalive_due = False
                return batch
            self._event.clear()
            await self._event.wait()

    def keepalive(self) -> None:
        """Wake a waiting `next_events`, so that it returns an empty list."""
        self._keepalive_due = True
        self._event.set()

    def close(self) -> None:
        """Stop watching; idempotent."""
        self._on_ready = None
        self._stream.unsubscribe(self._box, time.monotonic())

    @property
    def _series(self) -> events.Series:
        series = self._stream.series
        if series is None:  # a look-up identifies a stream before anyone may subscribe to it
            raise NotFound(self.rid)
        return series

    def _wake(self) -> None:
        self._event.set()
        if self._on_ready is not None:
            self._on_ready()
