"""Which part of a worker's slots each principal may have while others wait (pure).

As in `tailrace.fair_queue`: tenants have parts by their weights, and the principals of a tenant
have equal parts of its part. Only those count that hold a slot or wait for one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Final

from tailrace.fair_queue import Flow

_ROUNDING: Final = 1e-6  # of a slot


class Shares:
    """The tenants' and principals' shares of one pool of slots.

    Attributes:
        _requests: how many requests hold a slot or wait for one, by tenant and principal.
        _weights: sum of the weights of these tenants.
    """

    def __init__(self, weight: Callable[[str], float]) -> None:
        """`weight` of a tenant, above 0."""
        self._weight = weight
        self._requests: dict[str, Counter[str]] = {}
        self._weights = 0.0

    @property
    def several(self) -> bool:
        """Whether there is more than one principal."""
        return len(self._requests) > 1 or any(len(each) > 1 for each in self._requests.values())

    def add(self, flow: Flow) -> None:
        """One more request waits for a slot."""
        if flow.tenant not in self._requests:
            self._requests[flow.tenant] = Counter()
            self._weights += self._weight(flow.tenant)
        self._requests[flow.tenant][flow.principal] += 1

    def remove(self, flow: Flow) -> None:
        """A request has released its slot, or waits no longer."""
        principals = self._requests[flow.tenant]
        principals[flow.principal] -= 1
        if not principals[flow.principal]:
            del principals[flow.principal]
        if not principals:
            del self._requests[flow.tenant]
            self._weights -= self._weight(flow.tenant)

    def slots_for(self, flow: Flow, slots: int, new: int = 0) -> int:
        """Slots that a principal may have, rounded up, so that no principal loses a slot that the
        next one would lose too. `new`: further tenants of weight 1 to count."""
        part = self._weight(flow.tenant) / (self._weights + new)
        part /= len(self._requests[flow.tenant])
        return max(1, math.ceil(slots * part - _ROUNDING))
