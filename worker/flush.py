"""When frames go out: at once if the last ones went out long enough ago, else together with what comes until then.

A round trip to the broker costs far more than a record, so responses that stream at once share it, and so do the tokens of one that streams faster
than anybody reads. Nothing waits that would have had the round trip to itself: an engine slower than the window is never delayed by it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

_WINDOWS = ((2, 0.005), (16, 0.010))  # up to so many running responses: seconds between flushes
WIDEST_S = 0.040


def window_s(running: int) -> float:
    """The least time between two flushes with so many responses running."""
    return next((seconds for most, seconds in _WINDOWS if running <= most), WIDEST_S)


class Flusher:
    """Calls what was marked, once per window.

    Attributes:
        _marked: callbacks due at the next flush, in order of marking.
        _due: the timer of that flush; None while nothing is marked.
        _last: when the last one was (seconds of the loop's clock).
    """

    def __init__(self, running: Callable[[], int]) -> None:
        self._running = running
        self._marked: dict[Callable[[], None], None] = {}
        self._due: asyncio.Handle | None = None
        self._last = -math.inf

    def mark(self, flush: Callable[[], None]) -> None:
        """`flush` has something to write."""
        self._marked[flush] = None
        if self._due is None:
            loop = asyncio.get_running_loop()
            at = self._last + window_s(self._running())
            # Even at once everything of one engine step goes out together: its outputs arrive in one turn of the loop.
            self._due = loop.call_at(at, self._flush) if at > loop.time() else loop.call_soon(self._flush)

    def forget(self, flush: Callable[[], None]) -> None:
        """It was written already, or never will be."""
        self._marked.pop(flush, None)

    def _flush(self) -> None:
        self._due = None
        marked, self._marked = self._marked, {}
        if marked:
            self._last = asyncio.get_running_loop().time()
        for flush in marked:
            flush()
