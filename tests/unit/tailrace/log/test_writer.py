"""What a failed append says: whether its record was ever sent. Over a producer whose requests are
let through by hand, with aiokafka's own accumulator and sender left out."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import aiokafka.errors
import pytest
from aiokafka.producer.message_accumulator import BatchBuilder
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.record.memory_records import MemoryRecords

from tailrace import log
from tailrace.log import aiokafka_internals, client_api
from tests.support.waiting import eventually

TOPIC = "t"


class Produce(ProduceRequest):  # type: ignore[misc]
    """A batch of each of these partitions."""

    def __init__(self, *partitions: int) -> None:
        super().__init__(None, -1, 1000, [(TOPIC, [(p, b"batch") for p in partitions])])
        self.partitions = list(partitions)


class Client:
    """The producer's client: `sent` are the partitions of each produce request that went out."""

    def __init__(self) -> None:
        self.reachable = True
        self.sent: list[list[int]] = []

    async def ready(self, node_id: int) -> bool:
        return self.reachable

    async def send(self, node_id: int, request: Produce) -> None:
        self.sent.append(request.partitions)

    async def produce(self, *partitions: int) -> None:
        """As aiokafka's sender does with a batch of each of these partitions."""
        await self.send(0, Produce(*partitions))


class Producer:
    """Takes batches and never acknowledges one by itself.

    Attributes:
        taken: the acknowledgement of each batch.
        batches: the values in each batch.
        unknown: topics for which no broker tells the partitions.
    """

    def __init__(self) -> None:
        self.client = Client()
        self.taken: list[asyncio.Future[Any]] = []
        self.batches: list[list[bytes]] = []
        self.unknown: set[str] = set()

    async def start(self) -> None: ...

    def create_batch(self) -> BatchBuilder:
        return BatchBuilder(1024, 0)

    async def send_batch(
        self, batch: BatchBuilder, topic: str, *, partition: int
    ) -> asyncio.Future[Any]:
        if topic in self.unknown:
            await asyncio.Event().wait()
        records = MemoryRecords(bytes(batch._build())).next_batch()
        self.batches.append([record.value for record in records])
        self.taken.append(asyncio.get_running_loop().create_future())
        return self.taken[-1]

    def acknowledge(self, at: int, *, offset: int = 0, timestamp: int = 1) -> None:
        """Of the batch `at`: the offset of its first record, and its time."""
        self.taken[at].set_result(log.Appended(offset, timestamp))


class Api(client_api.PublicApi):
    """Nothing to stop. `guard_sending` is the one over private parts."""

    def __init__(self, *, guards: bool) -> None:
        self.guards = guards

    def guard_sending(self, producer: Any, may_send: client_api.MaySend) -> bool:
        if self.guards:
            return aiokafka_internals.InternalApi().guard_sending(producer, may_send)
        return super().guard_sending(producer, may_send)

    async def discard_producer(self, producer: Any) -> None: ...


@contextlib.asynccontextmanager
async def running(
    *, guards: bool = True, deadline_s: float = 60.0
) -> AsyncIterator[tuple[log.Writer, list[Producer]]]:
    made: list[Producer] = []

    def producer(**_: Any) -> Any:
        made.append(Producer())
        return made[-1]

    writer = log.Writer(
        "nowhere:1", deadline_s=deadline_s, api=Api(guards=guards), producer=producer
    )
    task = asyncio.create_task(writer.run())
    try:
        await eventually(lambda: writer.connected, "it is connected", within_s=5)
        yield writer, made
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def handed_over(producer: Producer, count: int) -> None:
    await eventually(lambda: len(producer.taken) == count, "the producer has them", within_s=5)


async def outcomes(*appends: asyncio.Future[log.Appended]) -> list[type[BaseException]]:
    results = await asyncio.gather(*appends, return_exceptions=True)
    return [type(result) for result in results if isinstance(result, BaseException)]


async def test_a_record_that_was_not_sent_is_certainly_not_appended_and_never_sent() -> None:
    async with running() as (writer, made):
        sent = writer.append(TOPIC, 0, "k", b"sent")
        await handed_over(made[0], 1)
        await made[0].client.produce(0)
        waiting = writer.append(TOPIC, 0, "k", b"behind it")
        elsewhere = writer.append(TOPIC, 1, "k", b"of another partition")
        await handed_over(made[0], 2)
        made[0].taken[0].set_exception(aiokafka.errors.RequestTimedOutError())
        assert await outcomes(sent, waiting, elsewhere) == [
            log.AppendFailed,
            log.NotAppended,
            log.NotAppended,
        ]
        # The former producer still has the latter, and is not yet stopped.
        with pytest.raises(aiokafka.errors.NodeNotReadyError):
            await made[0].client.produce(0, 1)
        assert made[0].client.sent == [[0]]
        await eventually(lambda: len(made) == 2, "there is a new one", within_s=5)


async def test_a_request_without_a_connection_is_not_sent() -> None:
    async with running(deadline_s=0.2) as (writer, made):
        made[0].client.reachable = False
        append = writer.append(TOPIC, 0, "k", b"v")
        await handed_over(made[0], 1)
        with pytest.raises(aiokafka.errors.NodeNotReadyError):
            await made[0].client.produce(0)
        assert await outcomes(append) == [log.NotAppended]


