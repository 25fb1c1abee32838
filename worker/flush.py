"""When frames go out: the first at once, then all of a worker's together, in a window that widens with load.

A round trip to the broker costs far more than a record, so responses that stream at once share it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

_WINDOWS = ((2, 0.0), (16, 0.010))  # up to so many running responses: seconds
WIDEST_S = 0.040


def window_s(running: int) -> float:
    """How long frames are gathered with so many responses running."""
    return next((seconds for most, seconds in _WINDOWS if running <= most), WIDEST_S)


class Flusher:
    """Calls what was marked, once per window.

    Attributes:
        _marked: callbacks due at the next flush, in order of marking.
        _due: the timer of that flush; None while nothing is marked.
    """

    def __init__(self, running: Callable[[], int]) -> None:
        self._running = running
        self._marked: dict[Callable[[], None], None] = {}
        self._due: asyncio.Handle | None = None

    def mark(self, flush: Callable[[], None]) -> None:
        """`flush` has something to write."""
        self._marked[flush] = None
        if self._due is None:
            loop, wait = asyncio.get_running_loop(), window_s(self._running())
            # Even without a window everything of one engine step goes out together: its outputs arrive in one turn of the loop.
            self._due = loop.call_later(wait, self._flush) if wait else loop.call_soon(self._flush)

    def forget(self, flush: Callable[[], None]) -> None:
        """It was written already, or never will be."""
        self._marked.pop(flush, None)

    def _flush(self) -> None:
        self._due = None
        marked, self._marked = self._marked, {}
        for flush in marked:
            flush()
