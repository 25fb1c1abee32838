"""What a worker tells Redis of the requests that wait in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tailrace.fair_queue import Flow
from tailrace.protocol.queue_place import Place
from tailrace.store.queues import Queues, rest
from tests.support.memory_redis import MemoryRedis
from worker.queue.queue_publisher import QueuePublisher
from worker.queue.read_ahead import Overflow
from worker.queue.slots import Slots
from worker.queue.workload import Workload

POOL, MODEL = "default", "small"
ALICE, BOB = (Flow(name, name) for name in ("alice", "bob"))


class World:
    """A worker with one place, and its Redis."""

    def __init__(self) -> None:
        self.redis = MemoryRedis()
        self.slots = Slots(1)
        self.aside: dict[int, Mapping[str, Iterable[tuple[str, float]]]] = {}
        self.unread = 0
        self.queues = Queues(self.redis)
        self.teller = QueuePublisher(
            self.queues,
            POOL,
            [MODEL],
            self.slots,
            Workload(),
            lambda rank: self.aside.get(rank, {}),
            lambda rank: Overflow({}, self.unread if rank else 0),
        )

    async def told(self, *rids: str) -> dict[str, int]:
        found = await self.queues.read(POOL, rids)
        return {rid: place.position for rid, place in found.items()}


async def test_those_that_wait_are_told_and_those_that_began_are_taken_out() -> None:
    world = World()
    await world.teller.publish()
    assert world.redis.values == {}
    running = world.slots.acquire(0, ALICE, 1.0, "runs")
    for name in ("first", "second"):
        world.slots.acquire(0, ALICE, 1.0, name)
    world.aside[0] = {"alice": [("aside", 1.0)]}
    await world.teller.publish()
    assert await world.told("runs", "first", "second", "aside", rest(MODEL)) == {
        "first": 0,
        "second": 1,
        "aside": 2,
    }
    world.slots.release(running)
    await world.teller.publish()
    assert await world.told("first", "second") == {"second": 0}


async def test_requests_that_were_not_read_are_told_a_bound_while_there_are_some() -> None:
    world = World()
    world.unread = 7
    for name in ("runs", "first"):
        world.slots.acquire(0, BOB, 1.0, name)
    await world.teller.publish()
    assert await world.queues.read(POOL, [rest(MODEL)]) == {rest(MODEL): Place(1, None)}
    world.unread = 0
    await world.teller.publish()
    assert await world.told(rest(MODEL), "first") == {"first": 0}


async def test_what_redis_could_not_be_told_is_taken_out_later() -> None:
    world = World()
    turns = [world.slots.acquire(0, ALICE, 1.0, name) for name in ("runs", "first", "second")]
    await world.teller.publish()
    world.redis.away = True
    world.slots.release(turns[0])
    await world.teller.publish()
    world.redis.away = False
    world.slots.release(turns[1])
    await world.teller.publish()
    assert await world.told("first", "second") == {}
