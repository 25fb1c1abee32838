"""Redis as the gateway uses it: a cache that may be down at any moment.

Without Redis every call returns what an empty cache returns. `tailrace.store.redis_store` bounds
how long a call waits for a Redis that hangs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from tailrace.store import (
    answers,
    breakers,
    canaries,
    idempotency,
    limits,
    offers,
    prefixes,
    running,
    sessions,
    workers,
)
from tailrace.store.redis_store import RedisStore, StoreUnavailable

T = TypeVar("T")


class Cache:
    """The kinds of keys that the gateway uses. No method raises `StoreUnavailable`."""

    def __init__(self, redis: RedisStore, evictable: RedisStore | None = None) -> None:
        """`evictable` holds data that may be evicted; without it `redis` does."""
        evictable = evictable or redis
        self._sessions = sessions.Sessions(evictable)
        self._idempotency_keys = idempotency.IdempotencyKeys(redis)
        self._answers = answers.Answers(evictable)
        self._prefixes = prefixes.Prefixes(evictable)
        self._workers = workers.Workers(redis)
        self._running = running.Running(redis)
        self._breakers = breakers.Breakers(redis)
        self._canaries = canaries.Canaries(redis)
        self._late = offers.Offers(redis, offers.Late, "hedges")
        self._buckets = limits.TokenBuckets(redis)

    async def turn(self, rid: str) -> bytes | None:
        """The cached session of a response."""
        nothing: bytes | None = None
        return await self._call(self._sessions.get_turn(rid), nothing)

    async def put_turn(self, owner: str, rid: str, state: bytes) -> None:
        await self._call(self._sessions.put_turn(owner, rid, state), False)

    async def drop_turn(self, rid: str) -> None:
        await self._call(self._sessions.drop_turn(rid), None)

    async def claim_key(self, principal: str, key: str, rid: str, ttl_s: float) -> str:
        """Return the response id that owns the key: `rid`, or that of an earlier request.

        Without Redis it is always `rid`; the log then decides (`idempotency_index`).
        """
        return await self._call(self._idempotency_keys.claim_key(principal, key, rid, ttl_s), rid)

    async def release_key(self, principal: str, key: str, rid: str) -> None:
        await self._call(self._idempotency_keys.release_key(principal, key, rid), None)

    async def prefix_tokens(
        self, pool: str, chain: Sequence[str], incarnations: Iterable[str]
    ) -> dict[str, int]:
        """Cached tokens of a prompt at these workers, by incarnation. `chain`: digests, longest
        last."""
        nothing: dict[str, int] = {}
        tokens_by_name = await self._call(self._prefixes.held(pool, chain), nothing)
        names = (
            {prefixes.holder_name(each): each for each in incarnations} if tokens_by_name else {}
        )
        return {names[name]: tokens for name, tokens in tokens_by_name.items() if name in names}

    async def has_answer(self, pool: str, digest: str, most: int) -> bool:
        """Whether there is a cached answer of less than `most` tokens for this digest."""
        nothing: answers.Answer | None = None
        answer = await self._call(self._answers.find(pool, digest), nothing)
        return answer is not None and len(answer.ids) < most

    async def workers(self, pool: str) -> list[dict[str, Any]] | None:
        """None without Redis."""
        nothing: list[dict[str, Any]] | None = None
        return await self._call(self._workers.list_workers(pool), nothing)

    async def publish_breaker(self, pool: str, entry: breakers.Open) -> bool:
        """Publish an open breaker for the other gateways. Returns whether Redis stored it."""
        return await self._call(_done(self._breakers.publish(pool, entry)), False)

    async def open_breakers(self) -> Mapping[str, breakers.Open]:
        """Open breakers by pool."""
        nothing: Mapping[str, breakers.Open] = {}
        return await self._call(self._breakers.list_open(), nothing)

    async def publish_returned(self, pool: str, revision: str, entry: canaries.Returned) -> None:
        """Publish a revision that gets no new requests."""
        await self._call(self._canaries.publish(pool, revision, entry), None)

    async def returned_revisions(self) -> Mapping[tuple[str, str], canaries.Returned]:
        """Revisions that get no new requests, by pool and revision."""
        nothing: Mapping[tuple[str, str], canaries.Returned] = {}
        return await self._call(self._canaries.list_returned(), nothing)

    async def offer_late(self, pool: str, rid: str, late: offers.Late) -> None:
        """Offer a response whose first token is late to the workers of its pool."""
        await self._call(self._late.publish(pool, rid, late), None)

    async def publish_running(self, gateway: str, counts: Mapping[str, int]) -> None:
        await self._call(self._running.publish(gateway, counts), None)

    async def running_elsewhere(self, gateway: str) -> Counter[str]:
        """Running responses at other gateways, by digest of the principal."""
        return await self._call(self._running.elsewhere(gateway), Counter[str]())

    async def consume_tokens(
        self, principal: str, cost: float, rate: float, burst: float, kind: str
    ) -> limits.Verdict | None:
        """Charge a token bucket. Returns None without Redis."""
        nothing: limits.Verdict | None = None
        return await self._call(
            self._buckets.consume_tokens(principal, cost, rate, burst, kind=kind), nothing
        )

    async def settle_tokens(
        self, principal: str, difference: float, rate: float, burst: float, kind: str
    ) -> None:
        await self._call(self._buckets.settle(principal, difference, rate, burst, kind), None)

    async def _call(self, call: Awaitable[T], default: T) -> T:
        try:
            return await call
        except StoreUnavailable:
            return default


async def _done(call: Awaitable[None]) -> bool:
    await call
    return True
