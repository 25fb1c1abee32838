"""The look-up falls back on the archive where the log has a response no longer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from tailrace import log
from tailrace.archive import reader, sql_reader
from tailrace.delivery import archived, delivery
from tailrace.protocol import errors, history, ids, records, topics
from tests.support import archive_rows, memory_delivery, memory_log
from tests.support.histories import ALICE, BOB, history_of


def _old(broker: memory_log.MemoryLog, tag: bytes | None = None, number: int = 1) -> str:
    """An id below what the log holds."""
    address = ids.Address(tag or broker.layout.tag, 0, 0)
    return ids.mint(address, number.to_bytes(ids.RANDOM_BYTES, "big"))


def _named(rid: str) -> history.History:
    """A finished response with this id."""
    value = history.encode(history_of(1, "One two three.", metadata={"a": "b"}))
    found = history.decode(value.replace(history_of(1).rid.encode(), rid.encode()))
    assert found is not None
    return found


@pytest.fixture
def broker() -> memory_log.MemoryLog:
    made = memory_log.MemoryLog()
    for _ in range(3):
        made.put(topics.TOKENS, 0, b"x", b"{}")
    made.partition(topics.TOKENS, 0).begin = 2
    return made


@pytest.fixture
async def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'archive.sqlite3'}"


@pytest.fixture
async def deliver(url: str, broker: memory_log.MemoryLog) -> AsyncIterator[delivery.Delivery]:
    made = memory_delivery.over(broker, archive=reader.open_reader(url))
    async with memory_delivery.running(made):
        yield made


async def _all(made: delivery.Delivery, rid: str, after: int = -1) -> list[bytes]:
    subscription = await made.watch(rid, ALICE, after)
    found = []
    while events := await subscription.next_events():
        found += [event.body for event in events]
    subscription.close()
    return found


async def test_events_and_request_come_from_the_archive(
    url: str, broker: memory_log.MemoryLog, deliver: delivery.Delivery
) -> None:
    whole = _named(_old(broker))
    await archive_rows.build(url, broker, whole)
    wanted = [event.body for event in archived.build_stream(whole).emitted]
    assert len(wanted) > 5
    assert await _all(deliver, whole.rid) == wanted
    assert await _all(deliver, whole.rid, 2) == wanted[3:]
    assert (await deliver.find(whole.rid, ALICE)).response["status"] == "completed"
    assert await deliver.request_of(whole.rid, ALICE) == whole.request


async def test_the_request_of_an_answer_that_the_log_still_has_may_be_in_the_archive_only(
    url: str, deliver: delivery.Delivery, broker: memory_log.MemoryLog
) -> None:
    """Symptom: for the hour in which the log had an answer and its request no longer, the response
    could not be continued, although the archive had both."""
    rid = ids.mint(ids.Address(broker.layout.tag, 0, 3), bytes(11))
    kept = _named(rid)
    topic = topics.requests("default", "interactive")
    broker.put(topic, 0, rid.encode(), records.encode(kept.request))
    broker.delete_below(topic, 0, 1)
    for record in history.to_records(kept):
        if isinstance(record, records.Claim):
            record = msgspec.structs.replace(record, req_topic=topic)
        broker.put_record(topics.TOKENS, 0, record, rid)
    assert not (await deliver.find(rid, ALICE)).archived
    await archive_rows.build(url, broker)
    with pytest.raises(log.HistoryLost):
        await deliver.request_of(rid, ALICE)
    await archive_rows.build(url, broker, kept)
    assert await deliver.request_of(rid, ALICE) == kept.request


async def test_also_of_another_log(
    url: str, broker: memory_log.MemoryLog, deliver: delivery.Delivery
) -> None:
    whole = _named(_old(broker, b"gone"))
    await archive_rows.build(url, broker, whole)
    assert (await deliver.find(whole.rid, ALICE)).response["status"] == "completed"
    with pytest.raises(log.HistoryLost):
        await deliver.find(_old(broker, b"gone", 2), ALICE)


@pytest.mark.parametrize("grown", [False, True])
async def test_what_a_log_lost_that_was_rolled_back_is_served(
    url: str, broker: memory_log.MemoryLog, deliver: delivery.Delivery, grown: bool
) -> None:
    """Symptom: 404, while the list, which is the archive's, showed the response."""
    lost = ids.Address(broker.layout.tag, 0, 3 if grown else 5)
    whole = _named(ids.mint(lost, bytes(ids.RANDOM_BYTES)))
    await archive_rows.build(url, broker, whole)
    if grown:
        for _ in range(4):
            broker.put(topics.TOKENS, 0, b"x", b"{}")
    assert (await deliver.find(whole.rid, ALICE)).response["status"] == "completed"
    with pytest.raises(delivery.NotFound if grown else log.HistoryLost):
        await deliver.find(ids.mint(lost, b"\1" * ids.RANDOM_BYTES), ALICE)


async def test_anothers_response_is_told_like_one_that_never_was(
    url: str, broker: memory_log.MemoryLog, deliver: delivery.Delivery
) -> None:
    whole = _named(_old(broker))
    await archive_rows.build(url, broker, whole)
    for rid in (whole.rid, _old(broker, number=2)):
        with pytest.raises(log.HistoryLost):
            await deliver.find(rid, BOB)
    await deliver.find(whole.rid, ALICE)
    with pytest.raises((log.HistoryLost, delivery.NotFound)):
        await deliver.find(whole.rid, BOB)  # this instance has it by now


async def test_a_deletion_holds_before_the_archive_knows_it(
    url: str, broker: memory_log.MemoryLog, deliver: delivery.Delivery
) -> None:
    whole = _named(_old(broker))
    await archive_rows.build(url, broker, whole)
    deliver.deleted(whole.rid, ALICE)
    with pytest.raises(delivery.NotFound):
        await deliver.find(whole.rid, ALICE)


async def test_without_an_answer_of_the_archive_it_is_503(
    broker: memory_log.MemoryLog, deliver: delivery.Delivery
) -> None:
    with pytest.raises(errors.ApiError) as caught:
        await deliver.find(_old(broker), ALICE)
    assert caught.value.status == 503
    assert "archive" in str(caught.value)


async def test_an_archive_that_is_behind_is_no_proof(
    url: str,
    broker: memory_log.MemoryLog,
    deliver: delivery.Delivery,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await archive_rows.build(url, broker)
    monkeypatch.setattr(sql_reader, "FOLD_WAIT_S", 0.2)
    rid = _old(broker)
    partition = history.partition(rid, topics.partitions_of(topics.HISTORY))
    broker.put(topics.HISTORY, partition, rid.encode(), b"{}")
    with pytest.raises(errors.ApiError, match="behind"):
        await deliver.find(rid, ALICE)


async def test_without_an_archive_it_is_lost(broker: memory_log.MemoryLog) -> None:
    async with memory_delivery.running(memory_delivery.over(broker)) as made:
        with pytest.raises(log.HistoryLost):
            await made.find(_old(broker), ALICE)
