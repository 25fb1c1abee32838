"""The broker's clock as a process can know it (pure).

Deadlines and freshness depend on the broker's clock alone (LogAppendTime). A record with timestamp
`ts` that was read at local time `t` proves that the broker's clock was at least `ts` at that time.
So `t + max(ts - t)` is a lower bound: it never says "expired" or "stale" too early.

A worker that takes over reads a long stretch of old log at once, and old records prove little. So
observations are forgotten by their age, never by the number of records that followed.
"""

from __future__ import annotations

import collections

WINDOW_S = 300.0  # longer than any wait by this clock (worker.takeover.MODEL_GRACE_MS)
# An acknowledgement that is further below the bound means that the broker's clock was set back.
SET_BACK_MS = 30_000.0


class BrokerClock:
    """Learns from every timestamp that the broker gave. Local times are monotonic seconds, broker
    times are ms.

    Attributes:
        settled: an acknowledgement was seen. Before that, the newest known timestamp may be that of
            an old record, and the bound is far too low.
        _leads: (local time, broker time minus local time in ms), oldest and largest first. A later
            observation replaces earlier ones with a smaller lead. The first is the bound.
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

    def observe_acknowledgement(self, timestamp_ms: int, local_s: float) -> None:
        """The broker has just stamped a record of this process."""
        self.settled = True
        if timestamp_ms > 0 and self.now_ms(local_s) - timestamp_ms > SET_BACK_MS:
            self._leads.clear()
        self.observe(timestamp_ms, local_s)

    def now_ms(self, local_s: float) -> float:
        """Lower bound of the broker's time, 0 while nothing is known."""
        return self._leads[0][1] + local_s * 1000 if self._leads else 0.0
