"""What gateways tell each other of the busiest principals."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from gateway import cache
from gateway.load import admission, principal_counts
from tailrace.store import redis_store
from tests.support import log_contract, memory_redis

MANY = principal_counts.MANY


class Gateways(memory_redis.MemoryRedis):
    """A Redis with the hash of gateways; no entry expires."""

    def __init__(self) -> None:
        super().__init__()
        self.told: dict[bytes, bytes] = {}

    def _eval(self, script: str, keys: int, key: str, *args: Any) -> Any:
        if key != "running:gateways":
            return super()._eval(script, keys, key, *args)
        if args:
            self.told[args[0].encode()] = args[2]
        return [part for name, reports in self.told.items() for part in (name, b"1000", reports)]


@contextlib.asynccontextmanager
async def gateway(
    redis: Gateways, name: str
) -> AsyncIterator[tuple[admission.Running, principal_counts.PrincipalCounts]]:
    """One gateway that tells and reads."""
    running = admission.Running()
    counts = principal_counts.PrincipalCounts(cache.Cache(redis), running, name)
    telling = asyncio.create_task(counts.run())
    try:
        yield running, counts
    finally:
        telling.cancel()


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(principal_counts, "REFRESH_S", 0.001)


async def test_the_others_know_of_many_responses_and_of_their_end() -> None:
    redis = Gateways()
    async with gateway(redis, "one") as (running, own), gateway(redis, "two") as (_, other):
        for n in range(MANY):
            running.add(f"resp_{n}", "alice", 0)
        await log_contract.until(lambda: other.elsewhere("alice") == MANY, 5)
        assert other.elsewhere("bob") == 0
        assert own.elsewhere("alice") == 0, "its own are not elsewhere"
        for n in range(MANY):
            running.end(f"resp_{n}")
        await log_contract.until(lambda: other.elsewhere("alice") == 0, 5)


async def test_few_responses_are_not_told() -> None:
    redis = Gateways()
    async with gateway(redis, "one") as (running, _):
        for n in range(MANY - 1):
            running.add(f"resp_{n}", "alice", 0)
        for n in range(MANY):
            running.add(f"resp_b{n}", "bob", 0)
        await log_contract.until(lambda: redis.told, 5)
        (reports,) = redis.told.values()
        assert reports.count(b":") == 1, "bob alone"


async def test_without_redis_nothing_runs_elsewhere() -> None:
    redis = Gateways()
    async with gateway(redis, "one") as (running, _), gateway(redis, "two") as (_, other):
        for n in range(MANY):
            running.add(f"resp_{n}", "alice", 0)
        await log_contract.until(lambda: other.elsewhere("alice") == MANY, 5)
        redis.away = True
        await log_contract.until(lambda: other.elsewhere("alice") == 0, 5)


async def test_a_negative_count_takes_nothing_from_the_others() -> None:
    redis = Gateways()
    redis.told[b"broken"] = msgspec.json.encode({redis_store.digest("alice"): -100})
    async with gateway(redis, "one") as (running, _), gateway(redis, "two") as (_, other):
        for n in range(MANY):
            running.add(f"resp_{n}", "alice", 0)
        await log_contract.until(lambda: other.elsewhere("alice") == MANY, 5)
