"""Where a response stands in the queue, as its subscribers are told."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tailrace.delivery import hub, queue_news, subscription
from tailrace.protocol import events, records
from tailrace.protocol.queue_place import Place
from tailrace.store.queues import Queues, rest
from tests.support.memory_redis import MemoryRedis

OWNER = records.Owner("iss", "alice")
RID = "resp_" + "A" * 32
CLAIM = records.Claim(RID, "a", None, OWNER, "w1", "t", 0, "rev", "tok")


class World:
    """A hub with one response that waits, and what workers say in Redis."""

    def __init__(self, *, background: bool = False) -> None:
        self.redis, self.hub = MemoryRedis(), hub.Hub()
        self.queues = Queues(self.redis)
        self.news = queue_news.QueueNews(self.queues, self.hub, lambda: ["default", "other"])
        self.stream = hub.Stream(RID, 0)
        self.stream.identify(OWNER, events.echo(RID, 1, "m", background=background))
        self.hub.add(self.stream)

    def watch(self, after: int = -1) -> subscription.Subscription:
        return subscription.Subscription(self.stream, after)

    async def say(self, place: Place, rid: str = RID, pool: str = "other") -> None:
        await self.queues.publish(pool, {rid: place}, ())
        await self.news.poll()

    async def long_ago(self) -> None:
        for _ in range(queue_news.QUIET):
            await self.news.poll()


def queued(found: list[events.Event]) -> list[dict[str, Any]]:
    """What is said of the queue, and with which number."""
    said = [json.loads(event.body) for event in found]
    return [{"n": e["sequence_number"], **e["queue"]} for e in said if "queue" in e]


@pytest.mark.parametrize(("background", "last"), [(False, 0), (True, 1)])
async def test_a_waiting_response_is_told_its_place_under_the_last_number(
    background: bool, last: int
) -> None:
    world = World(background=background)
    watcher = world.watch()
    await world.long_ago()
    await world.say(Place(12, 8.51))
    found = watcher.pending()
    assert [event.sequence_number for event in found] == [*range(last + 1), last]
    assert queued(found) == [{"n": last, "position": 12, "eta_s": 10.0}]
    said = json.loads(found[-1].body)
    assert (said["type"], said["response"]["status"]) == ("response.queued", "queued")
    world.stream.apply(CLAIM, 5, 1)
    (begun,) = watcher.pending()
    assert (begun.type, begun.sequence_number) == ("response.in_progress", last + 1)


async def test_only_a_noticeable_change_is_told() -> None:
    world = World()
    watcher = world.watch()
    await world.long_ago()
    for place in (Place(100, 50.0), Place(95, 46.0), Place(91, None), Place(91, 40.0)):
        await world.say(place)
    assert queued(watcher.pending()) == [{"n": 0, "position": 91, "eta_s": 45.0}]
    for place in (Place(90, 38.0), Place(80, 33.0)):
        await world.say(place)
        assert len(queued(watcher.pending())) == (place.position == 80)


async def test_who_comes_later_is_told_at_once_unless_it_has_begun() -> None:
    world = World()
    world.watch()
    await world.long_ago()
    await world.say(Place(3, None))
    assert queued(world.watch(0).pending()) == [{"n": 0, "position": 3}]
    world.stream.apply(CLAIM, 5, 1)
    assert queued(world.watch(0).pending()) == []
    await world.say(Place(1, None))
    assert world.stream.moment is None


async def test_redis_is_asked_only_about_what_is_watched_and_has_waited_for_a_while() -> None:
    world = World()
    asked: list[tuple[str, ...]] = []

    async def read(_pool: str, rids: list[str]) -> dict[str, Place]:
        asked.append(tuple(rids))
        return {}

    world.queues.read = read  # type: ignore[assignment, method-assign]
    await world.long_ago()
    await world.news.poll()
    assert asked == []
    world.watch()
    await world.long_ago()
    assert asked == []
    await world.news.poll()
    assert asked == [(RID, rest("m"))] * 2  # of each pool


async def test_only_the_pool_whose_workers_told_of_a_response_is_asked_again() -> None:
    world = World()
    watcher = world.watch()
    await world.long_ago()
    await world.say(Place(30, None), pool="other")
    await world.queues.publish("default", {RID: Place(20, None)}, ())
    await world.say(Place(10, None), pool="other")
    assert queued(watcher.pending()) == [{"n": 0, "position": 10}]
    await world.queues.publish("other", {}, [RID])
    for _ in range(2):
        await world.news.poll()
    assert queued(watcher.pending()) == [{"n": 0, "position": 20}]


async def test_while_redis_is_away_nothing_is_told_and_nothing_breaks() -> None:
    world = World()
    watcher = world.watch()
    await world.long_ago()
    world.redis.away = True
    await world.news.poll()
    assert queued(watcher.pending()) == []
    world.redis.away = False
    await world.say(Place(2, 1.0))
    assert queued(watcher.pending()) == [{"n": 0, "position": 2, "eta_s": 1.0}]


async def test_a_request_of_which_no_worker_tells_is_told_a_bound_after_a_while() -> None:
    world = World()
    watcher = world.watch()
    await world.long_ago()
    for _ in range(queue_news.UNKNOWN - queue_news.QUIET):
        await world.say(Place(2000, 60.0), rest("m"))
    assert queued(watcher.pending()) == []
    await world.say(Place(2000, 60.0), rest("another model"))
    assert queued(watcher.pending()) == [
        {"n": 0, "position": 2000, "eta_s": 60.0, "at_least": True}
    ]
    await world.say(Place(1900, 60.0))
    assert queued(watcher.pending()) == [{"n": 0, "position": 1900, "eta_s": 60.0}]
