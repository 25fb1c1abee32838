"""Redis as the gateway uses it: a cache that may be away at any moment, and that then costs nothing but what it cached.

Calls answer what an empty cache would answer. After a failure nothing is asked for a moment, so that a Redis that hangs costs one call's timeout per
second, not one per request."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

from wire import sessions

AWAY_S: Final = 1.0

T = TypeVar("T")


class Cache:
    """
    Attributes:
        _away_until: monotonic seconds; before it Redis is not asked.
        failures: calls that got no answer.
    """

    def __init__(self, store: sessions.Sessions, on_failure: Callable[[], None] = lambda: None, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._on_failure = on_failure
        self._clock = clock
        self._away_until = 0.0

    @property
    def away(self) -> bool:
        """Whether the last answer failed to come, a moment ago."""
        return self._clock() < self._away_until

    async def turn(self, rid: str) -> bytes | None:
        """The cached session of a response."""
        nothing: bytes | None = None
        return await self._ask(lambda: self._store.get_turn(rid), nothing)

    async def put_turn(self, rid: str, state: bytes) -> None:
        await self._ask(lambda: self._store.put_turn(rid, state), False)

    async def drop_turn(self, rid: str) -> None:
        await self._ask(lambda: self._store.drop_turn(rid), None)

    async def claim_key(self, principal: str, key: str, rid: str, ttl_s: float) -> str:
        """Without Redis everyone comes first here, and the log decides (`keys`)."""
        return await self._ask(lambda: self._store.claim_key(principal, key, rid, ttl_s), rid)

    async def release_key(self, principal: str, key: str, rid: str) -> None:
        await self._ask(lambda: self._store.release_key(principal, key, rid), None)

    async def warm_partition(self, pool: str, chain: Sequence[str]) -> int | None:
        """The partition that served the longest known prefix. `chain` is longest last."""
        nothing: sessions.PrefixHit | None = None
        hit = await self._ask(lambda: self._store.lookup_prefix(pool, list(reversed(chain))), nothing)
        return hit.partition if hit is not None else None

    async def workers(self, pool: str) -> list[dict[str, Any]]:
        empty: list[dict[str, Any]] = []
        return await self._ask(lambda: self._store.workers(pool), empty)

    async def take(self, principal: str, cost: float, rate: float, burst: float, kind: str) -> sessions.Taken | None:
        """None when nobody counts: rates fail open."""
        nothing: sessions.Taken | None = None
        return await self._ask(lambda: self._store.take(principal, cost, rate, burst, kind=kind), nothing)

    async def _ask(self, call: Callable[[], Awaitable[T]], default: T) -> T:
        if self.away:
            return default
        try:
            return await call()
        except sessions.SessionsUnavailable:
            self._away_until = self._clock() + AWAY_S
            self._on_failure()
            return default
