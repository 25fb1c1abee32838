"""Look-ups beside a tail that is behind. Each was found in a fault run.

On an instance whose tail was behind, a response that another instance had just acknowledged was
answered 404. On one that had just started, a stream looked up before the tail had its preferred
partitions stood still: the tail began again further on, and what lay between was missing.
"""

from __future__ import annotations

import asyncio

import pytest

from tailrace import log
from tailrace.delivery import delivery
from tailrace.protocol import events, ids, records, topics
from tests.support import log_contract, memory_delivery, memory_log

TAG = ids.incarnation_tag("one")
OWNER = records.Owner("https://tests", "alice")
REQUESTS = topics.requests("default", "interactive")


@pytest.fixture
def broker() -> memory_log.MemoryLog:
    return memory_log.MemoryLog("one", 1)


def request(rid: str) -> records.Request:
    return records.Request(
        rid, OWNER, "m", [], records.Sampling(1), events.echo(rid, 1, "m", background=True)
    )


def minted_at(offset: int) -> str:
    return ids.mint(ids.Address(TAG, 0, offset), b"x" * 11)


def claim(asked: records.Request) -> records.Claim:
    return records.Claim(
        asked.rid, "a" * 32, None, OWNER, "w/1", REQUESTS, 0, "r", "t", 0, asked.echo
    )


def put_others(broker: memory_log.MemoryLog, count: int) -> None:
    """Records of another response."""
    other = records.Cancel(ids.mint(ids.Address(TAG, 0, 0), b"y" * 11), OWNER)
    for _ in range(count):
        broker.put_record(topics.TOKENS, 0, other, other.rid)


async def test_a_response_minted_beyond_our_tail_is_found_by_its_request(
    broker: memory_log.MemoryLog,
) -> None:
    broker.lag(topics.TOKENS, 0, 2)
    async with memory_delivery.running(memory_delivery.over(broker, preferred=[0])) as made:
        put_others(broker, 5)
        asked = request(minted_at(5))
        broker.put_record(REQUESTS, 0, asked, asked.rid)
        assert (await made.find(asked.rid, OWNER)).response["status"] == "queued"


async def test_an_id_beyond_the_end_of_the_log_is_lost_although_the_tail_is_behind(
    broker: memory_log.MemoryLog,
) -> None:
    """A log that was rolled back ends below it."""
    broker.lag(topics.TOKENS, 0, 2)
    async with memory_delivery.running(memory_delivery.over(broker, preferred=[0])) as made:
        put_others(broker, 5)
        with pytest.raises(log.HistoryLost):
            await asyncio.wait_for(made.find(minted_at(6), OWNER), 5)


async def test_a_response_finished_and_committed_while_our_tail_was_behind_is_found_by_the_tail(
    broker: memory_log.MemoryLog,
) -> None:
    broker.lag(topics.TOKENS, 0, 0)
    async with memory_delivery.running(memory_delivery.over(broker, preferred=[0])) as made:
        asked = request(minted_at(0))
        broker.put_record(REQUESTS, 0, asked, asked.rid)
        broker.put_record(topics.TOKENS, 0, claim(asked), asked.rid)
        broker.committed_offsets[topics.group("default")] = {(REQUESTS, 0): (1, "0")}
        looking = asyncio.create_task(made.find(asked.rid, OWNER))
        done, _ = await asyncio.wait({looking}, timeout=0.05)
        assert not done
        broker.catch_up(topics.TOKENS, 0)
        assert (await looking).response["status"] == "in_progress"


async def test_an_unknown_id_is_not_found_as_soon_as_the_tail_has_read_everything(
    broker: memory_log.MemoryLog,
) -> None:
    broker.lag(topics.TOKENS, 0, 0)
    async with memory_delivery.running(memory_delivery.over(broker, preferred=[0])) as made:
        put_others(broker, 1)
        looking = asyncio.create_task(made.find(minted_at(0), OWNER))
        done, _ = await asyncio.wait({looking}, timeout=0.05)
        assert not done
        broker.catch_up(topics.TOKENS, 0)
        with pytest.raises(delivery.NotFound):
            await looking


async def test_a_stream_opened_during_the_start_keeps_the_place_where_the_tail_began_for_it(
    broker: memory_log.MemoryLog,
) -> None:
    put_others(broker, 5)
    broker.hold_replays()  # the start is not over before its replays are connected
    made = memory_delivery.over(broker, preferred=[0])
    starting = asyncio.create_task(made.run())
    try:
        asked = request(await made.mint(0))  # the tail begins at 5 for this one
        made.open(asked, records.encode(asked))
        made.acknowledged(asked.rid)
        broker.put_record(topics.TOKENS, 0, claim(asked), asked.rid)
        put_others(broker, 3)
        broker.release_replays()
        subscription = await made.watch(asked.rid, OWNER)
        await log_contract.until(lambda: subscription.status == "in_progress", 5)
    finally:
        starting.cancel()
        await asyncio.wait({starting})
