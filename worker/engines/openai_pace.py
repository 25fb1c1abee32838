"""The limit of simultaneous responses at a server, and its pauses (pure). Times are monotonic
seconds.

A refusal for too many requests (429) halves the limit. Later answers raise it by one per round of
answers. An unreachable server (503, no connection) gets no requests for a while; the limit stays.
"""

from __future__ import annotations

from typing import Final

FIRST_PAUSE_S: Final = 0.5
MAX_PAUSE_S: Final = 30.0
MAX_CLOSED_S: Final = 60.0  # longest pause, also if a server requests hours


class Pace:
    """State of one server.

    Attributes:
        limit: responses that it may run at once.
        _failures: refusals in a row; simultaneous ones count once.
        _closed_until: it gets no request before.
    """

    def __init__(self, most: int) -> None:
        self.limit = float(most)
        self._most = most
        self._failures = 0
        self._closed_until = 0.0

    def limit_now(self, now: float) -> int:
        """Responses that it may run at once now; 0 during a pause."""
        return 0 if now < self._closed_until else int(self.limit)

    def closed_s(self, now: float) -> float:
        """The remaining pause."""
        return max(0.0, self._closed_until - now)

    def note_refusal(
        self, now: float, *, requested_s: float | None, draw: float, running: int = 0
    ) -> float:
        """The server refused. Returns the pause of the refused response.

        Args:
            requested_s: the pause that the server requests; None if it requests none.
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
        """The server accepted a request."""
        self._failures = 0
        self.limit = min(float(self._most), self.limit + 1 / self.limit)
