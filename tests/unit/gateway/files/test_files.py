"""Large files are written apart, once, and are there as long as a request that names them."""

from __future__ import annotations

import asyncio
import base64
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.files import files as gateway_files
from gateway.parsing import images as parsed_images
from tailrace import log
from tailrace.archive import reader
from tailrace.auth.principal import Principal
from tailrace.delivery import archived
from tailrace.protocol import errors, files, history, images, records, topics
from tests.support import archive_rows, gateway_parts, log_contract, memory_log, pictures
from tests.support.gateway_parts import ALICE, BOB, create

SMALL = pictures.png(1)
LARGE = pictures.png(2) + random.Random(2).randbytes(1_200_000)  # three chunks


def question(*contents: bytes) -> list[dict[str, Any]]:
    """An `input` that shows these images."""
    parts = [{"type": "input_image", "image_url": pictures.url(data)} for data in contents]
    return [{"role": "user", "content": [{"type": "input_text", "text": "What?"}, *parts]}]


def chunks(broker: memory_log.MemoryLog) -> list[bytes]:
    return [record.value or b"" for record in broker.appended if record.topic == topics.FILES]


def shown_in(request: records.Request) -> list[dict[str, Any]]:
    return list(images.parts(request.messages))


async def submit(
    parts: gateway_parts.Parts, *contents: bytes, by: Principal = ALICE
) -> records.Request:
    stream = await parts.submission.submit(create(question(*contents)), by)
    parts.answer(stream.rid)
    with stream:
        await gateway_parts.all_events(stream)
    return parts.requests()[-1]


async def test_a_large_file_is_named_and_a_small_one_is_in_the_request() -> None:
    async with gateway_parts.running() as parts:
        request = await submit(parts, SMALL, LARGE)
        small, large = shown_in(request)
        assert base64.b64decode(small["data"]) == SMALL
        assert "file" not in small
        assert "data" not in large
        assert b"".join(chunks(parts.broker)) == LARGE
        keys = [r.key for r in parts.broker.appended if r.topic == topics.FILES]
        assert keys == [f"{large['sha256']}:{n}".encode() for n in range(3)]
        assert len(records.encode(request)) < 20_000
        whole = await parts.files.whole(request.owner, request.messages)
        assert [base64.b64decode(p["data"]) for p in images.parts(whole)] == [SMALL, LARGE]
        assert shown_in(request) == [small, large]  # the record's messages stay as they are


async def test_a_file_is_written_before_the_request_that_names_it() -> None:
    async with gateway_parts.running() as parts:
        await submit(parts, LARGE)
        first = [r.topic for r in parts.broker.appended if r.topic.startswith("llm.requests")]
        order = [r.topic for r in parts.broker.appended]
        assert max(i for i, name in enumerate(order) if name == topics.FILES) < order.index(
            first[0]
        )


async def test_the_same_file_is_written_once_for_a_tenant_also_when_it_is_sent_at_once() -> None:
    async with gateway_parts.running() as parts:
        submissions = [parts.submission.submit(create(question(LARGE)), ALICE) for _ in range(3)]
        for stream in await asyncio.gather(*submissions):
            parts.answer(stream.rid)
            stream.release()
        assert len(chunks(parts.broker)) == 3
        places = [shown_in(request)[0]["file"] for request in parts.requests()]
        assert places[0] == places[1] == places[2]
        # The time an answer takes must not tell one tenant what another has sent.
        await submit(parts, LARGE, by=BOB)
        assert len(chunks(parts.broker)) == 6


async def test_the_next_turn_names_the_file_again_without_writing_it() -> None:
    async with gateway_parts.running() as parts:
        first = await submit(parts, LARGE)
        stream = await parts.submission.submit(
            create("And?", previous_response_id=first.rid), ALICE
        )
        parts.answer(stream.rid)
        stream.release()
        assert shown_in(parts.requests()[-1]) == shown_in(first)
        assert len(chunks(parts.broker)) == 3


async def test_a_file_that_is_half_a_day_old_is_written_again_where_it_is_named() -> None:
    async with gateway_parts.running() as parts:
        first = await submit(parts, LARGE)
        later = first_place(first).ms + topics.FILE_REUSE_MS
        later_files = files_at(parts, later)
        again = await later_files.apart(first)
        assert first_place(again).at == (3, 4, 5)
        assert chunks(parts.broker)[3:] == chunks(parts.broker)[:3]


def files_at(
    parts: gateway_parts.Parts, now_ms: float, archive: archived.ArchiveQueries | None = None
) -> gateway_files.Files:
    """As another gateway has them, at this time."""
    return gateway_files.Files(
        parts.writer,
        parts.broker.replays(),
        parts.broker.offsets(),
        archive or parts.delivery.archived,
        lambda: now_ms / 1000,
    )


@pytest.fixture
async def archive(tmp_path: Path) -> AsyncIterator[tuple[str, reader.Reader]]:
    """An archive that nobody has folded anything into: its URL, and a reader."""
    url = f"sqlite:///{tmp_path / 'archive.sqlite3'}"
    archive_reader = reader.open_reader(url)
    assert archive_reader is not None
    yield url, archive_reader
    await archive_reader.stop()


