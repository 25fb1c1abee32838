"""Transactions on a real broker: all or nothing, and one owner at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import aiokafka
import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from tailrace import log
from tailrace.log import client_api
from tailrace.log.group_offsets import GroupRuns, move
from tests.support import log_contract, waiting


@pytest.fixture
async def topic(kafka: str) -> str:
    name = log_contract.unique()
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(name, 2, 1)])
    finally:
        await admin.close()
    return name


async def committed_values(kafka: str, topic: str) -> list[bytes | None]:
    """What readers of committed records get."""
    offsets, replays = log.Offsets(kafka), log.Replays(kafka, read_committed=True)
    found: list[bytes | None] = []
    try:
        for partition, end in (await offsets.ends(topic, [0, 1])).items():
            async for batch in replays.read(topic, partition, 0, end):
                found += [record.value for record in batch]
    finally:
        await offsets.stop()
        await replays.stop()
    return sorted(found, key=lambda value: value or b"")


async def offsets_of(kafka: str, group: str) -> dict[tuple[str, int], tuple[int, str]]:
    offsets = log.Offsets(kafka)
    try:
        return await offsets.committed(group)
    finally:
        await offsets.stop()


async def committed(
    kafka: str, group: str, offsets: Mapping[tuple[str, int], tuple[int, str]]
) -> None:
    """Wait until a group has committed these: a broker answers before it has written them."""

    async def there() -> bool:
        return await offsets_of(kafka, group) == offsets

    await waiting.eventually(there, f"{group} has committed {offsets}")


def transactions(kafka: str, name: str) -> log.Transactions:
    return log.Transactions(kafka, name, client_id="tests")


async def test_records_and_offsets_are_there_together(kafka: str, topic: str) -> None:
    own, group = transactions(kafka, topic), f"group-{topic}"
    await own.start()
    try:
        for number in range(3):
            records = [
                log.Outgoing(topic, b"k", b"%d" % number, [("h", b"v")]),
                log.Outgoing(topic, None, b"%d+" % number),
            ]
            await own.commit(records, group, {(topic, 1): (number + 1, f"m{number}")})
            await committed(kafka, group, {(topic, 1): (number + 1, f"m{number}")})
    finally:
        await own.stop()
    assert await committed_values(kafka, topic) == [b"0", b"0+", b"1", b"1+", b"2", b"2+"]


async def test_a_transaction_without_records_moves_the_offset(kafka: str, topic: str) -> None:
    own, group = transactions(kafka, topic), f"group-{topic}"
    await own.start()
    try:
        await own.commit([], group, {(topic, 0): (7, "")})
    finally:
        await own.stop()
    await committed(kafka, group, {(topic, 0): (7, "")})


async def test_who_takes_over_fences_the_former_owner(kafka: str, topic: str) -> None:
    """The former one writes nothing any more: neither records nor offsets."""
    former, later, group = transactions(kafka, topic), transactions(kafka, topic), f"group-{topic}"
    await former.start()
    await former.commit([log.Outgoing(topic, None, b"first")], group, {(topic, 0): (1, "")})
    await later.start()
    try:
        with pytest.raises(log.Fenced):
            await former.commit([log.Outgoing(topic, None, b"late")], group, {(topic, 0): (9, "")})
        await later.commit([log.Outgoing(topic, None, b"second")], group, {(topic, 0): (2, "")})
    finally:
        await former.stop()
        await later.stop()
    assert await committed_values(kafka, topic) == [b"first", b"second"]
    await committed(kafka, group, {(topic, 0): (2, "")})


async def test_a_transaction_that_was_left_open_is_aborted_by_the_next_owner(
    kafka: str, topic: str
) -> None:
    dead, later, group = transactions(kafka, topic), transactions(kafka, topic), f"group-{topic}"
    await dead.start()
    producer = dead._producer
    assert producer is not None
    await producer.begin_transaction()
    await (await producer.send(topic, b"aborted"))
    offset = aiokafka.structs.OffsetAndMetadata(5, "")
    place = aiokafka.TopicPartition(topic, 0)
    await producer.send_offsets_to_transaction({place: offset}, group)
    await dead.stop()  # as a kill would leave it: nothing is committed or aborted
    await later.start()
    try:
        await later.commit([log.Outgoing(topic, None, b"good")], group, {(topic, 0): (1, "")})
    finally:
        await later.stop()
    assert await committed_values(kafka, topic) == [b"good"]
    await committed(kafka, group, {(topic, 0): (1, "")})


async def test_a_group_without_members_can_be_moved_and_one_with_members_cannot(
    kafka: str, topic: str
) -> None:
    group = f"group-{topic}"
    await move(kafka, group, {(topic, 0): (3, "x"), (topic, 1): (4, "")})
    assert await offsets_of(kafka, group) == {(topic, 0): (3, "x"), (topic, 1): (4, "")}

    async def nothing(_: set[tuple[str, int]]) -> None:
        return

    member = log.GroupConsumer(
        kafka,
        group,
        [topic],
        session_timeout_ms=6_000,
        assigned=nothing,
        revoked=nothing,
        client_id="tests",
        read_committed=True,
    )
    await member.start()
    try:
        async with asyncio.timeout(20):
            while not member._owned_partitions([(topic, 0)]):
                await member.poll(10)
        with pytest.raises(GroupRuns):
            await move(kafka, group, {(topic, 0): (0, "")})
    finally:
        await member.stop()
    assert (await offsets_of(kafka, group))[topic, 0] == (3, "x")


@pytest.mark.parametrize("sent", [False, True], ids=["begun", "offsets sent"])
async def test_offsets_that_were_moved_stay_although_a_paused_member_goes_on(
    sent: bool, kafka: str, topic: str
) -> None:
    """Its transaction was committed over a replay, which silently did not happen."""
    group, place = f"group-{topic}", aiokafka.TopicPartition(topic, 0)
    await move(kafka, group, {(topic, 0): (5, "")})
    paused = aiokafka.AIOKafkaProducer(bootstrap_servers=kafka, transactional_id=topic)
    await paused.start()
    try:
        await paused.begin_transaction()
        await (await paused.send(topic, b"of a paused member"))
        if sent:
            await paused.send_offsets_to_transaction({place: 9}, group)
        await move(kafka, group, {(topic, 0): (0, "replay")}, transactional_ids=[topic])
        going_on = (
            paused.commit_transaction()
            if sent
            else paused.send_offsets_to_transaction({place: 9}, group)
        )
        with pytest.raises(aiokafka.errors.ProducerFenced):
            await going_on
    finally:
        await client_api.default().discard_producer(paused)
    await committed(kafka, group, {(topic, 0): (0, "replay")})
    assert await committed_values(kafka, topic) == []
