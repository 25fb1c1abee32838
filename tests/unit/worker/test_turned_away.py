"""What gateways turn away is expected to come."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tailrace.store import turned_away as store
from tailrace.store.redis_store import StoreUnavailable
from tailrace.store.turned_away import Count, Whose
from tests.support.memory_redis import MemoryRedis
from tests.support.memory_worker import Time
from worker.demand import Demand
from worker.turned_away import KEPT_S, TurnedAway

ALL = Whose(0)
ALICE = Whose(0, "alice's")


class Told(store.TurnedAway):
    """What gateways told, as it stands now; None: Redis is away."""

    def __init__(self) -> None:
        super().__init__(MemoryRedis())
        self.counts: dict[str, dict[Whose, Count]] | None = {}

    async def listed(self, pool: str) -> dict[str, dict[Whose, Count]]:
        assert pool == "p"
        if self.counts is None:
            raise StoreUnavailable("away")
        return {gateway: dict(counts) for gateway, counts in self.counts.items()}

    def tell(self, **gateways: float) -> None:  # type: ignore[override]
        """So many requests of alice since each gateway began, each of which asks for 10 tokens."""
        self.counts = {
            name: {whose: Count(n, 10 * n) for whose in (ALL, ALICE)}
            for name, n in gateways.items()
        }


class Noted(Demand):
    """Remembers what it was told."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: dict[Whose, Count] = {}

    def turned_away(self, rank: int, name: str, number: float, asked: float) -> None:
        assert Whose(rank, name) not in self.noted, "once a look"
        self.noted[Whose(rank, name)] = Count(number, asked)


def make(workers: int = 1) -> tuple[Told, Noted, Time, TurnedAway]:
    told, noted, time = Told(), Noted(), Time()
    return told, noted, time, TurnedAway(told, "p", noted, lambda: workers, time)


async def look(noted: Noted, found: TurnedAway) -> Mapping[Whose, Count]:
    noted.noted = {}
    await found.look()
    return noted.noted


async def test_each_look_adds_what_came_since_the_last_one_at_all_gateways() -> None:
    told, noted, _, found = make()
    told.tell(one=5, two=100)
    assert await look(noted, found) == {}, "that was at any time before"
    assert await look(noted, found) == {}
    told.tell(one=8, two=101)
    assert await look(noted, found) == {ALL: (4, 40), ALICE: (4, 40)}
    assert await look(noted, found) == {}
    told.tell(one=8, two=101, three=2)
    assert await look(noted, found) == {ALL: (2, 20), ALICE: (2, 20)}, "a new gateway"


@pytest.mark.parametrize("workers", [0, 1, 4])
async def test_the_workers_of_a_pool_share_it(workers: int) -> None:
    told, noted, _, found = make(workers)
    await look(noted, found)
    told.tell(one=8)
    part = 8 / max(1, workers)
    assert await look(noted, found) == {ALL: (part, 10 * part), ALICE: (part, 10 * part)}


async def test_a_gateway_that_counts_anew() -> None:
    told, noted, _, found = make()
    told.tell(one=50)
    await look(noted, found)
    told.tell(one=3)
    assert (await look(noted, found))[ALL] == (3, 30)


async def test_while_redis_is_away_nothing_comes_and_then_all_that_came() -> None:
    told, noted, _, found = make()
    told.tell(one=50)
    await look(noted, found)
    told.counts = None
    assert await look(noted, found) == {}
    told.tell(one=57)
    assert (await look(noted, found))[ALL] == (7, 70)


async def test_what_an_emptied_redis_forgot_does_not_come_again() -> None:
    told, noted, time, found = make()
    told.tell(one=50)
    await look(noted, found)
    told.tell()
    assert await look(noted, found) == {}
    told.tell(one=51)
    assert (await look(noted, found))[ALL] == (1, 10)
    told.tell()
    time.advance(KEPT_S + 1)
    await look(noted, found)
    told.tell(one=51)
    assert (await look(noted, found))[ALL] == (51, 510), "it began anew meanwhile"


async def test_what_makes_no_sense_is_not_believed() -> None:
    told, noted, _, found = make()
    told.counts = {"one": {ALL: Count(5, 500)}}
    await look(noted, found)
    told.counts = {"one": {ALL: Count(6, 100)}}
    assert await look(noted, found) == {}
