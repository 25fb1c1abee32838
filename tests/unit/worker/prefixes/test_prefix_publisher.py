"""Telling gateways what an engine holds."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tailrace.store.prefixes import Prefixes
from tailrace.store.redis_store import StoreUnavailable
from tests.support.memory_redis import MemoryRedis
from tests.support.memory_worker import Time
from worker.prefixes import prefix_publisher
from worker.prefixes.held_prefixes import HeldPrefixes
from worker.prefixes.prefix_publisher import REFRESH_S, PrefixPublisher


class Store(Prefixes):
    """What was told, instead of a Redis that is told."""

    def __init__(self) -> None:
        super().__init__(MemoryRedis())
        self.away = False
        self.told: list[Mapping[str, int]] = []

    async def publish(self, pool: str, incarnation: str, tokens: Mapping[str, int]) -> None:
        if self.away:
            raise StoreUnavailable("away")
        assert (pool, incarnation) == ("default", "w/1")
        self.told.append(tokens)

    def taken(self) -> list[Mapping[str, int]]:
        told, self.told = self.told, []
        return told


class Told(HeldPrefixes):
    """What a test says is held."""

    def __init__(self) -> None:
        super().__init__()
        self.now: dict[str, int] = {}

    def table(self, now: float) -> dict[str, int]:
        return self.now


async def test_only_changes_are_told_and_the_rest_before_it_expires() -> None:
    store, held, time = Store(), Told(), Time()
    teller = PrefixPublisher(store, held, pool="default", incarnation="w/1", monotonic=time)
    await teller.publish()
    assert store.taken() == []
    held.now = {"a": 16, "b": 32}
    await teller.publish()
    await teller.publish()
    assert store.taken() == [{"a": 16, "b": 32}]
    held.now = {"b": 48, "c": 16}
    await teller.publish()
    assert store.taken() == [{"a": 0, "b": 48, "c": 16}]
    time.advance(REFRESH_S)
    await teller.publish()
    await teller.publish()
    assert store.taken() == [{"b": 48, "c": 16}]


async def test_after_redis_was_away_everything_is_told_again() -> None:
    """It may have been emptied, or still say what is held no longer."""
    store, held = Store(), Told()
    teller = PrefixPublisher(store, held, pool="default", incarnation="w/1", monotonic=Time())
    held.now = {"a": 16, "b": 16}
    await teller.publish()
    store.away, held.now = True, {"a": 16, "b": 16, "c": 16}
    await teller.publish()
    held.now = {"a": 16}
    store.away = False
    store.told.clear()
    await teller.publish()
    await teller.publish()
    assert store.taken() == [{"a": 16, "b": 0, "c": 0}]


async def test_what_is_too_much_for_one_telling_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_publisher, "MAX_AT_ONCE", 2)
    store, held = Store(), Told()
    teller = PrefixPublisher(store, held, pool="default", incarnation="w/1", monotonic=Time())
    held.now = dict.fromkeys("abc", 16)
    for _ in range(3):
        await teller.publish()
    assert [len(told) for told in store.taken()] == [2, 1]
