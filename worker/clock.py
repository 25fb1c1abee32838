"""The broker's clock as a worker can know it (pure).

Deadlines and freshness depend on the broker's clock alone (LogAppendTime). A record with timestamp `ts` that is in our hands at local time `t` proves
that the broker's clock is at least `ts` then, so `t + max(ts - t)` is a lower bound: it never says "expired" or "stale" too early.
"""

from __future__ import annotations

import collections

_SAMPLES = 256


class BrokerClock:
    """Learns from every timestamp the broker gave; local times are monotonic seconds, broker times ms.

    Attributes:
        settled: an acknowledgement was seen. Before, the newest thing known may be an old record, and the bound is far too low.
        _leads: broker time minus local time of recent samples, newest last; old ones leave, so that a corrected clock is believed in the end.
    """

    def __init__(self) -> None:
        self.settled = False
        self._leads: collections.deque[float] = collections.deque(maxlen=_SAMPLES)

    def observe(self, timestamp_ms: int, local_s: float) -> None:
        """A record or acknowledgement with this broker time was seen at `local_s`."""
        if timestamp_ms > 0:
            self._leads.append(timestamp_ms - local_s * 1000)

    def acknowledged(self, timestamp_ms: int, local_s: float) -> None:
        """The broker stamped a record of ours just now."""
        self.settled = True
        self.observe(timestamp_ms, local_s)

    def now_ms(self, local_s: float) -> float:
        """Lower bound of the broker's time, 0 while nothing is known."""
        return max(self._leads) + local_s * 1000 if self._leads else 0.0
