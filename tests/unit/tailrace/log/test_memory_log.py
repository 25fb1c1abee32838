"""The log in memory keeps Kafka's contract, and its fault switches do what they say."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from tailrace import log
from tailrace.log import interfaces
from tailrace.protocol import ids, topics
from tests.support import log_contract, memory_log

TOPIC = topics.TOKENS


class MemoryBackend:
    """`log_contract.LogBackend` over a `MemoryLog`."""

    def __init__(self, broker: memory_log.MemoryLog) -> None:
        self._broker = broker

    def writer(self, **settings: Any) -> interfaces.RecordWriter:
        return self._broker.writer(**settings)

    def reader(self, topic: str, **settings: Any) -> interfaces.TailReader:
        return self._broker.reader(topic, **settings)

    def replays(self, size: int = 2) -> interfaces.RangeReader:
        return self._broker.replays(size)

    def offsets(self) -> interfaces.OffsetQueries:
        return self._broker.offsets()

    def group_consumer(
        self,
        group: str,
        names: Sequence[str],
        *,
        assigned: interfaces.RebalanceCallback,
        revoked: interfaces.RebalanceCallback,
    ) -> interfaces.GroupMember:
        return self._broker.group_consumer(group, names, assigned=assigned, revoked=revoked)

    async def create_topic(self) -> str:
        return self._broker.create_topic(log_contract.unique(), log_contract.PARTITIONS)

    async def put(self, topic: str, partition: int, key: bytes | None, value: bytes | None) -> None:
        self._broker.put(topic, partition, key, value)

    async def held(self, topic: str, partition: int) -> list[log.Record]:
        return self._broker.records(topic, partition)

    async def delete_below(self, topic: str, partition: int, offset: int) -> None:
        self._broker.delete_below(topic, partition, offset)

    def impatient(self) -> MemoryBackend:
        return self

    def unreachable(self) -> MemoryBackend:
        away = memory_log.MemoryLog()
        away.go_away()
        return MemoryBackend(away)


class TestContract(log_contract.LogContract):
    @pytest.fixture
    def backend(self) -> MemoryBackend:
        return MemoryBackend(memory_log.MemoryLog())


@pytest.fixture
def broker() -> memory_log.MemoryLog:
    return memory_log.MemoryLog()


async def test_while_the_broker_is_away_nothing_is_answered_and_appends_land_when_it_returns(
    broker: memory_log.MemoryLog,
) -> None:
    writer, reader = broker.writer(), broker.reader(TOPIC)
    reader.follow(0, 0)
    broker.go_away()
    sent = writer.append(TOPIC, 0, "k", b"v")
    assert not writer.connected
    for ask in (
        reader.poll(),
        broker.offsets().ends(TOPIC, [0]),
        log_contract.drained(broker.replays().read(TOPIC, 0, 0, 1)),
        broker.read_layout(),
    ):
        with pytest.raises(log.LogUnavailable):
            await ask
    assert not sent.done()
    broker.come_back()
    assert (await sent).offset == 0
    assert [r.value for r in await log_contract.polled(reader, 1)] == [b"v"]


@pytest.mark.parametrize("landed", [False, True])
async def test_a_failed_append_is_in_the_log_only_where_it_is_said_to_have_landed(
    broker: memory_log.MemoryLog, landed: bool
) -> None:
    writer = broker.writer()
    broker.fail_next_append(landed=landed)
    with pytest.raises(log.AppendFailed):
        await writer.append(TOPIC, 0, "k", b"one")
    assert (await writer.append(TOPIC, 0, "k", b"two")).offset == int(landed)
    assert writer.incarnation == 2


async def test_held_acknowledgements_leave_the_record_readable_and_the_append_open(
    broker: memory_log.MemoryLog,
) -> None:
    writer, reader = broker.writer(), broker.reader(TOPIC)
    reader.follow(0, 0)
    broker.hold_acknowledgements()
    sent = writer.append(TOPIC, 0, "k", b"v")
    assert len(await log_contract.polled(reader, 1)) == 1
    assert not sent.done()
    assert writer.backlog == 1
    broker.release_acknowledgements()
    assert (await sent).offset == 0


async def test_a_lagging_tail_gives_nothing_new_and_replays_and_offsets_see_everything(
    broker: memory_log.MemoryLog,
) -> None:
    for value in (b"0", b"1", b"2"):
        broker.put(TOPIC, 0, b"k", value)
    broker.lag(TOPIC, 0, 1)
    reader = broker.reader(TOPIC)
    reader.follow(0, 0)
    assert [r.value for r in await reader.poll()] == [b"0"]
    assert await reader.poll() == []
    assert reader.positions == {0: 1}
    assert len(await log_contract.drained(broker.replays().read(TOPIC, 0, 0, 3))) == 3
    broker.catch_up(TOPIC, 0)
    assert [r.value for r in await reader.poll()] == [b"1", b"2"]


async def test_held_replays_keep_their_connections_and_are_counted(
    broker: memory_log.MemoryLog,
) -> None:
    broker.put(TOPIC, 0, b"k", b"v")
    broker.hold_replays()
    replays = broker.replays(1)
    reading = [
        asyncio.create_task(log_contract.drained(replays.read(TOPIC, 0, 0, 1))) for _ in range(3)
    ]
    await log_contract.until(lambda: broker.replays_wanted == 3)
    assert len(broker.reads) == 1
    broker.release_replays()
    assert [len(got) for got in await asyncio.gather(*reading)] == [1, 1, 1]
    assert (broker.replays_wanted, broker.most_replays_wanted) == (0, 3)


async def test_a_replaced_log_has_another_name_and_old_positions_are_lost(
    broker: memory_log.MemoryLog,
) -> None:
    broker.put(TOPIC, 0, b"k", b"v")
    reader = broker.reader(TOPIC)
    reader.follow(0, 1)
    broker.replace("two")
    assert (await broker.read_layout()).tag == ids.incarnation_tag("two")
    with pytest.raises(log.HistoryLost):
        await reader.poll()


async def test_holes_are_read_over(broker: memory_log.MemoryLog) -> None:
    broker.put(TOPIC, 0, b"k", b"0")
    broker.skip_to(TOPIC, 0, 1000)
    broker.put(TOPIC, 0, b"k", b"1000")
    broker.skip_to(TOPIC, 0, 2000)
    reader = broker.reader(TOPIC)
    reader.follow(0, 0)
    assert [r.offset for r in await log_contract.polled(reader, 2)] == [0, 1000]
    assert reader.positions == {0: 2000}
    replayed = await log_contract.drained(broker.replays().read(TOPIC, 0, 1, 2000))
    assert [r.offset for r in replayed] == [1000]
