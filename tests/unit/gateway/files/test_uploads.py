"""The index of uploads: a fold of `llm.uploads`, whatever lies in it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from gateway.files import files as gateway_files
from gateway.files import uploads
from gateway.parsing import uploads as parsed
from tailrace import log
from tailrace.delivery import archived
from tailrace.protocol import errors, files, ids, records, topics
from tests.support import cases, log_contract, memory_log

ALICE, BOB = records.Owner("i", "alice"), records.Owner("i", "bob")
NOTES = b"notes\n"


@dataclass
class Place:
    """An index over a log in memory, and its clocks."""

    broker: memory_log.MemoryLog
    now: float = 1_000.0
    monotonic: float = 0.0
    index: uploads.Uploads = field(init=False)

    def __post_init__(self) -> None:
        writer = self.broker.writer()
        self.index = uploads.Uploads(
            self.broker.layout.tag,
            self.broker.reader(topics.UPLOADS),
            self.broker.offsets(),
            self.broker.replays(),
            writer,
            gateway_files.Files(
                writer,
                self.broker.replays(),
                self.broker.offsets(),
                archived.ArchiveQueries(None, self.broker.offsets(), ""),
                lambda: self.now,
            ),
            lambda: self.now,
            lambda: self.monotonic,
        )
        self.writer = writer

    async def add(
        self,
        owner: records.Owner = ALICE,
        data: bytes = NOTES,
        key: str | None = None,
        name: str = "a.txt",
        purpose: str = "user_data",
        lives_s: int = 5_000,
    ) -> records.Upload:
        form = parsed.UploadForm(name, purpose, "text/plain", data, lives_s)
        return await self.index.add(owner, form, key)

    def written(self) -> list[records.Upload]:
        """What `llm.uploads` has."""
        log_records = [records.upload_of(r.key, r.value) for r in self.broker.appended]
        return [each for each in log_records if each is not None]

    def put(self, record: records.Upload, owner: records.Owner, key: str | None = None) -> None:
        """A record in the partition of an owner."""
        partition = uploads.partition_of(owner)
        value = records.encode(record)
        self.broker.put(topics.UPLOADS, partition, (key or record.id).encode(), value)


@contextlib.asynccontextmanager
async def running(broker: memory_log.MemoryLog | None = None) -> AsyncIterator[Place]:
    place = Place(broker or memory_log.MemoryLog("one", 1))
    tasks = [asyncio.ensure_future(t) for t in (place.index.run(), place.writer.run())]
    try:
        yield place
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_file_is_known_until_it_expires() -> None:
    async with running() as place:
        upload = await place.add()
        assert await place.index.find(upload.id, ALICE) == upload
        assert await place.index.content(upload) == NOTES
        place.now += 4_999
        assert await place.index.all_of(ALICE) == [upload]
        place.now += 1
        assert await place.index.find(upload.id, ALICE) is None
        assert await place.index.all_of(ALICE) == []


async def test_what_has_expired_is_forgotten() -> None:
    async with running() as place:
        await place.add()
        await place.add(BOB)
        place.now += 6_000
        upload = [await place.add()]
        place.monotonic += uploads.FORGET_EVERY_S
        upload.append(await place.add())  # the reader looks when something comes
        await place.index.all_of(ALICE)
        place.now -= 6_000  # by this clock nothing has expired
        assert await place.index.all_of(ALICE) == upload
        assert await place.index.all_of(BOB) == []


async def test_a_new_gateway_knows_what_there_is() -> None:
    async with running() as place:
        upload, dropped = await place.add(), await place.add(data=b"other")
        await place.index.delete(dropped)
        async with running(place.broker) as other:
            assert await other.index.all_of(ALICE) == [upload]
            assert await other.index.find(dropped.id, ALICE) is None
            assert await other.index.find(upload.id, BOB) is None


async def test_nothing_brings_a_deleted_file_back() -> None:
    async with running() as place:
        upload = await place.add()
        await place.index.delete(upload)
        place.put(upload, ALICE)  # a copy that came late
        assert await place.index.find(upload.id, ALICE) is None


async def test_a_record_counts_for_the_owner_that_it_names_only() -> None:
    """A record of another owner does not change a file, whatever id it names."""
    async with running() as place:
        upload = await place.add()
        place.put(msgspec.structs.replace(upload, owner=BOB, deleted=True), ALICE)
        assert await place.index.find(upload.id, ALICE) == upload


@cases.each(
    "value",
    [
        b"",
        b"{}",
        b"\xff",
        b'{"t":"UPLOAD"}',
        b'{"t":"DELETED","rid":"x","by":{"issuer":"i","subject":"s"}}',
    ],
)
async def test_garbage_stops_nothing(value: bytes) -> None:
    async with running() as place:
        place.broker.put(topics.UPLOADS, uploads.partition_of(ALICE), b"x", value)
        upload = await place.add()
        assert await place.index.all_of(ALICE) == [upload]


def with_fields(record: records.Upload, **more: Any) -> records.Upload:
    return msgspec.structs.replace(record, **more)


async def test_a_record_under_another_key_and_one_without_a_place_are_garbage() -> None:
    async with running() as place:
        upload = await place.add()
        other = "file-" + "A" * 32
        place.put(with_fields(upload, filename="b"), ALICE, key=other)
        place.put(with_fields(upload, file=files.Place(0, (), 5, 0)), ALICE)
        place.put(with_fields(upload, file=files.Place(0, (-1,), 5, 0)), ALICE)
        assert await place.index.all_of(ALICE) == [upload]


async def test_so_many_files_and_bytes_of_one_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "MAX_TOGETHER", 2 * len(NOTES))
    async with running() as place:
        first = await place.add()
        await place.index.delete(await place.add(data=NOTES[::-1]))
        with pytest.raises(errors.ApiError) as error:
            await place.add(data=b"x")
        assert error.value.code == "too_many_files"
        await place.add(BOB)
        place.now = first.expires
        await place.add(data=b"x")


async def test_a_log_that_is_away_is_said_and_nothing_is_taken() -> None:
    async with running() as place:
        upload = await place.add()
        place.broker.go_away()
        for call in (
            place.index.find(upload.id, ALICE),
            place.index.all_of(ALICE),
            place.add(data=b"new"),
            place.index.content(upload),
        ):
            with pytest.raises(log.LogUnavailable):
                await call
        place.broker.come_back()
        assert await place.index.all_of(ALICE) == [upload]


async def test_a_key_leads_to_one_file_at_every_gateway() -> None:
    async with running() as place:
        upload = await place.add(key="k")
        assert await place.add(key="k") == upload
        async with running(place.broker) as other:
            assert await other.add(key="k") == upload
        assert place.written() == [upload]
        beside = next(  # of the same partition, so that only the rest of the id tells them apart
            each
            for n in range(1_000)
            if uploads.partition_of(each := records.Owner("i", f"{n}"))
            == uploads.partition_of(ALICE)
        )
        ids_ = {upload.id, (await place.add(key="l")).id, (await place.add(beside, key="k")).id}
        assert len(ids_ | {(await place.add()).id, (await place.add()).id}) == 5


@cases.each(
    "other",
    [{"data": b"other"}, {"name": "b.txt"}, {"purpose": "vision"}, {"lives_s": 5_001}],
)
async def test_a_key_stands_for_one_file(other: dict[str, Any]) -> None:
    async with running() as place:
        upload = await place.add(key="k")
        with pytest.raises(errors.ApiError) as error:
            await place.add(key="k", **other)
        assert (error.value.status, error.value.code) == (409, "idempotency_key_reused")
        assert place.written() == [upload]


async def test_an_owner_with_all_that_one_may_have_may_send_a_key_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(uploads, "MAX_FILES", 1)
    async with running() as place:
        upload = await place.add(key="k")
        assert await place.add(key="k") == upload


async def test_a_key_of_a_deleted_file_makes_no_other_one_until_it_has_expired() -> None:
    async with running() as place:
        upload = await place.add(key="k")
        await place.index.delete(upload)
        with pytest.raises(errors.ApiError) as error:
            await place.add(key="k")
        assert (error.value.status, error.value.code) == (409, "file_deleted")
        place.now += 5_000
        again = await place.add(key="k", data=b"other")
        assert again.id == upload.id
        assert await place.index.find(upload.id, ALICE) == again
        assert await place.index.content(again) == b"other"


async def test_two_gateways_that_take_one_key_at_once_write_the_same_file() -> None:
    async with running() as one, running(one.broker) as two:
        actual = await asyncio.gather(*(place.add(key="k") for place in (one, two) * 3))
        assert len({each.id for each in actual}) == 1
        for place in (one, two):
            assert [each.id for each in await place.index.all_of(ALICE)] == [actual[0].id]


async def test_of_two_contents_at_once_the_first_stands_after_compaction_too() -> None:
    async with running() as one, running(one.broker) as two:
        partition = uploads.partition_of(ALICE)
        one.broker.lag(topics.UPLOADS, partition, 0)  # neither sees the other one's record
        both = [
            asyncio.ensure_future(place.add(key="k", data=data))
            for place, data in ((one, b"1"), (two, b"2"))
        ]
        await log_contract.until(lambda: len(one.written()) == 2, 5)
        one.broker.catch_up(topics.UPLOADS, partition)
        done = await asyncio.gather(*both, return_exceptions=True)
        [error] = [each for each in done if isinstance(each, BaseException)]
        assert isinstance(error, errors.ApiError)
        assert error.code == "idempotency_key_reused"
        [choice] = [each for each in done if isinstance(each, records.Upload)]
        first, second, last = one.written()
        assert first.sha256 != second.sha256
        assert (last, choice) == (first, first)
        for place in (one, two):
            assert await place.index.all_of(ALICE) == [first]


async def test_a_reader_that_is_behind_is_waited_for() -> None:
    async with running() as place:
        upload = await place.add()
        partition = uploads.partition_of(ALICE)
        place.broker.lag(topics.UPLOADS, partition, 0)
        async with running(place.broker) as other:
            task = asyncio.ensure_future(other.index.find(upload.id, ALICE))
            await asyncio.sleep(0.05)
            assert not task.done()
            place.broker.catch_up(topics.UPLOADS, partition)
            assert await task == upload


@cases.each("name", ["", "file-", "file-x", "resp_" + "A" * 32, "file-" + "A" * 33])
async def test_what_is_no_id_costs_nothing(name: str) -> None:
    async with running() as place:
        place.broker.go_away()  # it would say so
        assert await place.index.find(name, ALICE) is None


def test_ids_of_files_and_of_responses_are_not_mistaken_for_each_other() -> None:
    address = ids.Address(b"test", 3, 9)
    rid, name = ids.mint(address, bytes(11)), ids.mint(address, bytes(11), ids.FILE_PREFIX)
    assert ids.parse(rid) == ids.parse(name, None, ids.FILE_PREFIX) == address
    for text, prefix in ((rid, ids.FILE_PREFIX), (name, ids.PREFIX)):
        with pytest.raises(ids.InvalidId):
            ids.parse(text, None, prefix)
