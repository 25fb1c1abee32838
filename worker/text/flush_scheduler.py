"""When frames are written: at once, or after a linger together with the frames of that time.

A round trip to the broker costs far more than a record. So responses that stream at the same time
share one, and so do the tokens of a response that streams faster than a person reads. Frames go out
at once when the last flush was longer ago than the linger.

The linger follows the measured round trips. If the broker or the cores are busy, round trips take
longer, and frames are gathered for longer. The linger never delays an engine that is slower.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any, Protocol

from tailrace import telemetry

# (most running responses, length of the linger in round trips). Responses share round trips, so a
# longer linger saves more where more of them run; where few run, it would only delay them.
ROUND_TRIPS = ((16, 3), (64, 6), (math.inf, 12))
MIN_LINGER_S = 0.005
MAX_LINGER_S = 0.040  # 25 updates a second look continuous
_NEWEST_WEIGHT = 0.05  # of the newest round trip in the smoothed one

Flush = Callable[[], None]


class Timers(Protocol):
    """The part of an event loop that the scheduler uses. Times are seconds of its clock."""

    def time(self) -> float:
        """Now."""

    def call_at(self, when: float, callback: Flush) -> Any:
        """Call `callback` at `when`."""

    def call_soon(self, callback: Flush) -> Any:
        """Call `callback` in the next turn of the loop."""


class FlushScheduler:
    """Calls the scheduled callbacks together, at most once per linger.

    Attributes:
        _callbacks: of the next flush, in order of scheduling.
        _has_timer: whether that flush has a timer.
        _last_flush: when the last flush was.
        _round_trip_s: duration of recent appends, smoothed.
    """

    def __init__(self, running: Callable[[], int], timers: Timers | None = None) -> None:
        """`running` gives the number of responses in the engine. `timers` is the running loop if it
        is not given."""
        self._running = running
        self._timers = timers
        self._callbacks: dict[Flush, None] = {}
        self._has_timer = False
        self._last_flush = -math.inf
        self._round_trip_s = 0.0

    @property
    def linger_s(self) -> float:
        """The least time between two flushes."""
        running = self._running()
        round_trips = next(n for most, n in ROUND_TRIPS if running <= most)
        return min(MAX_LINGER_S, max(MIN_LINGER_S, round_trips * self._round_trip_s))

    def observe(self, round_trip_s: float) -> None:
        """An append took `round_trip_s`."""
        self._round_trip_s += _NEWEST_WEIGHT * (round_trip_s - self._round_trip_s)

    def schedule(self, flush: Flush) -> None:
        """Call `flush` at the next flush."""
        self._callbacks[flush] = None
        if self._has_timer:
            return
        self._has_timer = True
        timers = self._timers or asyncio.get_running_loop()
        at = self._last_flush + self.linger_s
        if at > timers.time():
            timers.call_at(at, self._flush)
        else:
            # The next turn of the loop, not this one: all outputs of one engine step arrive in one
            # turn, and so they go out together.
            timers.call_soon(self._flush)

    def cancel(self, flush: Flush) -> None:
        """Do not call `flush`: its frames were written already, or never will be."""
        self._callbacks.pop(flush, None)

    def _flush(self) -> None:
        self._has_timer = False
        callbacks, self._callbacks = self._callbacks, {}
        if callbacks:
            self._last_flush = (self._timers or asyncio.get_running_loop()).time()
            telemetry.FLUSHES.inc()
        for flush in callbacks:
            flush()