async def test_without_private_parts_what_the_producer_has_counts_as_sent() -> None:
    async with running(guards=False) as (writer, made):
        append = writer.append(TOPIC, 0, "k", b"v")
        await handed_over(made[0], 1)
        made[0].taken[0].set_exception(aiokafka.errors.RequestTimedOutError())
        assert await outcomes(append) == [log.AppendFailed]


async def test_a_stop_gives_records_up_for_good() -> None:
    async with running() as (writer, made):
        append = writer.append(TOPIC, 0, "k", b"v")
        await handed_over(made[0], 1)
        await writer.stop(0.0)
        assert await outcomes(append) == [log.NotAppended]
        with pytest.raises(aiokafka.errors.NodeNotReadyError):
            await made[0].client.produce(0)


async def test_an_acknowledgement_that_is_overdue_shows_before_it_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tailrace.log.writer.STALLED_S", 0.05)
    async with running() as (writer, made):
        writer.append(TOPIC, 0, "k", b"v")
        assert not writer.stalled
        await eventually(lambda: writer.stalled, "it is overdue", within_s=5)
        made[0].acknowledge(0)
        await eventually(lambda: not writer.stalled, "it has come", within_s=5)


async def test_what_comes_while_a_batch_is_on_its_way_is_the_next_batch() -> None:
    async with running() as (writer, made):
        first = writer.append(TOPIC, 0, "k", b"0")
        await handed_over(made[0], 1)
        behind = [writer.append(TOPIC, 0, "k", b"%d" % n) for n in (1, 2)]
        elsewhere = writer.append(TOPIC, 1, "k", b"elsewhere")
        await handed_over(made[0], 2)
        assert made[0].batches == [[b"0"], [b"elsewhere"]]
        assert writer.backlog == 4
        made[0].acknowledge(0, offset=10, timestamp=7)
        await handed_over(made[0], 3)
        assert made[0].batches[2] == [b"1", b"2"]
        made[0].acknowledge(1, offset=0)
        made[0].acknowledge(2, offset=11, timestamp=8)
        assert await first == log.Appended(10, 7)
        assert await asyncio.gather(*behind) == [log.Appended(11, 8), log.Appended(12, 8)]
        assert (await elsewhere).offset == 0
        assert writer.backlog == 0


async def test_a_batch_takes_what_fits() -> None:
    async with running() as (writer, made):
        values = [bytes([65 + n]) * 400 for n in range(3)]
        for value in values:
            writer.append(TOPIC, 0, "k", value)
        await handed_over(made[0], 1)
        made[0].acknowledge(0)
        await handed_over(made[0], 2)
        assert made[0].batches == [values[:2], values[2:]]


async def test_a_record_whose_caller_gave_it_up_is_not_sent() -> None:
    async with running() as (writer, made):
        writer.append(TOPIC, 0, "k", b"0")
        await handed_over(made[0], 1)
        given_up, kept = (writer.append(TOPIC, 0, "k", value) for value in (b"1", b"2"))
        given_up.cancel()
        made[0].acknowledge(0)
        await handed_over(made[0], 2)
        made[0].acknowledge(1, offset=1)
        assert made[0].batches == [[b"0"], [b"2"]]
        assert (await kept).offset == 1


async def test_the_next_batch_is_there_when_the_producer_makes_its_next_request() -> None:
    """aiokafka makes it in the turn after the one in which callers get the acknowledgement. What
    came later waited until that request was answered: appends took twice as long."""
    async with running() as (writer, made):
        writer.append(TOPIC, 0, "k", b"0")
        await handed_over(made[0], 1)
        writer.append(TOPIC, 0, "k", b"1")
        made[0].taken[0].add_done_callback(lambda _: seen.append(len(made[0].batches)))
        seen: list[int] = []
        made[0].acknowledge(0)
        await eventually(lambda: seen, "it is acknowledged")
        assert seen == [2]


async def test_a_topic_without_metadata_delays_no_other() -> None:
    async with running() as (writer, made):
        made[0].unknown.add("unknown")
        unknown = writer.append("unknown", 0, "k", b"v")
        known = writer.append(TOPIC, 0, "k", b"v")
        await handed_over(made[0], 1)
        made[0].acknowledge(0, offset=3)
        assert (await known).offset == 3
        assert not unknown.done()


async def test_a_batch_whose_offset_the_broker_does_not_know_has_none() -> None:
    """It had the batch already (DUPLICATE_SEQUENCE_NUMBER). Offset 0 for the second record would
    pass for one that the log gave."""
    async with running() as (writer, made):
        appends = [writer.append(TOPIC, 0, "k", b"%d" % n) for n in range(3)]
        await handed_over(made[0], 1)
        made[0].acknowledge(0, offset=-1)
        assert [appended.offset for appended in await asyncio.gather(*appends)] == [-1, -1, -1]


async def test_a_delivery_that_is_cancelled_fails_its_records() -> None:
    async with running() as (writer, made):
        append = writer.append(TOPIC, 0, "k", b"v")
        await handed_over(made[0], 1)
        made[0].taken[0].cancel()
        assert await outcomes(append) == [log.NotAppended]
        await eventually(lambda: len(made) == 2, "there is a new one", within_s=5)
        append = writer.append(TOPIC, 0, "k", b"v")
        await handed_over(made[1], 1)
        made[1].acknowledge(0, offset=5)
        assert (await append).offset == 5
