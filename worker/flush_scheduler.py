"""When frames go out: at once if the last ones went out long enough ago, else together with what
comes until then.

A round trip to the broker costs far more than a record, so responses that stream at once share it,
and so do the tokens of one that streams faster than anybody reads. *Long enough* is measured by the
round trips themselves: where the broker or the cores are busy they take longer, and frames are
gathered for longer. Nothing waits that would have had the round trip to itself: an engine slower
than the window is never delayed by it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from tailrace import telemetry

# A window is so many round trips long, by the number of responses that run. Streams share them, so
# with more streams longer windows save more; few would only be delayed.
SHARES = ((16, 3), (64, 6), (math.inf, 12))
MIN_LINGER_S = 0.005
MAX_LINGER_S = 0.040  # text that comes 25 times a second flows for a reader
_WEIGHT = 0.05  # of the newest round trip


class FlushScheduler:
    """Calls what was scheduled, once per window.

    Attributes:
        _scheduled: callbacks due at the next flush, in order of marking.
        _due: the timer of that flush; None while nothing is scheduled.
        _last: when the last one was (seconds of the loop's clock).
        _round_trip_s: of recent appends, smoothed.
    """

    def __init__(self, running: Callable[[], int]) -> None:
        self._running = running
        self._scheduled: dict[Callable[[], None], None] = {}
        self._due: asyncio.Handle | None = None
        self._last = -math.inf
        self._round_trip_s = 0.0

    @property
    def linger_s(self) -> float:
        """The least time between two flushes."""
        running = self._running()
        share = next(share for most, share in SHARES if running <= most)
        return min(MAX_LINGER_S, max(MIN_LINGER_S, share * self._round_trip_s))

    def acknowledged(self, seconds: float) -> None:
        """An append took so long."""
        self._round_trip_s += _WEIGHT * (seconds - self._round_trip_s)

    def schedule(self, flush: Callable[[], None]) -> None:
        """`flush` has something to write."""
        self._scheduled[flush] = None
        if self._due is None:
            loop, at = asyncio.get_running_loop(), self._last + self.linger_s
            # Even at once everything of one engine step goes out together: its outputs arrive in
            # one turn of the loop.
            self._due = (
                loop.call_at(at, self._flush) if at > loop.time() else loop.call_soon(self._flush)
            )

    def cancel(self, flush: Callable[[], None]) -> None:
        """It was written already, or never will be."""
        self._scheduled.pop(flush, None)

    def _flush(self) -> None:
        self._due = None
        scheduled, self._scheduled = self._scheduled, {}
        if scheduled:
            self._last = asyncio.get_running_loop().time()
            telemetry.FLUSHES.inc()
        for flush in scheduled:
            flush()
