"""A deletion holds on every instance, and before an instance is ready."""

from __future__ import annotations

import pytest

from tailrace.delivery import delivery
from tailrace.protocol import events, ids, records, topics
from tests.support import log_contract, memory_delivery, memory_log
from tests.support.waiting import eventually

OWNER = records.Owner("https://tests", "alice")
REQUESTS = topics.requests("default", "interactive")


@pytest.fixture
def broker() -> memory_log.MemoryLog:
    return memory_log.MemoryLog("one", 1)


def put_request(broker: memory_log.MemoryLog) -> str:
    rid = ids.mint(ids.Address(broker.layout.tag, 0, 0), b"x" * ids.RANDOM_BYTES)
    request = records.Request(rid, OWNER, "m", [], records.Sampling(1), events.echo(rid, 1, "m"))
    broker.put_record(REQUESTS, 0, request, rid)
    return rid


async def test_what_was_deleted_before_the_start_is_not_found_once_the_instance_is_ready(
    broker: memory_log.MemoryLog,
) -> None:
    rid = put_request(broker)
    broker.put_record(topics.CONVERSATIONS, 0, records.Deleted(rid, OWNER), rid)
    broker.lag(topics.CONVERSATIONS, 0, 0)
    clients = memory_delivery.clients(broker)
    made = memory_delivery.over(broker, using=clients)
    async with memory_delivery.running(made, ready=False):
        await log_contract.until(lambda: clients.conversations.follows(0), 5)
        await clients.conversations.poll()
        assert not made.ready
        broker.catch_up(topics.CONVERSATIONS, 0)
        await log_contract.until(lambda: made.ready, 5)
        with pytest.raises(delivery.NotFound):
            await made.find(rid, OWNER)


async def test_a_deletion_elsewhere_holds_when_its_record_is_read(
    broker: memory_log.MemoryLog,
) -> None:
    rid = put_request(broker)
    async with memory_delivery.running(memory_delivery.over(broker)) as made:
        assert (await made.find(rid, OWNER)).response["id"] == rid
        broker.put_record(topics.CONVERSATIONS, 0, records.Deleted(rid, OWNER), rid)

        async def hidden() -> bool:
            try:
                await made.find(rid, OWNER)
            except delivery.NotFound:
                return True
            return False

        await eventually(hidden, "the deletion holds", within_s=5)


async def test_a_deletion_appended_here_holds_at_once(broker: memory_log.MemoryLog) -> None:
    rid = put_request(broker)
    async with memory_delivery.running(memory_delivery.over(broker)) as made:
        made.deleted(rid)
        with pytest.raises(delivery.NotFound):
            await made.find(rid, OWNER)


async def test_a_position_that_compaction_removed_is_read_on_from_the_beginning(
    broker: memory_log.MemoryLog,
) -> None:
    rid = put_request(broker)
    broker.lag(topics.CONVERSATIONS, 0, 0)
    broker.put_record(topics.CONVERSATIONS, 0, records.Deleted("resp_other", OWNER), "other")
    clients = memory_delivery.clients(broker)
    made = memory_delivery.over(broker, using=clients)
    async with memory_delivery.running(made, ready=False):
        await log_contract.until(lambda: clients.conversations.follows(0), 5)
        broker.delete_below(topics.CONVERSATIONS, 0, 1)
        broker.put_record(topics.CONVERSATIONS, 0, records.Deleted(rid, OWNER), rid)
        broker.catch_up(topics.CONVERSATIONS, 0)
        await log_contract.until(lambda: made.ready, 5)
        with pytest.raises(delivery.NotFound):
            await made.find(rid, OWNER)
