"""What a worker writes to `llm.history` about a response that has ended."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tailrace.protocol import events, files, fold, history, ids, records, topics
from tests.support import cases, memory_worker
from tests.support.memory_log import MemoryLog
from tests.support.memory_worker import OWNER, Foreign, Worker, cues, new_request
from tests.support.waiting import eventually
from worker.log import appends
from worker.serving import history_writer, response_task
from worker.serving.outcome import Outcome


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_task, "RECHECK_S", 0.005)
    monkeypatch.setattr(appends, "RETRY_S", 0.005)


def written(memory: MemoryLog, rid: str) -> list[bytes]:
    """Values of part 0 of a response, in order."""
    return [
        r.value or b""
        for r in memory.appended
        if r.topic == topics.HISTORY and r.key == rid.encode()
    ]


def kept(memory: MemoryLog, rid: str) -> history.History | None:
    found = [
        part
        for r in memory.appended
        if r.topic == topics.HISTORY
        and history.part_from_key(r.key) is not None
        and r.partition == history.partition(rid, 12)
        and (part := history.decode_part(r.key, r.value)) is not None
        and part.rid == rid
    ]
    return history.join(found)


def of_the_log(memory: MemoryLog, request: records.Request) -> history.History:
    """What the log says, folded by a reader that knows the request."""
    state, effective, ended_ms = fold.Fold(), [], 0
    state.belongs_to(request.owner)
    for r in memory.records(topics.TOKENS, ids.parse(request.rid).partition):
        record = records.token_of(r.key, r.value)
        if record is None or record.rid != request.rid:
            continue
        outcome = state.apply(record, r.offset, r.timestamp)
        if not isinstance(outcome, fold.Ignored):
            effective.append(record)
            ended_ms = r.timestamp
    return history.from_records(request, effective, ended_ms)


async def served(worker: Worker, **more: Any) -> records.Request:
    request = new_request(worker.memory, metadata=cues(20), **more)
    assert await worker.serve(request).outcome() is Outcome.DONE
    return request


async def test_a_finished_response_is_kept_as_the_log_has_it() -> None:
    async with memory_worker.worker() as worker:
        request = await served(worker)
        window = kept(worker.memory, request.rid)
        assert window == of_the_log(worker.memory, request)
        assert window is not None
        assert len(window.ids) == 20
        assert worker.memory.reads == []  # it was at hand


async def test_it_lies_in_the_partition_of_its_id() -> None:
    async with memory_worker.worker() as worker:
        worker.context.tail.follow(5, 0, 0)
        request = await served(worker, partition=5)
        assert {r.partition for r in worker.memory.appended if r.topic == topics.HISTORY} == {5}
        assert kept(worker.memory, request.rid) == of_the_log(worker.memory, request)


async def test_the_offset_is_not_finished_before_it_is_in_the_log() -> None:
    async with memory_worker.worker() as worker:
        request = new_request(worker.memory)
        Foreign(worker.memory, request).cancel()  # it has no other record
        worker.memory.fail_next_append()
        worker.memory.hold_acknowledgements()
        await worker.caught_up()
        serve = worker.serve(request)
        await eventually(lambda: written(worker.memory, request.rid), "a history", every_s=0.005)

        assert serve.delivery.tracker.in_flight == 1
        worker.memory.release_acknowledgements()
        assert await serve.outcome() is Outcome.DONE
        assert serve.delivery.tracker.in_flight == 0


async def test_a_response_that_was_taken_over_is_read_back_and_kept_whole() -> None:
    async with memory_worker.worker() as worker:
        request = new_request(worker.memory, metadata=cues(20))
        other = Foreign(worker.memory, request)
        other.claim("a")
        other.tokens("a", 4)
        other.tokens("a", 3)
        other.yield_("a")
        await worker.caught_up()
        assert await worker.serve(request).outcome() is Outcome.DONE
        window = kept(worker.memory, request.rid)
        assert window == of_the_log(worker.memory, request)
        assert window is not None
        assert [claim.at for claim in window.claims] == [0, 7]


async def test_a_redelivery_after_the_end_writes_an_equal_copy() -> None:
    async with memory_worker.worker() as worker:
        request = await served(worker)
        await served(worker)  # records of another response between
        again = Foreign(worker.memory, request)
        again.tokens("zombie", 2)
        assert await worker.serve(request).outcome() is Outcome.DONE
        first, second = written(worker.memory, request.rid)
        assert first == second


async def test_another_worker_that_was_not_there_writes_an_equal_copy() -> None:
    async with memory_worker.worker() as worker:
        request = await served(worker)
        async with memory_worker.worker(worker.memory, worker.time, name="later") as later:
            assert await later.serve(request).outcome() is Outcome.DONE
        first, second = written(worker.memory, request.rid)
        assert first == second


@pytest.mark.parametrize("stranger_first", [False, True])
async def test_a_response_cancelled_before_any_claim_is_kept(stranger_first: bool) -> None:
    async with memory_worker.worker() as worker:
        request = new_request(worker.memory)
        foreign = Foreign(worker.memory, request)
        if stranger_first:
            foreign.write(records.Cancel(request.rid, records.Owner("i", "stranger")))
            worker.time.advance(1)
        foreign.cancel()
        worker.time.advance(1)
        foreign.cancel()
        await worker.caught_up()
        assert await worker.serve(request).outcome() is Outcome.DONE
        window = kept(worker.memory, request.rid)
        assert window is not None
        assert (window.claims, window.frames, window.text) == ([], [], "")
        assert window.end == records.Cancel(request.rid, OWNER)
        assert window.ended_ms == 1_000_000 + 1_000 * stranger_first


@cases.each("why", ["not stored", "warm-up", "withdrawn", "not shown"])
async def test_what_no_client_can_read_is_not_kept(why: str) -> None:
    async with memory_worker.worker() as worker:
        more: dict[str, Any] = {
            "not stored": {"store": False},
            "warm-up": {"generate": False},
        }.get(why, {})
        request = new_request(worker.memory, metadata=cues(3), **more)
        if why == "not shown":
            request.echo["object"] = events.EMBEDDINGS
        if why == "withdrawn":
            record = records.Cancel(request.rid, OWNER, withdrawn=True)
            Foreign(worker.memory, request).write(record)
        assert await worker.serve(request).outcome() is Outcome.DONE
        assert not [r for r in worker.memory.appended if r.topic == topics.HISTORY]


async def test_under_a_forged_claim_nothing_is_kept() -> None:
    async with memory_worker.worker() as worker:
        request = new_request(worker.memory, owner=records.Owner("i", "bob"))
        other = Foreign(worker.memory, request)
        other.claim("a")  # of another owner
        other.end("a")
        await worker.caught_up()
        assert await worker.serve(request).outcome() is Outcome.DONE
        assert not written(worker.memory, request.rid)


async def test_without_memory_for_it_it_is_read_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.log.tail.MAX_BYTES", 0)
    async with memory_worker.worker() as worker:
        request = await served(worker)
        assert kept(worker.memory, request.rid) == of_the_log(worker.memory, request)
        assert [r[0] for r in worker.memory.reads] == [topics.TOKENS]


async def test_what_the_log_has_lost_is_not_kept_and_the_request_is_finished() -> None:
    async with memory_worker.worker() as worker:
        request = await served(worker)
        before = len(written(worker.memory, request.rid))
        worker.memory.delete_below(topics.TOKENS, 0, 1)
        assert await worker.serve(request).outcome() is Outcome.DONE
        assert len(written(worker.memory, request.rid)) == before


async def test_an_id_whose_bound_is_wrong_does_no_harm() -> None:
    """Its claim lies below the bound, so what is read back from there is nothing."""
    async with memory_worker.worker() as worker:
        request = new_request(worker.memory)
        rid = ids.mint(ids.Address(worker.memory.layout.tag, 0, 1), bytes(11))
        request = msgspec.structs.replace(request, rid=rid, echo=request.echo | {"id": rid})
        other = Foreign(worker.memory, request)
        other.claim("a")
        other.end("a")
        await worker.caught_up()
        assert await worker.serve(request).outcome() is Outcome.DONE
        assert not written(worker.memory, rid)


async def test_a_large_one_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "PART_BYTES", 1_000)
    monkeypatch.setattr(history_writer, "LARGE_BYTES", 0)
    async with memory_worker.worker() as worker:
        request = await served(worker)
        named = [
            history.part_from_key(r.key) for r in worker.memory.appended if "history" in r.topic
        ]
        assert named == [(request.rid, n) for n in range(len(named))]
        assert len(named) > 1
        assert kept(worker.memory, request.rid) == of_the_log(worker.memory, request)


DATA = bytes(range(256)) * 3_000  # two chunks


def put(memory: MemoryLog, data: bytes) -> dict[str, Any]:
    offsets = [memory.put(topics.FILES, 3, b"k", piece).offset for piece in files.chunks(data)]
    return {"sha256": files.digest(data), "file": files.Place(3, tuple(offsets), 1, 1).member()}


def asks(
    memory: MemoryLog, *named: dict[str, Any], owner: records.Owner = OWNER
) -> records.Request:
    """A request that shows files, and was cancelled: nothing but its record is needed."""
    shown = {"type": "image", "media": "image/png", "width": 4, "height": 3}
    content = [{**shown, **each} for each in named]
    request = new_request(memory, messages=[{"role": "user", "content": content}], owner=owner)
    Foreign(memory, request).cancel()
    return request


def copied(memory: MemoryLog) -> list[tuple[history.FileChunk, bytes]]:
    return [
        (chunk, r.value or b"")
        for r in memory.appended
        if r.topic == topics.HISTORY and (chunk := history.file_from_key(r.key)) is not None
    ]


async def test_files_that_it_names_are_copied_before_it_and_once_in_a_conversation() -> None:
    async with memory_worker.worker() as worker:
        memory, more = worker.memory, b"2" * 70_000
        first, second = put(memory, DATA), put(memory, more)
        for request in (asks(memory, first), asks(memory, first, second)):
            assert await worker.serve(request).outcome() is Outcome.DONE
        copy_count = copied(memory)
        names = [(chunk.sha256, chunk.chunk) for chunk, _ in copy_count]
        assert names == [(files.digest(DATA), 0), (files.digest(DATA), 1), (files.digest(more), 0)]
        assert b"".join(value for _, value in copy_count[:2]) == DATA
        assert {chunk.scope for chunk, _ in copy_count} == {OWNER.cache_scope}
        assert {r.partition for r in memory.appended if (r.key or b"").startswith(b"file:")} == {
            files.partition(files.digest(each), 12) for each in (DATA, more)
        }
        order = [(r.key or b"")[:5] for r in memory.appended if r.topic == topics.HISTORY]
        assert order == [b"file:", b"file:", b"resp_", b"file:", b"resp_"]


async def test_each_scope_has_a_copy_of_its_own_and_it_is_not_remembered_for_ever() -> None:
    async with memory_worker.worker() as worker:
        memory = worker.memory
        file = put(memory, b"1" * 70_000)
        bob = records.Owner("https://tests", "bob")
        for owner, pause in ((OWNER, 0.0), (bob, 0.0), (OWNER, history_writer.REMEMBER_S + 1)):
            worker.time.advance(pause)
            assert await worker.serve(asks(memory, file, owner=owner)).outcome() is Outcome.DONE
        scopes = [chunk.scope for chunk, _ in copied(memory)]
        assert scopes == [OWNER.cache_scope, bob.cache_scope, OWNER.cache_scope]


async def test_a_file_that_is_gone_does_not_keep_the_response_from_being_kept() -> None:
    async with memory_worker.worker() as worker:
        lost = put(worker.memory, DATA)
        there = put(worker.memory, b"2" * 70_000)
        worker.memory.delete_below(topics.FILES, 3, 1)
        request = asks(worker.memory, lost, {"sha256": "0" * 64, "file": {}}, there)
        assert await worker.serve(request).outcome() is Outcome.DONE
        assert [chunk.sha256 for chunk, _ in copied(worker.memory)] == [there["sha256"]]
        assert kept(worker.memory, request.rid) is not None


async def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_writer, "MAX_REMEMBERED", 2)
    async with memory_worker.worker() as worker:
        named = [put(worker.memory, bytes([n]) * 70_000) for n in range(3)]
        first, second, third = (each["sha256"] for each in named)
        for files_of in (named, named[1:], named[1:], named[:1]):
            assert await worker.serve(asks(worker.memory, *files_of)).outcome() is Outcome.DONE
        again = [chunk.sha256 for chunk, _ in copied(worker.memory)]
        assert again == [first, second, third, first]
