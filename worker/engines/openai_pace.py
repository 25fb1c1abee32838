"""How many responses a server is given at once, and when it is asked again (pure). Times are
monotonic seconds.

A refusal for too many requests (429) halves the number. Each answer after it adds to it, one in
each round of answers. A server that is not there (503, no connection) is not asked for a while; the
number stays.
"""

from __future__ import annotations

from typing import Final

FIRST_PAUSE_S: Final = 0.5
MAX_PAUSE_S: Final = 30.0
MAX_CLOSED_S: Final = 60.0  # a server that asks for hours is asked again by then


class Pace:
    """State of one server.

    Attributes:
        allowed: responses that it may run at once.
        _failures: refusals in a row, those of one moment counted once.
        _closed_until: it is not asked before.
    """

    def __init__(self, most: int) -> None:
        self.limit = float(most)
        self._most = most
        self._failures = 0
        self._closed_until = 0.0

    def limit_now(self, now: float) -> int:
        """Responses that it may run at once now; 0 while it is not asked."""
        return 0 if now < self._closed_until else int(self.limit)

    def closed_s(self, now: float) -> float:
        """For how long it is not asked."""
        return max(0.0, self._closed_until - now)

    def note_refusal(
        self, now: float, *, requested_s: float | None, draw: float, running: int = 0
    ) -> float:
        """The server takes nothing now. Returns the pause of the response that asked.

        Args:
            asked_s: the pause that the server asks for; None: it asks for none.
            draw: a random number from 0 to 1.
            running: responses that it runs, if it refused for its load; else 0.
        """
        if now >= self._closed_until:
            self._failures += 1
            if running:
                self.limit = max(1.0, min(self.limit, running) / 2)
        pause_s = requested_s
        if pause_s is None:
            longest = min(MAX_PAUSE_S, FIRST_PAUSE_S * 2 ** min(self._failures, 10))
            pause_s = longest * (0.5 + draw / 2)
        self._closed_until = max(self._closed_until, now + min(pause_s, MAX_CLOSED_S))
        return pause_s

    def note_answer(self) -> None:
        """The server took a request."""
        self._failures = 0
        self.limit = min(float(self._most), self.limit + 1 / self.limit)
