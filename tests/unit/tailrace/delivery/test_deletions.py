"""A deletion holds on every instance, and before an instance is ready."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from tailrace import log
from tailrace.delivery import deletions, delivery
from tailrace.protocol import events, ids, records, topics
from tests.support import log_contract, memory_delivery, memory_log
from tests.support.waiting import eventually

OWNER = records.Owner("https://tests", "alice")
REQUESTS = topics.requests("default", "interactive")


@pytest.fixture
def broker() -> memory_log.MemoryLog:
    return memory_log.MemoryLog("one", 1)


def put_request(broker: memory_log.MemoryLog, at: int = 0) -> str:
    address = ids.Address(broker.layout.tag, 0, at)
    rid = ids.mint(address, b"x" * ids.RANDOM_BYTES)
    request = records.Request(rid, OWNER, "m", [], records.Sampling(1), events.echo(rid, 1, "m"))
    broker.put_record(REQUESTS, 0, request, rid)
    return rid


async def test_what_was_deleted_before_the_start_is_not_found_once_the_instance_is_ready(
    broker: memory_log.MemoryLog,
) -> None:
    rid = put_request(broker)
    broker.put_record(topics.DELETIONS, 0, records.Deleted(rid, OWNER), rid)
    broker.lag(topics.DELETIONS, 0, 0)
    clients = memory_delivery.clients(broker)
    made = memory_delivery.over(broker, using=clients)
    async with memory_delivery.running(made, ready=False):
        await log_contract.until(lambda: clients.deletions.follows(0), 5)
        await clients.deletions.poll()
        assert not made.ready
        broker.catch_up(topics.DELETIONS, 0)
        await log_contract.until(lambda: made.ready, 5)
        with pytest.raises(delivery.NotFound):
            await made.find(rid, OWNER)


async def test_a_deletion_elsewhere_holds_when_its_record_is_read(
    broker: memory_log.MemoryLog,
) -> None:
    rid = put_request(broker)
    async with memory_delivery.running(memory_delivery.over(broker)) as made:
        assert (await made.find(rid, OWNER)).response["id"] == rid
        broker.put_record(topics.DELETIONS, 0, records.Deleted(rid, OWNER), rid)

        async def hidden() -> bool:
            try:
                await made.find(rid, OWNER)
            except delivery.NotFound:
                return True
            return False

        await eventually(hidden, "the deletion holds", within_s=5)


async def test_a_deletion_by_another_principal_or_under_another_key_deletes_nothing(
    broker: memory_log.MemoryLog,
) -> None:
    """It was obeyed, so that any writer of the log could delete any response."""
    rid, other = put_request(broker), put_request(broker, 1)
    stranger = records.Owner("https://tests", "mallory")
    broker.put_record(topics.DELETIONS, 0, records.Deleted(rid, stranger), rid)
    broker.put_record(topics.DELETIONS, 0, records.Deleted(rid, OWNER), other)
    async with memory_delivery.running(memory_delivery.over(broker)) as made:
        assert (await made.find(rid, OWNER)).response["id"] == rid
        with pytest.raises(delivery.NotFound):
            await made.find(rid, stranger)


async def test_a_deletion_appended_here_holds_at_once(broker: memory_log.MemoryLog) -> None:
    rid = put_request(broker)
    async with memory_delivery.running(memory_delivery.over(broker)) as made:
        made.deleted(rid, OWNER)
        with pytest.raises(delivery.NotFound):
            await made.find(rid, OWNER)


async def test_a_position_that_compaction_removed_is_read_on_from_the_beginning(
    broker: memory_log.MemoryLog,
) -> None:
    rid = put_request(broker)
    broker.lag(topics.DELETIONS, 0, 0)
    broker.put_record(topics.DELETIONS, 0, records.Deleted("resp_other", OWNER), "other")
    clients = memory_delivery.clients(broker)
    made = memory_delivery.over(broker, using=clients)
    async with memory_delivery.running(made, ready=False):
        await log_contract.until(lambda: clients.deletions.follows(0), 5)
        broker.delete_below(topics.DELETIONS, 0, 1)
        broker.put_record(topics.DELETIONS, 0, records.Deleted(rid, OWNER), rid)
        broker.catch_up(topics.DELETIONS, 0)
        await log_contract.until(lambda: made.ready, 5)
        with pytest.raises(delivery.NotFound):
            await made.find(rid, OWNER)


async def test_a_deletion_is_forgotten_when_retention_took_its_response_and_no_sooner(
    broker: memory_log.MemoryLog,
) -> None:
    """The set of deletions is bounded by what the log holds, not by how long a process lives."""
    now = 0.0
    offsets = broker.offsets()
    reader = broker.reader(topics.DELETIONS, wait_ms=5)
    made = deletions.Deletions(reader, offsets, lambda: now)
    old, young = put_request(broker, 0), put_request(broker, 5)
    nowhere = ids.mint(ids.Address(broker.layout.tag, 700, 0), b"z" * ids.RANDOM_BYTES)
    for rid in (old, young, nowhere, "resp_garbage"):
        broker.put_record(topics.DELETIONS, 0, records.Deleted(rid, OWNER), rid)
    task = asyncio.create_task(made.run())
    try:
        await eventually(lambda: made.ready and len(made) == 2, "both are known", within_s=5)
        assert made.deleted_by(old, OWNER)
        assert made.deleted_by(young, OWNER)
        broker.skip_to(topics.TOKENS, 0, 5)
        broker.delete_below(topics.TOKENS, 0, 5)
        now += deletions.FORGET_EVERY_S
        await eventually(
            lambda: not made.deleted_by(old, OWNER), "the old one is forgotten", within_s=5
        )
        assert made.deleted_by(young, OWNER)
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_where_responses_outlive_the_log_a_deletion_is_known_for_as_long_as_its_record(
    broker: memory_log.MemoryLog,
) -> None:
    """The archive may be behind. The record itself is gone after that time, from the topic too."""
    now = 0.0
    reader = broker.reader(topics.DELETIONS, wait_ms=5)
    made = deletions.Deletions(reader, broker.offsets(), lambda: now, has_archive=True)
    rid = put_request(broker, 0)
    broker.put_record(topics.DELETIONS, 0, records.Deleted(rid, OWNER), rid)
    broker.skip_to(topics.TOKENS, 0, 5)
    broker.delete_below(topics.TOKENS, 0, 5)
    task = asyncio.create_task(made.run())
    try:
        await eventually(lambda: made.ready, "the topic is read", within_s=5)
        now = topics.DELETION_MS / 1000 - 1
        later = put_request(broker, 1)
        broker.put_record(topics.DELETIONS, 0, records.Deleted(later, OWNER), later)
        await eventually(lambda: made.deleted_by(later, OWNER), "the next one is known", within_s=5)
        await asyncio.sleep(0.05)  # some polls, each of which looks
        assert made.deleted_by(rid, OWNER)
        now += deletions.FORGET_EVERY_S
        await eventually(lambda: not made.deleted_by(rid, OWNER), "it is forgotten", within_s=5)
        assert made.deleted_by(later, OWNER)
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_without_a_deletion_that_was_forgotten_the_answer_is_that_the_history_is_lost(
    broker: memory_log.MemoryLog,
) -> None:
    rid = put_request(broker)
    broker.put_record(topics.DELETIONS, 0, records.Deleted(rid, OWNER), rid)
    broker.skip_to(topics.TOKENS, 0, 5)
    broker.delete_below(topics.TOKENS, 0, 5)
    async with memory_delivery.running(memory_delivery.over(broker)) as made:

        async def lost() -> bool:
            try:
                await made.find(rid, OWNER)
            except log.HistoryLost:
                return True
            except delivery.NotFound:
                return False
            return False

        await eventually(lost, "the history is lost", within_s=5)
