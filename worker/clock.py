"""The broker's clock as a worker can know it (pure).

Deadlines and freshness depend on the broker's clock alone (LogAppendTime). A record with timestamp
`ts` that is in our hands at local time `t` proves that the broker's clock is at least `ts` then, so
`t + max(ts - t)` is a lower bound: it never says "expired" or "stale" too early.

A worker that takes over reads a stretch of old log at once, record upon record that proves nothing;
so what is forgotten is forgotten by its age, never by the number of records that came after it.
"""

from __future__ import annotations

import collections

WINDOW_S = 300.0  # longer than anybody waits by this clock (`takeover.MODEL_GRACE_MS`)
# an acknowledgement this far behind what was thought is no late one: the broker's clock was set
# back
SET_BACK_MS = 30_000.0


class BrokerClock:
    """Learns from every timestamp the broker gave; local times are monotonic seconds, broker times
    ms.

    Attributes:
        settled: an acknowledgement was seen. Before, the newest thing known may be an old record,
            and the bound is far too low.
        _leads: (local time, broker time minus local time in ms), oldest first and largest first:
            one that comes later with a larger lead replaces those before it. The first is the
            bound.
    """

    def __init__(self) -> None:
        self.settled = False
        self._leads: collections.deque[tuple[float, float]] = collections.deque()

    def observe(self, timestamp_ms: int, local_s: float) -> None:
        """A record or acknowledgement with this broker time was seen at `local_s`."""
        if timestamp_ms <= 0:
            return
        lead = timestamp_ms - local_s * 1000
        while self._leads and self._leads[-1][1] <= lead:
            self._leads.pop()
        self._leads.append((local_s, lead))
        while self._leads[0][0] < local_s - WINDOW_S:
            self._leads.popleft()

    def acknowledged(self, timestamp_ms: int, local_s: float) -> None:
        """The broker stamped a record of ours just now."""
        self.settled = True
        if timestamp_ms > 0 and self.now_ms(local_s) - timestamp_ms > SET_BACK_MS:
            self._leads.clear()
        self.observe(timestamp_ms, local_s)

    def now_ms(self, local_s: float) -> float:
        """Lower bound of the broker's time, 0 while nothing is known."""
        return self._leads[0][1] + local_s * 1000 if self._leads else 0.0