def copy_file(broker: memory_log.MemoryLog, scope: str, *pieces: bytes) -> None:
    """What a worker copied for those with this scope."""
    sha256 = files.digest(LARGE)
    partition = files.partition(sha256, topics.partitions_of(topics.HISTORY))
    for number, piece in enumerate(pieces):
        key = history.file_key(scope, sha256, number).encode()
        broker.put(topics.HISTORY, partition, key, piece)


async def test_what_the_log_lost_is_read_in_the_archive_and_written_again(
    archive: tuple[str, reader.Reader],
) -> None:
    """Symptom: of a response older than two days the large images could not be shown, and a
    conversation that has them could not be continued."""
    async with gateway_parts.running() as parts:
        first = await submit(parts, LARGE)
        place = first_place(first)
        copy_file(parts.broker, first.owner.cache_scope, *files.chunks(LARGE))
        await archive_rows.build(archive[0], parts.broker)
        parts.broker.delete_below(topics.FILES, place.p, place.at[-1] + 1)
        log_name = parts.broker.layout.incarnation
        archive_reader = archived.ArchiveQueries(archive[1], parts.broker.offsets(), log_name)
        later_files = files_at(
            parts, place.ms, archive_reader
        )  # by its age it could be named again
        (part,) = images.parts(await later_files.whole(first.owner, first.messages))
        assert base64.b64decode(part["data"]) == LARGE
        again = await later_files.apart(first)
        assert first_place(again).at == (3, 4, 5)
        assert chunks(parts.broker)[3:] == chunks(parts.broker)[:3]
        assert first_place(await later_files.apart(first)) == first_place(again)  # once
        # Another scope's copy is none of theirs.
        theirs = msgspec.structs.replace(first, owner=records.Owner("i", "other", "elsewhere"))
        with pytest.raises(log.HistoryLost):
            await later_files.whole(theirs.owner, theirs.messages)


async def test_a_file_in_the_archive_that_is_another_is_lost(
    archive: tuple[str, reader.Reader],
) -> None:
    async with gateway_parts.running() as parts:
        first = await submit(parts, LARGE)
        place = first_place(first)
        pieces = [*files.chunks(LARGE)]
        copy_file(parts.broker, first.owner.cache_scope, pieces[0], b"another", pieces[2])
        await archive_rows.build(archive[0], parts.broker)
        parts.broker.delete_below(topics.FILES, place.p, place.at[-1] + 1)
        log_name = parts.broker.layout.incarnation
        archive_reader = archived.ArchiveQueries(archive[1], parts.broker.offsets(), log_name)
        with pytest.raises(log.HistoryLost):
            await files_at(parts, place.ms, archive_reader).whole(first.owner, first.messages)


def first_place(request: records.Request) -> files.Place:
    return files.parse_place(shown_in(request)[0]["file"])


async def test_a_turn_whose_file_is_gone_is_refused_and_not_answered_without_it() -> None:
    async with gateway_parts.running() as parts:
        first = await submit(parts, LARGE)
        place = first_place(first)
        parts.broker.delete_below(topics.FILES, place.p, place.at[-1] + 1)
        later = place.ms + topics.FILE_REUSE_MS
        later_files = files_at(parts, later)
        with pytest.raises(errors.ApiError) as error:
            await later_files.apart(first)
        assert (error.value.status, error.value.param) == (400, "previous_response_id")
        with pytest.raises(log.HistoryLost):
            await later_files.whole(first.owner, first.messages)


async def test_a_chunk_that_was_not_taken_is_appended_once_more() -> None:
    async with gateway_parts.running() as parts:
        parts.broker.fail_next_append(log.AppendFailed("x"), landed=True)
        request = await submit(parts, LARGE)
        assert len(chunks(parts.broker)) == 4
        [part] = images.parts(await parts.files.whole(request.owner, request.messages))
        assert base64.b64decode(part["data"]) == LARGE


async def test_without_a_broker_nothing_is_written_and_the_client_is_told() -> None:
    async with gateway_parts.running() as parts:
        parts.broker.fail_next_append()
        parts.broker.fail_next_append()
        with pytest.raises(errors.ApiError) as error:
            await parts.submission.submit(create(question(LARGE)), ALICE)
        assert error.value.status == 503
        assert parts.requests() == []
        await log_contract.until(lambda: len(parts.streams.running) == 0, 5)


async def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_files, "MAX_PLACES", 2)
    async with gateway_parts.running() as parts:
        bytes_of = [pictures.png(n) + random.Random(n).randbytes(70_000) for n in range(4)]
        for data in (*bytes_of, bytes_of[3], bytes_of[0]):
            await submit(parts, data)
        assert len(chunks(parts.broker)) == 5, "the last two are remembered, the first is not"


def test_bytes_of_images_count_wherever_they_are() -> None:
    place = files.Place(0, (1,), files.MAX_BYTES, 1).member()
    part = {"type": "image", "sha256": "0", "media": "image/png", "width": 1, "height": 1}
    message = {"role": "user", "content": [{**part, "file": place}]}
    parsed_images.check_count([message], "input")
    with pytest.raises(errors.ApiError):
        parsed_images.check_count([message, message], "input")
