"""Record keys on a real broker: what is signed, what readers see, and how a log gets its keys."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import aiokafka
import msgspec
import pytest

from tailrace import log, telemetry
from tailrace.cli import record_keys
from tailrace.protocol import record_tags, records, topics
from tests.support import log_contract, waiting

OWNER = records.Owner("https://tests", "ann")
CANCEL = records.encode(records.Cancel("resp_1", OWNER))


@pytest.fixture
def keys(tmp_path: Path) -> Iterator[Path]:
    """A file of record keys. The process uses none afterwards."""
    made = tmp_path / "keys.json"
    record_keys.create(made, accept_untagged=False, say=lambda _: None)
    yield made
    log.use_record_keys(None, None)


def use(file: Path, role: record_tags.Role, *, accept_untagged: bool = False) -> None:
    text = file.read_bytes()
    if accept_untagged:
        text = text.replace(b'"refused"', b'"accepted"')
    log.use_record_keys(record_tags.parse(text), role)


async def read(
    bootstrap: str, topic: str, partition: int, start: int, end: int
) -> list[log.Record]:
    replays = log.Replays(bootstrap, size=1)
    try:
        return [r async for batch in replays.read(topic, partition, start, end) for r in batch]
    finally:
        await replays.stop()


async def test_every_reader_sees_signed_records_and_no_forged_one(kafka: str, keys: Path) -> None:
    use(keys, "gateway")
    counted = telemetry.FORGED_RECORDS.labels(reason="no tag")._value
    before = counted.get()
    reader = log.Reader(kafka, topics.TOKENS, wait_ms=20)
    producer = aiokafka.AIOKafkaProducer(bootstrap_servers=kafka)
    await producer.start()
    try:
        async with log_contract.running(log.Writer(kafka)) as writer:
            first = await writer.append(
                topics.TOKENS, 5, "resp_1", CANCEL, [("traceparent", b"00-1")]
            )
            forged = await producer.send_and_wait(
                topics.TOKENS, key=b"resp_1", value=CANCEL, partition=5
            )
            last = await writer.append(topics.TOKENS, 5, "resp_1", CANCEL)
        reader.follow(5, first.offset)
        found: list[log.Record] = []
        while len(found) < 3:
            found += await reader.poll()
    finally:
        await producer.stop()
        await reader.stop()
    assert [(r.offset, r.value, r.forgery) for r in found] == [
        (first.offset, CANCEL, ""),
        (forged.offset, None, "no tag"),
        (last.offset, CANCEL, ""),
    ]
    assert found[0].headers[0] == ("traceparent", b"00-1")
    again = await read(kafka, topics.TOKENS, 5, first.offset, last.offset + 1)
    assert [r.forgery for r in again] == ["", "no tag", ""]
    assert counted.get() - before == 2

    log.use_record_keys(None, None)
    plain = await read(kafka, topics.TOKENS, 5, first.offset, last.offset + 1)
    assert [r.value for r in plain] == [CANCEL] * 3, "without keys tags are not looked at"


async def test_a_worker_gets_no_forged_request(kafka: str, keys: Path) -> None:
    """The member of a group reads like the others."""
    use(keys, "gateway")
    topic, group = topics.requests("default", "batch"), log_contract.unique("group")
    async with log_contract.running(log.Writer(kafka)) as writer:
        signed = await writer.append(topic, 1, "resp_1", b"{}")
        log.use_record_keys(None, None)
        forged = await writer.append(topic, 1, "resp_1", b"{}")
    use(keys, "worker")

    async def nothing(_: set[tuple[str, int]]) -> None: ...

    member = log.GroupConsumer(
        kafka,
        group,
        [topic],
        session_timeout_ms=6000,
        assigned=nothing,
        revoked=nothing,
        client_id=group,
    )
    await member.start()
    seen: dict[int, str] = {}

    async def both() -> bool:
        for r in await member.poll(100):
            if r.partition == 1:
                seen[r.offset] = r.forgery
        return signed.offset in seen and forged.offset in seen

    try:
        await waiting.eventually(both, "the member has read both", within_s=60.0)
    finally:
        await member.stop()
    assert seen[signed.offset] == ""
    assert seen[forged.offset] == "no tag"


@pytest.mark.timeout(180)
async def test_a_log_from_before_gets_keys_and_keeps_its_name_and_its_revocations(
    keys: Path, bare: str
) -> None:
    at = bare
    await log.apply_topics(at, ["default"], partitions=2)
    before = await log.layout(at)
    gone = records.Revoked("0123456789abcdef", "https://tests", 2**40, subject="mallory")
    async with log_contract.running(log.Writer(at)) as writer:
        await writer.append(topics.REVOCATIONS, 0, gone.id, records.encode(gone))

    use(keys, "operator")
    for asked in (log.layout(at), log.apply_topics(at, ["default"])):
        with pytest.raises(log.LogUnavailable, match="untagged"):
            await asked

    use(keys, "operator", accept_untagged=True)
    assert await log.layout(at) == before
    await log.apply_topics(at, ["default"])
    use(keys, "operator")
    assert await log.layout(at) == before
    assert await revoked(at) == [None, gone]
    await log.apply_topics(at, ["default"])
    assert len(await revoked(at)) == 2, "what is signed is not signed again"

    record_keys.rotate(keys, -1.0, lambda _: None)
    use(keys, "operator")
    await log.apply_topics(at, ["default"])
    assert await revoked(at) == [None, gone, gone], "the newest key signs what is kept"
    drop_oldest(keys)
    use(keys, "operator")
    assert await log.layout(at) == before
    assert await revoked(at) == [None, None, gone]


async def revoked(bootstrap: str) -> list[records.Revoked | None]:
    offsets = log.Offsets(bootstrap)
    try:
        end = (await offsets.ends(topics.REVOCATIONS, [0]))[0]
    finally:
        await offsets.stop()
    found = await read(bootstrap, topics.REVOCATIONS, 0, 0, end)
    return [records.revocation_of(r.key, r.value) for r in found]


def drop_oldest(file: Path) -> None:
    """The keys that were made first are no longer in the file."""
    found = msgspec.json.decode(file.read_bytes(), type=record_tags.KeyFile)
    kept = found.keys[len(record_tags.ROLES) :]
    file.write_bytes(msgspec.json.encode(msgspec.structs.replace(found, keys=kept)))
