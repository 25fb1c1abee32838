"""Responses whose first token is late: another worker of the pool may start on them too (log rule
§26; docs/design/hedging.md).

`Pace` decides and is pure. `Hedges` checks the responses submitted here, and offers late ones.
"""

from __future__ import annotations

import asyncio
import collections
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from gateway.cache import Cache
from gateway.parsing import conversation
from tailrace import settings, telemetry
from tailrace.delivery import delivery
from tailrace.protocol import fold, records, topics
from tailrace.store.offers import Late

CHECK_S: Final = 0.1
PART: Final = 0.95  # this part of first tokens is not late
LEAST: Final = 20  # fewer first tokens say nothing
MOST: Final = 200  # the newest ones count
WINDOW_S: Final = 300.0  # and none older
FLOOR_S: Final = (
    0.1  # an earlier token is never late; nor is a worker within this time of its claim
)
MAX_BUDGET: Final = 5.0  # hedges at once, after a time without any


@dataclass(slots=True)
class Pace:
    """Times to first token of one pool, lengths of its prompts, and the budget for hedges (pure).
    Times are monotonic seconds.

    Attributes:
        _seconds: when first tokens came, and their seconds since the request.
        _lengths: lengths of prompts, in characters.
        _budget: hedges that may be made now. Each request adds the pool's share, so hedges never
            exceed that share of the requests.
    """

    _seconds: collections.deque[tuple[float, float]] = field(
        default_factory=lambda: collections.deque(maxlen=MOST)
    )
    _lengths: collections.deque[int] = field(default_factory=lambda: collections.deque(maxlen=MOST))
    _budget: float = 0.0

    def add_request(self, share: float, characters: int) -> None:
        """Count a request with a prompt of this length."""
        self._budget = min(MAX_BUDGET, self._budget + share)
        self._lengths.append(characters)

    def is_long(self, characters: int) -> bool:
        """Whether a prompt is longer than nearly all others. Its first token is late at any worker,
        and on a second worker it would delay other requests."""
        return bool(self._lengths) and characters > _most_of(self._lengths)

    def add_first_token(self, now: float, seconds: float) -> None:
        """Add the time to first token of a request."""
        self._seconds.append((now, seconds))

    def late_after_s(self, now: float) -> float:
        """A first token after more seconds than this is late. Infinite without enough samples."""
        while self._seconds and self._seconds[0][0] < now - WINDOW_S:
            self._seconds.popleft()
        if len(self._seconds) < LEAST:
            return math.inf
        return max(FLOOR_S, _most_of(seconds for _, seconds in self._seconds))

    def spend(self) -> bool:
        """Spend one hedge of the budget. Returns whether there was one."""
        if self._budget < 1.0 - 1e-9:  # twenty times 0.05 is a little less
            return False
        self._budget -= 1.0
        return True


@dataclass(slots=True, eq=False)
class _Pending:
    """A response without a first token.

    Attributes:
        sent_at: when its request was in the log (monotonic seconds).
        characters: length of its prompt.
        claimed_at: when it was first seen with an owner; 0 before.
        offered: it was offered, or must never be.
        late_after_s: the limit at its offer; infinite without an offer.
    """

    subscription: delivery.Subscription
    partition: int
    sent_at: float
    characters: int
    claimed_at: float = 0.0
    offered: bool = False
    late_after_s: float = math.inf


class Hedges:
    """Offers late responses to other workers; `run` is its only task.

    Attributes:
        _pending: by response id; only in pools that hedge.
        _paces: by pool.
    """

    def __init__(
        self,
        pools: settings.CurrentPools,
        cache: Cache,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pools = pools
        self._cache = cache
        self._clock = clock
        self._pending: dict[str, _Pending] = {}
        self._paces: collections.defaultdict[str, Pace] = collections.defaultdict(Pace)

    async def run(self) -> None:
        """Check until cancelled."""
        while True:
            await self.check()
            await asyncio.sleep(CHECK_S)

    def add(
        self,
        request: records.Request,
        subscription: delivery.Subscription,
        pool: str,
        priority: topics.PriorityClass,
        partition: int,
    ) -> None:
        """Watch a request that was submitted here."""
        share = self._share(pool)
        plain = request.generate and request.embed is None and request.fork is None
        if share and plain and priority == "interactive":
            characters = conversation.characters(request.messages)
            self._paces[pool].add_request(share, characters)
            pending = _Pending(subscription, partition, self._clock(), characters)
            self._pending[request.rid] = pending

    def on_first_token(self, rid: str) -> None:
        """Record the first token of a response."""
        pending = self._pending.pop(rid, None)
        if pending is not None:
            now = self._clock()
            # A hedged time must not move the limit: each hedge comes a little after the limit,
            # which would rise with every hedge.
            seconds = min(now - pending.sent_at, pending.late_after_s)
            self._paces[topics.pool_of(pending.subscription.state.topic)].add_first_token(
                now, seconds
            )

    def on_end(self, rid: str) -> None:
        """Forget a response that is no longer followed here."""
        self._pending.pop(rid, None)

    async def check(self) -> None:
        """Offer the late responses."""
        now = self._clock()
        late_after_s: dict[str, float] = {}
        for rid, pending in list(self._pending.items()):
            state = pending.subscription.state
            if pending.offered or state.phase is not fold.Phase.LIVE:
                continue
            if len(state.claims) > 1 or state.next:
                pending.offered = True
                continue
            pool = topics.pool_of(state.topic)
            pace = self._paces[pool]
            pending.claimed_at = pending.claimed_at or now
            if pool not in late_after_s:
                late_after_s[pool] = pace.late_after_s(now)
            late = (
                now - pending.sent_at > late_after_s[pool] and now - pending.claimed_at >= FLOOR_S
            )
            if late and pace.is_long(pending.characters):
                pending.offered = True
            elif late and self._share(pool) and pace.spend():
                pending.offered, pending.late_after_s = True, late_after_s[pool]
                await self._offer(rid, pending, pool)

    async def _offer(self, rid: str, pending: _Pending, pool: str) -> None:
        claim = pending.subscription.state.first
        assert claim is not None
        telemetry.HEDGES_OFFERED.labels(pool=pool).inc()
        telemetry.log(telemetry.Action.RESPONSE_HEDGED, response=rid, pool=pool, outcome="offered")
        await self._cache.offer_late(pool, rid, Late(pending.partition, claim.req_offset))

    def _share(self, name: str) -> float:
        pool = self._pools.catalog.pool(name)
        return pool.hedge.share if pool is not None else 0.0


def _most_of(values: Iterable[float]) -> float:
    """The 95th percentile."""
    ordered = sorted(values)
    return ordered[math.ceil(PART * len(ordered)) - 1]
