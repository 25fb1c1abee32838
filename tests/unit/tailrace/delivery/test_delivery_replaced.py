"""An instance without streams follows no partition. It did not notice that the log was replaced,
and called every new response lost."""

from __future__ import annotations

import asyncio

import pytest

from tailrace import log
from tailrace.delivery import whole_topic
from tailrace.log import identity
from tailrace.protocol import ids, records, topics
from tests.support import log_contract, memory_delivery, memory_log

OWNER = records.Owner("https://tests", "alice")


def of_log(name: str) -> str:
    return ids.mint(ids.Address(ids.incarnation_tag(name), 0, 0), b"x" * 11)


async def test_when_the_log_was_replaced_a_new_id_is_no_lost_one_and_the_process_ends() -> None:
    broker = memory_log.MemoryLog("one", 1)
    made = memory_delivery.over(broker)
    running = asyncio.create_task(made.run())
    broker.replace("two")
    with pytest.raises(log.LogUnavailable):
        await made.find(of_log("two"), OWNER)
    with pytest.raises(ExceptionGroup) as ended:
        await asyncio.wait_for(running, 5)
    assert ended.value.subgroup(log.LogChanged)


async def test_an_old_logs_responses_are_lost_and_which_log_it_is_is_asked_once_a_while() -> None:
    broker = memory_log.MemoryLog("one", 1)
    now = 1000.0
    made = memory_delivery.over(broker, clock=lambda: now)
    for _ in range(3):
        with pytest.raises(log.HistoryLost):
            await made.find(of_log("zero"), OWNER)
    assert broker.layout_reads == 1
    now += identity.TRUST_S
    with pytest.raises(log.HistoryLost):
        await made.find(of_log("zero"), OWNER)
    assert broker.layout_reads == 2


async def test_a_tail_whose_log_was_replaced_ends_the_process() -> None:
    broker = memory_log.MemoryLog("one", 1)
    broker.put(topics.TOKENS, 0, b"k", b"{}")
    made = memory_delivery.over(broker, preferred=[0])
    running = asyncio.create_task(made.run())
    await log_contract.until(lambda: made.ready, 5)
    broker.replace("two")  # its end lies below the tail's position
    with pytest.raises(ExceptionGroup) as ended:
        await asyncio.wait_for(running, 5)
    assert ended.value.subgroup(log.LogChanged)


async def test_a_tail_whose_log_was_rolled_back_ends_the_process() -> None:
    """Symptom: what was created then was called lost, and what was remembered of records that are
    gone was believed."""
    broker = memory_log.MemoryLog("one", 1)
    for _ in range(3):
        broker.put(topics.TOKENS, 0, b"k", b"{}")
    made = memory_delivery.over(broker, preferred=[0])
    running = asyncio.create_task(made.run())
    await log_contract.until(lambda: made.ready, 5)
    broker.roll_back(topics.TOKENS, 0, 1)
    with pytest.raises(ExceptionGroup) as ended:
        await asyncio.wait_for(running, 5)
    assert ended.value.subgroup(log.LogChanged)


async def test_a_topic_that_is_known_whole_and_was_rolled_back_ends_the_process() -> None:
    """Symptom: it was asked in a loop for what is above its end, and nothing new was read."""
    broker = memory_log.MemoryLog("one", 1)
    for _ in range(3):
        broker.put(topics.REVOCATIONS, 0, b"k", b"{}")
    read: list[log.Record] = []

    async def take(batch: list[log.Record]) -> None:
        read.extend(batch)

    reader, offsets = broker.reader(topics.REVOCATIONS, wait_ms=5), broker.offsets()
    whole = whole_topic.WholeTopic(topics.REVOCATIONS, reader, offsets, take)
    running = asyncio.create_task(whole.run())
    await log_contract.until(lambda: len(read) == 3, 5)
    broker.delete_below(topics.REVOCATIONS, 0, 3)  # retention alone is none
    broker.put(topics.REVOCATIONS, 0, b"k", b"{}")
    await log_contract.until(lambda: len(read) == 4, 5)
    broker.roll_back(topics.REVOCATIONS, 0, 3)
    with pytest.raises(log.LogChanged):
        await asyncio.wait_for(running, 5)


async def test_a_stored_position_above_the_end_is_none() -> None:
    """Of a fold that a database keeps (passages of files): the log was rolled back meanwhile."""
    broker = memory_log.MemoryLog("one", 2)
    for partition in (0, 1):
        for _ in range(3):
            broker.put(topics.DELETIONS, partition, b"k", b"{}")
    read: list[tuple[int, int]] = []

    async def take(batch: list[log.Record]) -> None:
        read.extend((r.partition, r.offset) for r in batch)

    reader, offsets = broker.reader(topics.DELETIONS, wait_ms=5), broker.offsets()
    whole = whole_topic.WholeTopic(topics.DELETIONS, reader, offsets, take)
    running = asyncio.create_task(whole.run({0: 2, 1: 5}))
    await log_contract.until(lambda: whole.ready, 5)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert sorted(read) == [(0, 2), (1, 0), (1, 1), (1, 2)]
