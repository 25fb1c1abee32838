"""The look-up falls back on the archive where the log has a response no longer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tailrace import log
from tailrace.archive import conversation_rows, database, folding, migration, reader
from tailrace.delivery import archived, delivery
from tailrace.protocol import errors, history, ids, topics
from tests.support import memory_delivery, memory_log
from tests.support.histories import ALICE, BOB, history_of


async def _no_tombstones(_: set[conversation_rows.Address]) -> None:
    raise AssertionError("nothing is erased here")


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


async def _fold(url: str, broker: memory_log.MemoryLog, *found: history.History) -> None:
    engine = database.engine(url, create=True)
    await migration.migrate(engine)
    partitions = topics.partitions_of(topics.HISTORY)
    for each in found:
        for key, value in history.parts(each):
            broker.put(topics.HISTORY, history.partition(each.rid, partitions), key.encode(), value)
    fold = folding.Folding(engine, broker.layout.incarnation, _no_tombstones)
    for partition in range(partitions):
        records = broker.records(topics.HISTORY, partition)
        await fold.apply(records, {(topics.HISTORY, partition): 0})
    await engine.dispose()


@pytest.fixture
async def deliver(url: str, broker: memory_log.MemoryLog) -> AsyncIterator[delivery.Delivery]:
    made = memory_delivery.over(broker, archive=reader.of(url))
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
    await _fold(url, broker, whole)
    wanted = [event.body for event in archived.stream_of(whole).emitted]
    assert len(wanted) > 5
    assert await _all(deliver, whole.rid) == wanted
    assert await _all(deliver, whole.rid, 2) == wanted[3:]
    assert (await deliver.find(whole.rid, ALICE)).response["status"] == "completed"
    assert await deliver.request_of(whole.rid, ALICE) == whole.request


async def test_also_of_another_log(
    url: str, broker: memory_log.MemoryLog, deliver: delivery.Delivery
) -> None:
    whole = _named(_old(broker, b"gone"))
    await _fold(url, broker, whole)
    assert (await deliver.find(whole.rid, ALICE)).response["status"] == "completed"
    with pytest.raises(log.HistoryLost):
        await deliver.find(_old(broker, b"gone", 2), ALICE)


async def test_anothers_response_is_told_like_one_that_never_was(
    url: str, broker: memory_log.MemoryLog, deliver: delivery.Delivery
) -> None:
    whole = _named(_old(broker))
    await _fold(url, broker, whole)
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
    await _fold(url, broker, whole)
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
    await _fold(url, broker)
    monkeypatch.setattr(reader, "BEHIND_S", 0.2)
    rid = _old(broker)
    partition = history.partition(rid, topics.partitions_of(topics.HISTORY))
    broker.put(topics.HISTORY, partition, rid.encode(), b"{}")
    with pytest.raises(errors.ApiError, match="behind"):
        await deliver.find(rid, ALICE)


async def test_without_an_archive_it_is_lost(broker: memory_log.MemoryLog) -> None:
    async with memory_delivery.running(memory_delivery.over(broker)) as made:
        with pytest.raises(log.HistoryLost):
            await made.find(_old(broker), ALICE)
