"""The breakers of a gateway's pools: by outcomes, by workers, and by what other gateways tell."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import pytest

from gateway import cache
from gateway.load import breaker, breakers, worker_registry
from gateway.load.breaker import State
from tailrace import settings
from tailrace.settings.shapes import Pool
from tailrace.store import breakers as store
from tests.support.memory_worker import Time

READY = [{"state": "ready"}]


class Shared:
    """What the gateways share: open breakers, by pool; nothing while it is away."""

    def __init__(self, time: Time) -> None:
        self.time = time
        self.away = False
        self.open: dict[str, tuple[float, store.Open]] = {}

    async def publish_breaker(self, pool: str, entry: store.Open) -> bool:
        if not self.away:
            self.open[pool] = self.time.now + entry.for_s, entry
        return not self.away

    async def open_breakers(self) -> Mapping[str, store.Open]:
        entries = {} if self.away else self.open
        return {
            pool: entry._replace(for_s=until - self.time.now)
            for pool, (until, entry) in entries.items()
            if until > self.time.now
        }


class Gateway:
    """A gateway's breakers, over what it shares with others."""

    def __init__(self, shared: Shared, name: str) -> None:
        cached = cast(cache.Cache, shared)
        pools = (Pool("a", ("m",), 1000, 100), Pool("b", ("n",), 1000, 100))
        current = settings.CurrentPools(settings.Catalog(pools))
        self.workers = worker_registry.WorkerRegistry(cached, current, shared.time)
        self.breakers = breakers.Breakers(
            *(current, self.workers, cached, name), clock=shared.time, luck=lambda: 0.5
        )

    def fail(self, pool: str = "a", times: int = breaker.LEAST) -> None:
        for _ in range(times):
            self.breakers.record(pool, "failed")


@pytest.fixture
def shared() -> Shared:
    return Shared(Time())


async def test_what_opens_at_one_gateway_is_open_at_the_next_exchange_of_the_others(
    shared: Shared,
) -> None:
    one, two = Gateway(shared, "one"), Gateway(shared, "two")
    one.fail()
    await one.breakers.exchange()
    await two.breakers.exchange()
    assert [g.breakers.state("a") for g in (one, two)] == [State.OPEN] * 2
    assert two.breakers.reason("a") == "failed"
    assert two.breakers.wait_s("a") == pytest.approx(breaker.FIRST_OPEN_S)
    assert two.breakers.state("b") is State.CLOSED
    shared.time.advance(breaker.FIRST_OPEN_S)
    await two.breakers.exchange()
    assert two.breakers.state("a") is State.HALF_OPEN
    two.fail(times=1)
    assert two.breakers.wait_s("a") == pytest.approx(2 * breaker.FIRST_OPEN_S), "in a row for all"


async def test_without_redis_each_gateway_has_its_own_and_tells_it_later(shared: Shared) -> None:
    one, two = Gateway(shared, "one"), Gateway(shared, "two")
    shared.away = True
    one.fail()
    await one.breakers.exchange()
    await two.breakers.exchange()
    assert one.breakers.state("a") is State.OPEN
    assert two.breakers.state("a") is State.CLOSED
    shared.away = False
    await one.breakers.exchange()
    await two.breakers.exchange()
    assert two.breakers.state("a") is State.OPEN


async def test_redis_emptied_takes_no_breaker_away(shared: Shared) -> None:
    one, two = Gateway(shared, "one"), Gateway(shared, "two")
    one.fail()
    await one.breakers.exchange()
    await two.breakers.exchange()
    shared.open.clear()
    await two.breakers.exchange()
    assert [g.breakers.state("a") for g in (one, two)] == [State.OPEN] * 2


async def test_a_pool_without_a_ready_worker_is_open_and_half_open_when_one_is_back(
    shared: Shared,
) -> None:
    one = Gateway(shared, "one")
    one.workers.note("a", READY)
    assert one.breakers.state("a") is State.CLOSED
    one.workers.note("a", [{"state": "loading"}])
    assert one.breakers.state("a") is State.CLOSED, "Redis may have been emptied a moment ago"
    shared.time.advance(worker_registry.ABSENT_S)
    assert one.breakers.state("a") is State.OPEN
    assert (one.breakers.admits("a"), one.breakers.reason("a")) == (False, "no_worker")
    assert one.breakers.wait_s("a") > 0
    one.workers.note("a", READY)
    assert one.breakers.state("a") is State.HALF_OPEN
    assert [one.breakers.admits("a") for _ in range(3)] == [True, True, False]
    for _ in range(breaker.PASSES):
        one.breakers.record("a")
    assert one.breakers.state("a") is State.CLOSED


async def test_a_redis_that_does_not_answer_says_nothing_of_workers(shared: Shared) -> None:
    one = Gateway(shared, "one")
    one.workers.note("a", READY)
    one.workers.note("a", None)
    shared.time.advance(60)
    assert one.breakers.state("a") is State.CLOSED
    assert one.workers.standing("a") == READY


async def test_ready_shows_the_state_of_each_pool(shared: Shared) -> None:
    one = Gateway(shared, "one")
    one.fail()
    output: dict[str, Any] = one.breakers.report()
    assert output["a"] == {"state": "open", "reason": "failed", "retry_s": breaker.FIRST_OPEN_S}
    assert output["b"] == {"state": "closed", "reason": "", "retry_s": 0.0}
