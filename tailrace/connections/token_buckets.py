"""Token buckets in this process, one for each key (pure).

A bucket is one number: the time at which it will be full again. A bucket that is full is the same
as none, so an unused key costs memory only for a short time.
"""

from __future__ import annotations

from typing import Final

MOST_KEYS: Final = 16_384
ROUNDING_S: Final = 1e-6  # a shorter wait is the error of the sums


class TokenBuckets:
    """Buckets that refill at `rate` a second and hold `burst`.

    At most `most` of them are kept: an attacker with many keys pushes out the oldest ones, never
    memory.

    Attributes:
        _full_at: when the bucket of a key is full again (seconds, by the caller's clock).
    """

    def __init__(self, rate: float, burst: float, most: int = MOST_KEYS) -> None:
        self._rate = rate
        self._depth_s = burst / rate
        self._most = most
        self._full_at: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._full_at)

    def consume(self, key: str, now: float, amount: float = 1.0) -> float:
        """Consume `amount` if it is available. Returns 0, or the seconds until it will be."""
        full_at = max(self._full_at.get(key, now), now) + amount / self._rate
        if wait_s := self._missing_s(full_at, now):
            return wait_s
        self._full_at[key] = full_at
        if len(self._full_at) > self._most:
            self._drop(now)
        return 0.0

    def spend(self, key: str, now: float, amount: float = 1.0) -> float:
        """Consume `amount` even if it is not available: the rest is owed, and later callers wait
        for it. Returns the seconds until it is available."""
        full_at = max(self._full_at.get(key, now), now) + amount / self._rate
        self._full_at[key] = full_at
        if len(self._full_at) > self._most:
            self._drop(now)
        return self._missing_s(full_at, now)

    def wait_s(self, key: str, now: float, amount: float = 1.0) -> float:
        """The seconds until `amount` will be there; 0 when it is. Takes nothing."""
        full_at = self._full_at.get(key)
        if full_at is None:
            return 0.0
        return self._missing_s(max(full_at, now) + amount / self._rate, now)

    def _missing_s(self, full_at: float, now: float) -> float:
        wait_s = full_at - now - self._depth_s
        return wait_s if wait_s > ROUNDING_S else 0.0

    def _drop(self, now: float) -> None:
        """Forget full buckets, and the oldest quarter if that does not help."""
        self._full_at = {key: at for key, at in self._full_at.items() if at > now}
        if len(self._full_at) > self._most:
            for key in list(self._full_at)[: self._most // 4]:
                del self._full_at[key]
