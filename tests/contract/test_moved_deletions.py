"""Deletions of version 0.1 lie in `llm.conversations`: no upgrade undoes them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import aiokafka
import aiokafka.admin
import pytest
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from tailrace import log
from tailrace.cli import record_keys
from tailrace.log import moved_deletions
from tailrace.protocol import ids, record_tags, records, topics
from tests.support import waiting

ANN, BOB = records.Owner("https://tests", "ann"), records.Owner("https://tests", "bob")


def rid(n: int) -> str:
    return ids.mint(ids.Address(b"abcd", 1, n), bytes(11))


@pytest.fixture
def keys(tmp_path: Path) -> Iterator[record_tags.Keyring]:
    """Record keys, for a log that has records without tags. The process uses none afterwards."""
    made = tmp_path / "keys.json"
    record_keys.create(made, accept_untagged=True, say=lambda _: None)
    yield record_tags.parse(made.read_bytes())
    log.use_record_keys(None, None)


@pytest.fixture
async def old(bare: str) -> str:
    """Bootstrap address of a broker with the topics of the older version."""
    await log.apply_topics(bare, ["default"], partitions=2)
    await make_old_topic(bare)
    return bare


OLD = {"cleanup.policy": "compact,delete", "retention.ms": "172800000", "segment.bytes": "2000000"}


async def make_old_topic(bootstrap: str) -> None:
    """`llm.conversations` as version 0.1 had it, and a setting of its operator's."""
    admin = aiokafka.admin.AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.delete_topics([topics.CONVERSATIONS])

        async def gone() -> bool:
            return topics.CONVERSATIONS not in await admin.list_topics()

        await waiting.eventually(gone, "the topic is deleted")
        new = aiokafka.admin.NewTopic(topics.CONVERSATIONS, 6, 1, topic_configs=OLD)
        answer = await admin.create_topics([new])
        assert [error[1] for error in answer.topic_errors] == [0], answer
    finally:
        await admin.close()


async def settings_of(bootstrap: str) -> dict[str, str]:
    admin = aiokafka.admin.AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        resource = ConfigResource(ConfigResourceType.TOPIC, topics.CONVERSATIONS)
        [answer] = await admin.describe_configs([resource])
        return {entry[0]: entry[1] for entry in answer.resources[0][4]}
    finally:
        await admin.close()


async def remove_topic(bootstrap: str) -> None:
    admin = aiokafka.admin.AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.delete_topics([topics.DELETIONS])

        async def gone() -> bool:
            return topics.DELETIONS not in await admin.list_topics()

        await waiting.eventually(gone, "the topic is deleted")
    finally:
        await admin.close()


async def write_as_before(
    bootstrap: str, *written: tuple[str, bytes | None], age_ms: int = 0
) -> None:
    """(key, value) pairs into `llm.conversations`, as gateways of version 0.1 wrote them."""
    producer = aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap)
    await producer.start()
    try:
        for key, value in written:
            await producer.send_and_wait(
                topics.CONVERSATIONS,
                key=key.encode(),
                value=value,
                partition=topics.partition_of(topics.CONVERSATIONS, key),
                timestamp_ms=int(time.time() * 1000) - age_ms,
            )
    finally:
        await producer.stop()


async def deletions(bootstrap: str) -> list[records.Deleted | None]:
    """All records of `llm.deletions`; each lies in the partition of its key."""
    asking, replays = log.Offsets(bootstrap), log.Replays(bootstrap, size=1)
    found = []
    try:
        partitions = range(await asking.partitions(topics.DELETIONS))
        begins = await asking.beginnings(topics.DELETIONS, partitions)
        ends = await asking.ends(topics.DELETIONS, partitions)
        for p in partitions:
            async for batch in replays.read(topics.DELETIONS, p, begins[p], ends[p]):
                for r in batch:
                    assert r.key is not None
                    assert topics.partition_of(topics.DELETIONS, r.key.decode()) == p
                    found.append(records.deletion_of(r.key, r.value))
    finally:
        await asking.stop()
        await replays.stop()
    return sorted(found, key=lambda each: (each is not None, each and (each.rid, each.by.key)))


def pair(deleted: records.Deleted) -> tuple[str, bytes]:
    return deleted.rid, records.encode(deleted)


@pytest.mark.timeout(180)
async def test_an_upgrade_undoes_no_deletion(
    old: str, keys: record_tags.Keyring, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = old
    monkeypatch.setattr(moved_deletions, "_BATCH", 3)
    await remove_topic(at)
    # Its response is gone for long. It lies below newer ones, as time goes.
    await write_as_before(at, pair(records.Deleted(rid(93), ANN)), age_ms=topics.DELETION_MS)
    before = [records.Deleted(rid(n), ANN) for n in range(20)]
    await write_as_before(at, *map(pair, before), pair(before[0]))
    await write_as_before(
        at,
        ("x", b"{"),
        (rid(90), None),
        (rid(91), records.encode(records.Deleted(rid(92), ANN))),  # of another key
    )

    assert await log.apply_topics(at, ["default"]) == [topics.DELETIONS]
    kept = await settings_of(at)
    assert kept["cleanup.policy"] == "compact"
    assert kept["retention.ms"] != OLD["retention.ms"]
    assert kept["message.timestamp.type"] == "LogAppendTime"
    assert kept["segment.bytes"] == OLD["segment.bytes"], "an operator's"
    assert await deletions(at) == sorted(before, key=lambda each: each.rid)

    assert await log.apply_topics(at, ["default"]) == []
    assert len(await deletions(at)) == 20, "what is there is not copied again"

    # A gateway that was not upgraded yet writes on, and the topic is there already.
    late = [records.Deleted(rid(50), ANN), records.Deleted(rid(3), BOB)]
    await write_as_before(at, *map(pair, late))
    log.use_record_keys(keys, "operator")
    await log.apply_topics(at, ["default"])
    everything = sorted([*before, *late], key=lambda each: (each.rid, each.by.key))
    assert await deletions(at) == everything

    # The copies are signed: they still count when records without a tag no longer do.
    keys.accepts_untagged = False
    read = [each for each in await deletions(at) if each is not None]
    assert sorted(read, key=lambda each: each.rid) == sorted(late, key=lambda each: each.rid)
