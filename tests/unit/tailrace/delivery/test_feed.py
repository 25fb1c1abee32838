"""Feeds over a log in memory: owners, positions, slow readers."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tailrace.delivery import feed, outbox
from tailrace.protocol import activity, conversations, ids, records, topics
from tailrace.protocol import feed as positions
from tests.support import memory_log, waiting

ALICE = records.Owner("i", "alice")
# In the same partition.
OTHER = next(
    o
    for n in range(1_000)
    if (o := records.Owner("i", f"user-{n}"))
    and conversations.partition(o) == conversations.partition(ALICE)
)
P = conversations.partition(ALICE)
C = ids.mint(ids.Address(bytes(4), P, 0), bytes(11), conversations.PREFIX)


class World:
    def __init__(self) -> None:
        self.broker = memory_log.MemoryLog("one", 1)
        self.feeds = feed.Feeds(
            self.broker.layout.tag,
            {topic: self.broker.reader(topic, wait_ms=10) for topic in positions.TOPICS},
            self.broker.offsets(),
            self.broker.replays(),
        )

    def title(self, text: str, by: records.Owner = ALICE) -> None:
        act = conversations.Changed(C, by, title=text)
        key = conversations.key(act).encode()
        self.broker.put(topics.CONVERSATIONS, P, key, conversations.encode(act))

    def ended(self, rid: str, by: records.Owner = ALICE) -> None:
        notice = activity.Ended(rid, by, "m", "completed")
        self.broker.put(topics.ACTIVITY, P, rid.encode(), activity.encode(notice))


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    for topic in positions.TOPICS:  # they are there
        made.broker.put(topic, P, b"x", b"{}")
    running = asyncio.create_task(made.feeds.run())
    yield made
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running


async def taken(of: feed.Subscription, count: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    async with asyncio.timeout(5):
        while len(found) < count:
            found += [json.loads(event.body) for event in await of.next_events()]
    return found


async def test_only_its_owners_records_are_told(world: World) -> None:
    mine = world.feeds.watch(ALICE, None)
    theirs = world.feeds.watch(OTHER, None)
    for each in (mine, theirs):
        assert [e["type"] for e in await taken(each, 1)] == ["feed.ready"]
    world.title("secret")
    world.ended("r1")
    world.title("theirs", OTHER)
    assert {e["type"] for e in await taken(mine, 2)} == {"conversation.updated", "response.ended"}
    [told] = await taken(theirs, 1)
    assert told["title"] == "theirs"
    assert not theirs.ready
    mine.close()
    theirs.close()


async def test_copies_of_a_notice_are_told_once(world: World) -> None:
    mine = world.feeds.watch(ALICE, None)
    await taken(mine, 1)
    for rid in ("r1", "r1", "r2", "r1"):
        world.ended(rid)
    assert [e["response_id"] for e in await taken(mine, 2)] == ["r1", "r2"]
    world.ended("r3")
    assert [e["response_id"] for e in await taken(mine, 1)] == ["r3"]
    mine.close()


async def test_everything_behind_a_position_comes_once_also_while_more_is_written(
    world: World,
) -> None:
    first = world.feeds.watch(ALICE, None)
    [ready] = await taken(first, 1)
    first.close()
    for n in range(3_000):
        world.title(str(n))
    again = world.feeds.watch(ALICE, positions.position(ready["position"]))
    found = await taken(again, 1_000)
    for n in range(3_000, 3_200):
        world.title(str(n))
    found += await taken(again, 2_201)
    assert [e["title"] for e in found if "title" in e] == [str(n) for n in range(3_200)]
    assert [e["type"] for e in found].count("feed.ready") == 1
    again.close()


async def test_one_that_takes_nothing_is_cut_off_and_one_that_catches_up_waits(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "SLOW_BYTES", 20_000)
    monkeypatch.setattr(feed, "FULL_BYTES", 5_000)
    live = world.feeds.watch(ALICE, None)
    [ready] = await taken(live, 1)
    for n in range(400):
        world.title(str(n))
    behind = world.feeds.watch(ALICE, positions.position(ready["position"]))
    await waiting.eventually(lambda: live._slow, "the verdict", within_s=5)
    with pytest.raises(outbox.Slow):
        live.pending()
    assert behind._size < 10_000, "it waits for its reader"
    found = await taken(behind, 401)
    assert [e["title"] for e in found if "title" in e] == [str(n) for n in range(400)]
    live.close()
    behind.close()


async def test_one_that_takes_nothing_holds_up_no_other_that_catches_up(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "FULL_BYTES", 2_000)
    first = world.feeds.watch(ALICE, None)
    [ready] = await taken(first, 1)
    first.close()
    for n in range(100):
        world.title(str(n))
    world.title("mine", OTHER)
    at = positions.position(ready["position"])
    stuck, other = world.feeds.watch(ALICE, at), world.feeds.watch(OTHER, at)
    assert [e["type"] for e in await taken(other, 2)] == ["conversation.updated", "feed.ready"]
    found = await taken(stuck, 101)
    assert [e["title"] for e in found if "title" in e] == [str(n) for n in range(100)]
    stuck.close()
    other.close()


async def test_a_partition_is_followed_while_somebody_needs_it(world: World) -> None:
    readers = world.feeds._readers
    one, two = world.feeds.watch(ALICE, None), world.feeds.watch(OTHER, None)
    await taken(one, 1)
    await taken(two, 1)
    one.close()
    one.close()
    assert all(reader.follows(P) for reader in readers)
    two.close()
    assert not any(reader.follows(P) for reader in readers)
    again = world.feeds.watch(ALICE, None)
    await taken(again, 1)
    world.title("still")
    assert [e["title"] for e in await taken(again, 1)] == ["still"]
    again.close()


@pytest.mark.parametrize("far", [(5, 10**9), (10**9, 5)])
async def test_a_position_that_is_not_of_this_log_is_reset(
    world: World, far: tuple[int, int]
) -> None:
    for at in (
        positions.Position(world.broker.layout.tag, far),
        positions.Position(b"abcd", (0, 0)),
    ):
        lost = world.feeds.watch(ALICE, at)
        assert [e["type"] for e in await taken(lost, 1)] == ["feed.reset"]
        world.title("on")
        assert [e["title"] for e in await taken(lost, 1)] == ["on"]
        lost.close()


@pytest.mark.parametrize("text", ["", "1-2-3", "0000000g-1-1", "00000000-1-", "00000000--1-1", "x"])
def test_what_is_no_position_is_none(text: str) -> None:
    with pytest.raises(positions.InvalidPosition):
        positions.position(text)


def test_a_position_is_read_as_it_was_written() -> None:
    at = positions.Position(b"\x01\xff\x00\x10", (3, 2**40))
    assert positions.position(str(at)) == at
