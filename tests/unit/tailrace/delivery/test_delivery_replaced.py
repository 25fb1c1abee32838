"""An instance without streams follows no partition. It did not notice that the log was replaced,
and called every new response lost."""

from __future__ import annotations

import asyncio

import pytest

from tailrace import log
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
