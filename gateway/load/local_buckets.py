"""Token buckets of this process alone, used while Redis is down.

All gateways together must not allow much more than Redis would. So a local bucket has a share of
the rate and of the burst.
"""

from __future__ import annotations

import collections
from dataclasses import dataclass
from typing import Final

from tailrace.store.limits import Verdict

SHARE: Final = 0.25
MAX_BUCKETS: Final = 10_000  # the least recently used are dropped, which refills them


@dataclass(slots=True)
class _Bucket:
    """`tokens` remained at time `at`, in seconds."""

    tokens: float
    at: float


class LocalBuckets:
    """One bucket per principal and kind."""

    def __init__(self, share: float = SHARE) -> None:
        self._share = share
        self._buckets: collections.OrderedDict[tuple[str, str], _Bucket] = collections.OrderedDict()

    def consume(
        self, principal: str, kind: str, cost: float, rate: float, burst: float, now: float
    ) -> Verdict:
        """Consume `cost` tokens of a bucket with a share of `rate` per second and of `burst`. A
        cost above that burst empties a full bucket. `now`: seconds of a monotonic clock."""
        rate, burst = rate * self._share, max(1.0, burst * self._share)
        cost = min(cost, burst)
        bucket = self._buckets.pop((principal, kind), None) or _Bucket(burst, now)
        self._buckets[principal, kind] = bucket
        while len(self._buckets) > MAX_BUCKETS:
            self._buckets.popitem(last=False)
        bucket.tokens = min(burst, bucket.tokens + (now - bucket.at) * rate)
        bucket.at = now
        if bucket.tokens < cost:
            return Verdict(False, (cost - bucket.tokens) / rate, bucket.tokens)
        bucket.tokens -= cost
        return Verdict(True, 0.0, bucket.tokens)
