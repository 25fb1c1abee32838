"""What a gateway tells workers of the requests that it turned away."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from gateway import cache, turned_away
from gateway.turned_away import KEPT_S, MOST, TurnedAway
from tailrace.fair_queue import waits_of
from tailrace.store import turned_away as store
from tailrace.store.turned_away import Count, Whose
from tests.support import log_contract, memory_redis
from tests.support.memory_worker import Time

ALICE, BOB = map(waits_of, ("alice", "bob"))


@contextlib.asynccontextmanager
async def telling(
    redis: memory_redis.MemoryRedis, time: Time
) -> AsyncIterator[tuple[TurnedAway, store.TurnedAway]]:
    """A gateway that tells, and what workers are told."""
    found = TurnedAway(cache.Cache(redis), "one", time)
    task = asyncio.create_task(found.run())
    try:
        yield found, store.TurnedAway(redis)
    finally:
        task.cancel()


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turned_away, "REFRESH_S", 0.001)


async def test_workers_are_told_of_each_principal_and_of_all() -> None:
    redis, time = memory_redis.MemoryRedis(), Time()
    async with telling(redis, time) as (gateway, workers):
        gateway.note("p", "interactive", "alice", 100.0)
        for _ in range(3):
            gateway.note("p", "interactive", "bob", 50.0)
        gateway.note("p", "batch", "alice", 7.0)
        gateway.note("other", "interactive", "bob", 1.0)
        await log_contract.until(lambda: len(redis.hashes) == 2, 5)
        assert await workers.listed("p") == {
            "one": {
                Whose(0): Count(4, 250),
                Whose(0, ALICE): Count(1, 100),
                Whose(0, BOB): Count(3, 150),
                Whose(1): Count(1, 7),
                Whose(1, ALICE): Count(1, 7),
            }
        }
        assert b"alice" not in str(redis.hashes).encode(), "Redis gets no names"
        gateway.note("p", "batch", "alice", 5.0)
        await asyncio.sleep(0.05)
        assert (await workers.listed("p"))["one"][Whose(1, ALICE)] == Count(2, 12)


async def test_a_pool_that_nothing_was_turned_away_from_for_long_is_forgotten() -> None:
    redis, time = memory_redis.MemoryRedis(), Time()
    async with telling(redis, time) as (gateway, _):
        gateway.note("p", "interactive", "alice", 100.0)
        await log_contract.until(lambda: redis.hashes, 5)
        time.advance(KEPT_S - 1)
        redis.hashes.clear()
        await log_contract.until(lambda: redis.hashes, 5)
        time.advance(2)
        await log_contract.until(lambda: not gateway._counts, 5)
        redis.hashes.clear()
        await asyncio.sleep(0.05)
        assert not redis.hashes


async def test_of_many_principals_the_last_ones_are_told_and_all_are_counted() -> None:
    redis, time = memory_redis.MemoryRedis(), Time()
    async with telling(redis, time) as (gateway, workers):
        for number in range(5 * MOST):
            gateway.note("p", "interactive", f"user-{number}", 1.0)
            gateway.note("p", "interactive", "alice", 1.0)
        await log_contract.until(lambda: redis.hashes, 5)
        told = (await workers.listed("p"))["one"]
        assert told[Whose(0)] == Count(10 * MOST, 10 * MOST)
        assert told[Whose(0, ALICE)] == Count(5 * MOST, 5 * MOST)
        assert len(told) <= 2 * (MOST + 1)
        assert Whose(0, waits_of(f"user-{5 * MOST - 1}")) in told
        assert Whose(0, waits_of("user-0")) not in told


async def test_without_redis_nothing_is_told_and_nothing_fails() -> None:
    redis, time = memory_redis.MemoryRedis(), Time()
    async with telling(redis, time) as (gateway, _):
        redis.away = True
        gateway.note("p", "interactive", "alice", 1.0)
        await asyncio.sleep(0.05)
        redis.away = False
        await log_contract.until(lambda: redis.hashes, 5)
