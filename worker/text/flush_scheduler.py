"""When frames are written, and which go out together.

A round trip to the broker costs far more than a record. So what responses generate while frames are
on their way goes out together, as soon as the broker has acknowledged those. Where round trips take
more than twice as long as they can, something waits for a core, and each flush takes time from it.
Then frames are gathered for several times that delay.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any, Final, Protocol

from tailrace import telemetry

DELAYS: Final = 8  # the linger, in delays of a round trip
MAX_LINGER_S: Final = 0.040  # 25 updates a second look continuous
_NEWEST_WEIGHT: Final = 0.1  # of the newest round trip in the smoothed one
# By this the least round trip grows with each one, so that it follows a broker that moved away.
_GROWTH: Final = 1.0002

Flush = Callable[[], None]


class Timers(Protocol):
    """The part of an event loop that the scheduler uses. Times are seconds of its clock."""

    def time(self) -> float:
        """Now."""

    def call_at(self, when: float, callback: Flush) -> Any:
        """Call `callback` at `when`. Returns what `cancel` ends."""

    def call_soon(self, callback: Flush) -> Any:
        """Call `callback` in the next turn of the loop. Returns what `cancel` ends."""


class FlushScheduler:
    """Calls the scheduled callbacks together, at least every MAX_LINGER_S.

    Attributes:
        _callbacks: of the next flush, in order of scheduling.
        _timer: of that flush; None while it has none.
        _last_flush: when the last flush was.
        _in_flight: records that the broker has not acknowledged.
        _round_trip_s: how long the last records of recent flushes took, smoothed.
        _least_s: the shortest of these times.
    """

    def __init__(self, timers: Timers | None = None) -> None:
        """`timers` is the running loop if it is not given."""
        self._timers = timers
        self._callbacks: dict[Flush, None] = {}
        self._timer: Any = None
        self._last_flush = -math.inf
        self._in_flight = 0
        self._round_trip_s = self._least_s = 0.0

    @property
    def linger_s(self) -> float:
        """The least time between two flushes."""
        return min(MAX_LINGER_S, DELAYS * max(0.0, self._round_trip_s - 2 * self._least_s))

    def on_append(self) -> None:
        """A record is on its way."""
        self._in_flight += 1

    def on_appended(self, round_trip_s: float | None) -> None:
        """It was acknowledged after this time; None: it failed."""
        self._in_flight -= 1
        if self._in_flight:
            return
        if round_trip_s is not None:
            round_trip_s = min(round_trip_s, MAX_LINGER_S)  # one outage is soon forgotten
            least_s = self._least_s or round_trip_s
            self._least_s = min(round_trip_s, least_s * _GROWTH)
            self._round_trip_s += _NEWEST_WEIGHT * (round_trip_s - self._round_trip_s)
        if self._timer is not None:  # it was set for what is in flight
            self._set_timer()

    def schedule(self, flush: Flush) -> None:
        """Call `flush` at the next flush."""
        self._callbacks[flush] = None
        if self._timer is None:
            self._set_timer()

    def cancel(self, flush: Flush) -> None:
        """Do not call `flush`: its frames were written already, or never will be."""
        self._callbacks.pop(flush, None)
        if not self._callbacks and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set_timer(self) -> None:
        timers = self._timers or asyncio.get_running_loop()
        if self._timer is not None:
            self._timer.cancel()
        at = self._last_flush + (MAX_LINGER_S if self._in_flight else self.linger_s)
        if at > timers.time():
            self._timer = timers.call_at(at, self._flush)
        else:
            # The next turn of the loop, not this one: all outputs of one engine step arrive in one
            # turn, and so they go out together.
            self._timer = timers.call_soon(self._flush)

    def _flush(self) -> None:
        self._timer = None
        callbacks, self._callbacks = self._callbacks, {}
        if callbacks:
            self._last_flush = (self._timers or asyncio.get_running_loop()).time()
            telemetry.FLUSHES.inc()
        for flush in callbacks:
            flush()
