"""One subscriber's position in a response's event series, and the verdict on a slow one (pure).

The events of a response are encoded once and kept in one list. An outbox is a cursor into it: a
thousand subscribers share one copy, and a slow one needs no memory of its own. Merging means that
one batch has everything that has accumulated.
"""

from __future__ import annotations

from collections.abc import Callable

from tailrace.protocol import events

LIVE_BOUND_BYTES = 1 << 20
BATCH_BYTES = 64 * 1024
SLOW_AFTER_S = 2.0


def _nobody() -> None:
    pass


class Slow(Exception):
    """The subscriber read nothing while more than the bound arrived. It resumes later by its
    position."""


class Outbox:
    """A cursor with a bound on the bytes that may accumulate.

    Attributes:
        _events: the response's events, index = sequence_number; owned by the stream, which only
            appends.
        _next: sequence_number that `dequeue` returns next.
        _undelivered_bytes: bytes that arrived since the last `dequeue`; 0 after each. A
            subscriber that reads is never slow, however long its replay.
        _since: when the first of them arrived. One fetch can bring more than the bound at once,
            even if the subscriber is fast.
        _last: sequence_number of the terminal event; None until it is known.
        _moment: the newest event that is in no series, if the subscriber has not got it; None
            otherwise.
        slow: set once the bound was passed; final.
    """

    __slots__ = (
        "_bound",
        "_events",
        "_last",
        "_moment",
        "_next",
        "_since",
        "_undelivered_bytes",
        "_wake",
        "slow",
    )

    def __init__(
        self,
        series: list[events.Event],
        start: int,
        wake: Callable[[], None],
        bound: int = LIVE_BOUND_BYTES,
    ) -> None:
        self._events = series
        self._next = start
        self._wake = wake
        self._bound = bound
        self._undelivered_bytes = 0
        self._since = 0.0
        self._last: int | None = None
        self._moment: events.Event | None = None
        self.slow = False

    def on_arrival(self, size: int, now: float) -> None:
        """`size` more bytes are in the series; `now` in monotonic seconds."""
        if not self._undelivered_bytes:
            self._since = now
        self._undelivered_bytes += size
        if self._undelivered_bytes > self._bound and now - self._since > SLOW_AFTER_S:
            self.slow = True
        self._wake()

    def publish(self, moment: events.Event) -> None:
        """Offer an event that is not in the series and repeats the number of the last one. Only a
        subscriber that has exactly the events up to that number gets it. A newer one replaces
        it."""
        if self._next <= moment.sequence_number + 1:
            self._moment = moment
            self._wake()

    def close(self) -> None:
        """Wake the reader no more. The callback refers to this outbox: the cycle would hold the
        response's events until the garbage collector runs."""
        self._wake = _nobody

    def finish(self, last: int) -> None:
        """Nothing follows sequence_number `last`."""
        self._last = last
        self._wake()

    @property
    def ended(self) -> bool:
        """Whether everything up to the end was returned."""
        return self._last is not None and self._next > self._last

    @property
    def ready(self) -> bool:
        """Whether `dequeue` returns at once: with events, with the end, or with a verdict."""
        return self.slow or self.ended or self._next < len(self._events) or self._moment is not None

    def dequeue(self, limit: int = BATCH_BYTES) -> list[events.Event]:
        """The pending events, up to about `limit` bytes.

        Raises:
            Slow: the bound was passed.
        """
        if self.slow:
            raise Slow
        start = stop = self._next
        size, count = 0, len(self._events)
        while stop < count and size < limit:
            size += len(self._events[stop].body)
            stop += 1
        self._next = stop
        self._undelivered_bytes = 0
        batch = self._events[start:stop]
        if self._moment is not None and stop == count:
            if self._moment.sequence_number == stop - 1:
                batch.append(self._moment)
            self._moment = None
        return batch
