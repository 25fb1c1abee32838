"""Every reader passes every record that a broker takes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import aiokafka
import pytest
from aiokafka.producer import message_accumulator, producer
from aiokafka.record import default_records

from tailrace import log
from tests.contract.test_log import create
from tests.support import log_contract, odd_values
from tests.support.waiting import eventually

CODECS = (None, "gzip", "snappy", "lz4", "zstd")
NAME = "tail\ufffd\ufffd\ufffd"
LARGEST = 1 << 16  # bytes of a record that is written here


class RawName(str):
    """A header's name whose bytes are no UTF-8, as clients of other languages write them."""

    def encode(self, *_: Any) -> bytes:
        return b"tail\xff\xfe\x80"


@pytest.fixture
async def topic(kafka: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A partition with odd records in batches of each codec, some of them aborted."""
    # The builder in C takes no name that is no UTF-8.
    for module in (message_accumulator, producer):
        monkeypatch.setattr(
            module, "DefaultRecordBatchBuilder", default_records._DefaultRecordBatchBuilderPy
        )
    name = await create(kafka, log_contract.unique(), 1)
    for codec in CODECS:
        client = aiokafka.AIOKafkaProducer(
            bootstrap_servers=kafka,
            compression_type=codec,
            linger_ms=20,
            max_batch_size=1 << 19,
            transactional_id=log_contract.unique(),
        )
        async with client:
            for aborted in (True, False):
                await client.begin_transaction()
                await send(client, name, aborted)
                await (client.abort_transaction if aborted else client.commit_transaction)()
    return name


def written() -> list[log.Record]:
    small = [
        each
        for each in odd_values.records()
        if len(each.key or b"") + len(each.value or b"") < LARGEST
        and len(each.headers) < 100
        and all(len(value or b"") < LARGEST for _, value in each.headers)
    ]
    broken = [each._replace(headers=((RawName("x"), b"1"), (RawName("x"), None))) for each in small]
    return [record for pair in zip(small, broken, strict=True) for record in pair]


async def send(client: aiokafka.AIOKafkaProducer, topic: str, aborted: bool) -> None:
    sent = [
        await client.send(
            *(topic, each.value, each.key),
            headers=list(each.headers),
            # The broker refuses times that are far from its own clock, and some below -1.
            timestamp_ms=each.timestamp if each.timestamp in (-1, 0, 9) else None,
        )
        for each in written()
        if not aborted or each.headers
    ]
    await asyncio.gather(*sent)


def contents(found: list[log.Record]) -> list[Any]:
    return [(r.key, r.value, list(r.headers)) for r in found]


def expected(*, committed: bool) -> list[Any]:
    out: list[Any] = []
    for _ in CODECS:
        for aborted in (True, False):
            for each in written():
                if not aborted or (each.headers and not committed):
                    headers = [(NAME if name == "x" else name, v) for name, v in each.headers]
                    out.append((each.key, each.value, headers))
    return out


async def test_replays_read_every_record(kafka: str, topic: str) -> None:
    """A header's name that is no UTF-8 ended the process, again after each restart; a batch in
    snappy, lz4 or zstd kept every reader before it for ever."""
    offsets = log.Offsets(kafka)
    end = (await offsets.ends(topic, [0]))[0]
    await offsets.stop()
    for committed in (False, True):
        replays = log.Replays(kafka, read_committed=committed)
        found: list[log.Record] = []
        async with contextlib.aclosing(replays.read(topic, 0, 0, end)) as batches:
            async for batch in batches:
                found += batch
        await replays.stop()
        assert contents(found) == expected(committed=committed)


@contextlib.asynccontextmanager
async def member(kafka: str, topic: str) -> AsyncIterator[log.GroupConsumer]:
    async def unheard(_: object) -> None:
        """Nothing."""

    made = log.GroupConsumer(
        *(kafka, log_contract.unique("group"), [topic]),
        session_timeout_ms=6000,
        assigned=unheard,
        revoked=unheard,
        client_id=log_contract.unique("member"),
        read_committed=True,
    )
    try:
        yield made
    finally:
        await made.stop()


async def test_tails_and_members_of_groups_read_every_record(kafka: str, topic: str) -> None:
    reader, found = log.Reader(kafka, topic), list[log.Record]()
    reader.follow(0, 0)
    of_member: list[log.Record] = []
    async with member(kafka, topic) as joined:

        async def all_there() -> bool:
            found.extend(await reader.poll())
            of_member.extend(await joined.poll(50))
            return len(found) == len(everything) and len(of_member) == len(committed)

        everything, committed = expected(committed=False), expected(committed=True)
        await eventually(all_there, "both have read to the end")
    await reader.stop()
    assert contents(found) == everything
    assert contents(of_member) == committed
