"""Feeds over a log in memory: owners, positions, slow readers."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterable
from typing import Any

import pytest

from tailrace import log
from tailrace.delivery import feed, outbox
from tailrace.protocol import activity, conversations, errors, ids, records, topics
from tailrace.protocol import feed as positions
from tests.support import cases, memory_log, waiting

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
        self.readers = {topic: self.broker.reader(topic, wait_ms=10) for topic in positions.TOPICS}
        self.offsets, self.replays = self.broker.offsets(), self.broker.replays()
        self.feeds = feed.Feeds(self.broker.layout.tag, self.readers, self.offsets, self.replays)

    def follows(self) -> list[bool]:
        """Of each topic, whether its tail follows the partition."""
        return [reader.follows(P) for reader in self.readers.values()]

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


def test_so_many_notices_are_remembered_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "MAX_NOTICES", 3)
    of = feed.Subscription(ALICE, bytes(4), (0, 0), lambda _: None, None)
    of.begin((0, 0))
    for offset, rid in enumerate(("r1", "r2", "r3", "r1", "r4", "r2", "r1")):
        notice = activity.encode(activity.Ended(rid, ALICE, "m", "completed"))
        of.add(1, log.Record(topics.ACTIVITY, P, offset, 0, rid.encode(), notice, ()))
    told = [json.loads(e.body).get("response_id") for e in of.pending()]
    assert told == [None, "r1", "r2", "r3", "r4", "r1"], "r1 was forgotten for r4"


async def test_everything_behind_a_position_comes_once_also_while_more_is_written(
    world: World,
) -> None:
    first = world.feeds.watch(ALICE, None)
    [ready] = await taken(first, 1)
    first.close()
    for n in range(3_000):
        world.title(str(n))
    again = world.feeds.watch(ALICE, positions.parse_position(ready["position"]))
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
    monkeypatch.setattr(outbox, "SLOW_AFTER_S", 0.0)
    live = world.feeds.watch(ALICE, None)
    [ready] = await taken(live, 1)
    for n in range(400):
        world.title(str(n))
    behind = world.feeds.watch(ALICE, positions.parse_position(ready["position"]))
    end = world.broker.partition(topics.CONVERSATIONS, P).end
    await waiting.eventually(
        lambda: live.position.offsets[0] == end, "the tail has read all", within_s=5
    )
    with pytest.raises(outbox.Slow):
        live.pending()
    await waiting.eventually(lambda: behind.full, "the other has read", within_s=5)
    held = behind.pending()
    assert sum(len(event.body) for event in held) < 10_000, "it waits for its reader"
    found = [json.loads(event.body) for event in held] + await taken(behind, 401 - len(held))
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
    at = positions.parse_position(ready["position"])
    stuck, other = world.feeds.watch(ALICE, at), world.feeds.watch(OTHER, at)
    assert [e["type"] for e in await taken(other, 2)] == ["conversation.updated", "feed.ready"]
    found = await taken(stuck, 101)
    assert [e["title"] for e in found if "title" in e] == [str(n) for n in range(100)]
    stuck.close()
    other.close()


async def test_a_partition_is_followed_while_somebody_needs_it(world: World) -> None:
    one, two = world.feeds.watch(ALICE, None), world.feeds.watch(OTHER, None)
    await taken(one, 1)
    await taken(two, 1)
    one.close()
    one.close()
    assert all(world.follows())
    two.close()
    assert not any(world.follows())
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


@cases.each("text", ["", "1-2-3", "0000000g-1-1", "00000000-1-", "00000000--1-1", "x"])
def test_what_is_no_position_is_none(text: str) -> None:
    with pytest.raises(positions.InvalidPosition):
        positions.parse_position(text)


def test_a_position_is_read_as_it_was_written() -> None:
    at = positions.Position(b"\x01\xff\x00\x10", (3, 2**40))
    assert positions.parse_position(str(at)) == at


@cases.each(("after_s", "slow"), [(outbox.SLOW_AFTER_S, False), (outbox.SLOW_AFTER_S + 0.1, True)])
def test_who_is_slow_is_so_for_a_time(after_s: float, slow: bool) -> None:
    """What one fetch brings says nothing about the reader, nor does what came while it read."""
    now = [0.0]
    of = feed.Subscription(ALICE, bytes(4), (0, 0), lambda _: None, None, lambda: now[0])
    of.begin((0, 0))
    for n in range(3_000):
        of.add(0, titled(n, "x" * 500))
    assert len(of.pending()) == feed.BATCH
    now[0] = outbox.SLOW_AFTER_S
    of.add(0, titled(3_000))
    of.pending()
    now[0] += after_s  # since it took something
    of.add(0, titled(3_001))
    with pytest.raises(outbox.Slow) if slow else contextlib.nullcontext():
        of.pending()


def titled(offset: int, text: str = "t", by: records.Owner = ALICE) -> log.Record:
    act = conversations.Changed(C, by, title=text)
    value = conversations.encode(act)
    key = conversations.key(act).encode()
    return log.Record(topics.CONVERSATIONS, P, offset, 0, key, value, ())


async def test_the_end_is_final(world: World) -> None:
    """A worker that stalled tells late that it began."""
    mine = world.feeds.watch(ALICE, None)
    await taken(mine, 1)
    world.ended("r1")
    started = activity.Started("r1", ALICE, "m", 1)
    world.broker.put(topics.ACTIVITY, P, b"r1", activity.encode(started))
    world.ended("r2")
    assert [(e["type"], e["response_id"]) for e in await taken(mine, 2)] == [
        ("response.ended", "r1"),
        ("response.ended", "r2"),
    ]
    mine.close()


async def test_a_position_that_this_process_has_not_reached_is_no_loss(world: World) -> None:
    """Another process told it, whose tail was faster."""
    first = world.feeds.watch(ALICE, None)
    [ready] = await taken(first, 1)
    end = world.broker.partition(topics.CONVERSATIONS, P).end
    world.broker.lag(topics.CONVERSATIONS, P, end)
    world.title("told elsewhere")
    log_tag, offsets = positions.parse_position(ready["position"])
    ahead = positions.Position(log_tag, (offsets[0] + 1, offsets[1]))
    mine = world.feeds.watch(ALICE, ahead)
    assert [e["type"] for e in await taken(mine, 1)] == ["feed.ready"]
    world.broker.catch_up(topics.CONVERSATIONS, P)
    world.title("new")
    assert [e["title"] for e in await taken(mine, 1)] == ["new"], "and nothing twice"
    beyond = positions.Position(log_tag, (offsets[0] + 9, offsets[1]))
    lost = world.feeds.watch(ALICE, beyond)
    assert [e["type"] for e in await taken(lost, 1)] == ["feed.reset"]


async def test_a_feed_that_cannot_go_on_says_so(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = world.feeds.watch(ALICE, None)
    [ready] = await taken(first, 1)
    first.close()
    world.title("a")

    def broken(*_: Any) -> Any:
        raise RuntimeError("a defect")

    monkeypatch.setattr(world.replays, "read", broken)
    woken: list[bool] = []
    mine = world.feeds.watch(
        ALICE, positions.parse_position(ready["position"]), lambda: woken.append(True)
    )
    with pytest.raises(RuntimeError, match="a defect"):
        await taken(mine, 1)
    assert woken
    mine.close()


async def test_feeds_of_one_owner_share_what_they_are_told(world: World) -> None:
    many = [world.feeds.watch(ALICE, None) for _ in range(5)]
    theirs = world.feeds.watch(OTHER, None)
    for each in (*many, theirs):
        await taken(each, 1)
    world.title("shared")
    world.ended("r1", OTHER)
    told = [(await each.next_events())[0] for each in many]
    assert len({id(event) for event in told}) == 1
    assert json.loads(told[0].body)["title"] == "shared"
    assert (await taken(theirs, 1))[0]["response_id"] == "r1"


async def test_an_owner_has_so_many_feeds_and_no_more(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "MOST", 3)
    many = [world.feeds.watch(ALICE, None) for _ in range(3)]
    with pytest.raises(errors.ApiError) as error:
        world.feeds.watch(ALICE, None)
    assert (error.value.status, error.value.code) == (429, "rate_limit_exceeded")
    world.feeds.watch(OTHER, None).close()
    many[0].close()
    many[0].close()  # which gives one place back, not two
    world.feeds.watch(ALICE, None)
    with pytest.raises(errors.ApiError):
        world.feeds.watch(ALICE, None)


async def test_who_is_told_nothing_for_long_learns_how_far_it_is(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "QUIET", 10)
    mine = world.feeds.watch(ALICE, None)
    [ready] = await taken(mine, 1)
    for n in range(25):
        world.title(str(n), OTHER)
    [moved] = await taken(mine, 1)
    assert moved["type"] == "feed.position"
    before, after = (positions.parse_position(e["position"]).offsets[0] for e in (ready, moved))
    assert after >= before + 10
    mine.close()
    world.title("mine")
    again = world.feeds.watch(ALICE, positions.parse_position(moved["position"]))
    assert (await taken(again, 1))[0]["title"] == "mine"


async def test_nothing_is_followed_for_a_feed_that_was_closed_meanwhile(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the log is asked where it ends, after the tail was cut."""
    mine = world.feeds.watch(ALICE, None)
    await taken(mine, 1)
    asked, answer = asyncio.Event(), asyncio.Event()
    real = world.offsets.ends

    async def slow(topic: str, partitions: Iterable[int]) -> dict[int, int]:
        asked.set()
        await answer.wait()
        return await real(topic, partitions)

    monkeypatch.setattr(world.offsets, "ends", slow)
    for n in range(3):
        world.ended(f"x{n}", OTHER)
    end = world.broker.partition(topics.ACTIVITY, P).end
    world.readers[topics.ACTIVITY].follow(P, 0)
    world.broker.delete_below(topics.ACTIVITY, P, end)
    async with asyncio.timeout(5):
        await asked.wait()
    mine.close()
    answer.set()
    await asyncio.sleep(0.1)
    assert not any(world.follows())


def test_forged_records_and_records_of_nobody_are_passed_over() -> None:
    of = feed.Subscription(ALICE, bytes(4), (0, 0), lambda _: None, None)
    of.begin((0, 0))
    of.pending()
    of.add(0, titled(0)._replace(forgery="unsigned"))
    of.add(0, titled(1)._replace(value=None))
    of.add(0, titled(2)._replace(value=b"{"))
    assert not of.ready
    of.add(0, titled(3))
    of.add(0, titled(3))
    of.add(0, titled(2))
    assert [json.loads(e.body)["position"] for e in of.pending()] == ["00000000-4-0"]
