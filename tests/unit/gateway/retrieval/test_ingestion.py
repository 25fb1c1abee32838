"""Files of vector stores over a log and a database in memory: who works on them, what a kill
leaves, and what becomes of records that belong to nothing."""

from __future__ import annotations

import asyncio
import contextlib
import struct
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from gateway.files import files as gateway_files
from gateway.files import uploads
from gateway.parsing import uploads as parsed
from gateway.parsing import vector_stores_api
from gateway.retrieval import ingestion, passages, vector_stores
from tailrace.auth.principal import Principal
from tailrace.delivery import archived
from tailrace.protocol import errors, records, topics
from tailrace.protocol import vector_stores as acts
from tests.support import log_contract, memory_log, memory_vectors, metric

ALICE, BOB = records.Owner("i", "alice"), records.Owner("i", "bob")
TEXT = "\n\n".join(f"{n:03} " * 90 for n in range(300)).encode()
CHUNKING = vector_stores_api.Chunking(100, 0, static=True)


class Embedder:
    """Embeds at once, and fails when it is told to.

    Attributes:
        asked: the key and the number of texts of each call.
        go: no call returns until it is set.
    """

    model = "m"
    longest = 1_000

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []
        self.fail: errors.ApiError | None = None
        self.go = asyncio.Event()
        self.go.set()
        self.principals: set[Principal] = set()

    async def embed(
        self, principal: Principal, texts: Sequence[str], *, later: str = ""
    ) -> list[bytes]:
        self.asked.append((later, len(texts)))
        self.principals.add(principal)
        await self.go.wait()
        if self.fail is not None:
            raise self.fail
        return [struct.pack("<2f", 1.0, len(text)) for text in texts]


@dataclass
class Gateway:
    """The parts of one gateway that vector stores are of."""

    broker: memory_log.MemoryLog
    name: str = "g1"
    database: memory_vectors.MemoryVectors = field(default_factory=memory_vectors.MemoryVectors)
    embedder: Any = field(default_factory=Embedder)
    monotonic: float = 1_000.0
    clock: Callable[[], float] = time.time
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        broker = self.broker
        self.writer = broker.writer()
        before = gateway_files.Files(
            self.writer,
            broker.replays(),
            broker.offsets(),
            archived.ArchiveQueries(None, broker.offsets(), ""),
        )
        self.uploads = uploads.Uploads(
            broker.layout.tag,
            broker.reader(topics.UPLOADS),
            broker.offsets(),
            broker.replays(),
            self.writer,
            before,
        )
        self.stores = vector_stores.VectorStores(
            self.name,
            broker.layout.tag,
            broker.reader(topics.VECTOR_STORES),
            broker.offsets(),
            self.writer,
            monotonic=lambda: self.monotonic,
        )
        self.passages = passages.Passages(
            self.database,
            self.stores,
            broker.reader(topics.PASSAGES),
            broker.offsets(),
            self.writer,
        )
        self.ingestion = ingestion.Ingestion(
            self.stores,
            self.passages,
            self.uploads,
            self.embedder,
            lambda: self.clock(),
            lambda: self.monotonic,
        )

    def start(self, *, working: bool = True) -> None:
        parts: list[Any] = [self.uploads, self.stores, self.passages, self.writer]
        if working:
            parts.append(self.ingestion)
        self.tasks = [asyncio.ensure_future(part.run()) for part in parts]

    async def kill(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    async def store(self, owner: records.Owner = ALICE) -> acts.Store:
        fields = vector_stores_api.StoreFields("", None, None, None)
        return await self.stores.create(owner, fields)

    async def attach(self, store: acts.Store, data: bytes = TEXT) -> acts.File:
        form = parsed.UploadForm("a.txt", "user_data", "text/plain", data, 5_000)
        upload = await self.uploads.add(store.owner, form)
        addition = vector_stores_api.Addition(upload.id, {}, CHUNKING)
        return await self.stores.attach(store, upload, addition)

    def passages_of(self, store: acts.Store, file: acts.File) -> int:
        now = self.file(store, file)
        return now.passages if now is not None else 0

    def file(self, store: acts.Store, file: acts.File) -> acts.File | None:
        now = self.stores.at_once(store.id)
        return now.files.get(file.act.attachment) if now is not None else None

    async def until_status(self, store: acts.Store, file: acts.File, status: str) -> None:
        def reached() -> bool:
            now = self.file(store, file)
            return now is not None and now.status == status

        await log_contract.until(reached, 30)


@contextlib.asynccontextmanager
async def running(*gateways: Gateway, working: bool = True) -> AsyncIterator[None]:
    for each in gateways:
        each.start(working=working)
    try:
        yield
    finally:
        for each in gateways:
            await each.kill()


@pytest.fixture
def broker() -> memory_log.MemoryLog:
    return memory_log.MemoryLog("one", 1)


def remaining_records(broker: memory_log.MemoryLog, topic: str) -> dict[str, bytes | None]:
    """The last record of each key."""
    return {(r.key or b"").decode(): r.value for r in broker.appended if r.topic == topic}


async def broker_grows(broker: memory_log.MemoryLog) -> None:
    before = len(broker.appended)
    await log_contract.until(lambda: len(broker.appended) > before, 30)


async def test_another_gateway_goes_on_and_only_what_is_missing_is_embedded(
    broker: memory_log.MemoryLog,
) -> None:
    first, second = Gateway(broker, "g1"), Gateway(broker, "g2")
    async with running(first, second):
        store = await first.store()
        file = await first.attach(store)
        await log_contract.until(lambda: len(remaining_records(broker, topics.PASSAGES)) >= 128, 30)
        first.embedder.go.clear()  # in one of its batches
        await log_contract.until(lambda: len(first.embedder.asked) >= 2, 30)
        await first.kill()
        await second.stores.catch_up([acts.partition(ALICE)])
        assert second.embedder.asked == []
        done = len(remaining_records(broker, topics.PASSAGES))
        second.monotonic += ingestion.TAKEOVER_S + 1
        await second.until_status(store, file, "completed")
        assert sum(count for _, count in second.embedder.asked) == 300 - done < 300
        keys = {key for key, _ in (*first.embedder.asked, *second.embedder.asked)}
        assert keys == {f"{file.act.attachment}:{start}:0" for start in (0, 128, 256)}
        assert await second.passages.numbers(store, file.act.attachment, "m") == set(range(300))
        assert len(second.database.rows) == 300
        principal = next(iter(second.embedder.principals))
        assert (principal.subject, principal.issued_at) == ("alice", file.act.created)


async def test_a_gateway_that_was_overtaken_erases_nothing(
    broker: memory_log.MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It took a file that another gateway had completed for one that was taken out, and erased its
    passages."""
    monkeypatch.setattr(ingestion, "AT_ONCE", 1)
    monkeypatch.setattr(ingestion, "CHECK_S", 0.02)
    one, two = Gateway(broker), Gateway(broker, "g2")
    async with running(one, two):
        one.embedder.go.clear()
        store = await one.store()
        file = await one.attach(store)
        await log_contract.until(lambda: len(one.embedder.asked) == 1, 30)
        two.monotonic += ingestion.TAKEOVER_S + 1
        await two.until_status(store, file, "completed")
        await one.until_status(store, file, "completed")
        one.embedder.go.set()
        after = await one.attach(store, b"words")
        await one.until_status(store, after, "completed")  # so it is done with the first one
        before = remaining_records(broker, topics.PASSAGES)
        assert len(before) == two.passages_of(store, file) + one.passages_of(store, after)
        assert None not in before.values()


async def test_a_gateway_says_that_it_works_on_a_file(
    broker: memory_log.MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingestion, "HEARTBEAT_S", 0.02)
    first, second = Gateway(broker, "g1"), Gateway(broker, "g2")
    async with running(first, second):
        store = await first.store()
        first.embedder.go.clear()
        file = await first.attach(store)
        for _ in range(5):
            # Each sign is heard before the time is over.
            await broker_grows(broker)
            await second.stores.catch_up([acts.partition(ALICE)])
            second.monotonic += ingestion.TAKEOVER_S - 1
        assert second.embedder.asked == []
        first.embedder.go.set()
        await second.until_status(store, file, "completed")


async def test_it_ends_though_something_changed_at_the_same_moment(
    broker: memory_log.MemoryLog,
) -> None:
    one = Gateway(broker)
    working = asyncio.ensure_future(one.ingestion.run())
    await asyncio.sleep(0)
    one.stores.changed.set()
    working.cancel()
    await asyncio.wait([working], timeout=5)
    assert working.cancelled()


async def test_a_file_that_two_gateways_add_at_once_is_there_once_and_embedded_once(
    broker: memory_log.MemoryLog,
) -> None:
    one, two = Gateway(broker), Gateway(broker, "g2")
    async with running(one, two):
        store = await one.store()
        form = parsed.UploadForm("a.txt", "user_data", "text/plain", b"words", 5_000)
        upload = await one.uploads.add(ALICE, form, "k")
        addition = vector_stores_api.Addition(upload.id, {"n": 1}, CHUNKING)
        partition = acts.partition(ALICE)
        states = [await each.stores.find(store.id, ALICE) for each in (one, two)]
        broker.lag(
            topics.VECTOR_STORES, partition, len(remaining_records(broker, topics.VECTOR_STORES))
        )
        both = [
            asyncio.ensure_future(each.stores.attach(state, upload, addition))
            for each, state in zip((one, two), states, strict=True)
        ]

        def added() -> list[str]:
            return [key for key in remaining_records(broker, topics.VECTOR_STORES) if ":f:" in key]

        await log_contract.until(lambda: len(added()) == 2, 30)
        broker.catch_up(topics.VECTOR_STORES, partition)
        first, second = await asyncio.gather(*both)
        assert first.act == second.act
        assert f"{store.id}:f:{first.act.attachment}" == added()[0]
        await one.until_status(store, first, "completed")
        await log_contract.until(
            lambda: remaining_records(broker, topics.VECTOR_STORES)[added()[1]] is None, 5
        )
        for each in (one, two):
            await each.stores.catch_up([partition])
        assert {key.split(":")[0] for key, _ in [*one.embedder.asked, *two.embedder.asked]} == {
            first.act.attachment
        }
        for each in (one, two):
            now = await each.stores.find(store.id, ALICE)
            assert [each.act for each in now.files.values()] == [first.act]


async def test_a_file_is_added_again_while_it_is_in_progress_and_after_a_failure(
    broker: memory_log.MemoryLog,
) -> None:
    one = Gateway(broker)
    async with running(one):
        one.embedder.go.clear()
        store = await one.store()
        form = parsed.UploadForm("a.txt", "user_data", "text/plain", b"words", 5_000)
        upload = await one.uploads.add(ALICE, form, "k")
        addition = vector_stores_api.Addition(upload.id, {}, CHUNKING)

        async def attach() -> acts.File:
            return await one.stores.attach(await one.stores.find(store.id, ALICE), upload, addition)

        attachment = await attach()
        await log_contract.until(lambda: len(one.embedder.asked) == 1, 30)
        before = len(broker.appended)
        again = await attach()
        assert (again.act, again.status) == (attachment.act, "in_progress")
        assert len(broker.appended) == before
        one.embedder.fail = errors.invalid_value("input", "no")
        one.embedder.go.set()
        await one.until_status(store, attachment, "failed")
        one.embedder.fail = None
        retried = await attach()
        assert retried.act.attachment != attachment.act.attachment
        await one.until_status(store, retried, "completed")
        assert (await attach()).act == retried.act
        now = await one.stores.find(store.id, ALICE)
        assert [each.act.attachment for each in now.present.values()] == [retried.act.attachment]


async def test_what_helps_later_is_tried_again_with_another_key(
    broker: memory_log.MemoryLog,
) -> None:
    one = Gateway(broker)
    async with running(one):
        one.embedder.fail = errors.unavailable("no worker")
        store = await one.store()
        file = await one.attach(store, b"words")
        await log_contract.until(lambda: len(one.embedder.asked) == 1, 30)
        one.embedder.fail = None
        await asyncio.sleep(0.05)
        assert len(one.embedder.asked) == 1
        one.monotonic += ingestion.RETRY_S + 1
        await one.until_status(store, file, "completed")
        attachment = file.act.attachment
        assert [key for key, _ in one.embedder.asked] == [f"{attachment}:0:0", f"{attachment}:0:1"]


async def test_a_file_with_too_many_pieces_has_failed(
    broker: memory_log.MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingestion, "MAX_PASSAGES", 299)
    one = Gateway(broker)
    async with running(one):
        store = await one.store()
        file = await one.attach(store)
        await one.until_status(store, file, "failed")
        now = one.file(store, file)
        assert now is not None
        assert now.progress is not None
        assert now.progress.message == "The file has more than 299 chunks."
        assert one.embedder.asked == []


async def test_a_file_that_is_taken_out_while_it_is_embedded_leaves_nothing(
    broker: memory_log.MemoryLog,
) -> None:
    one = Gateway(broker)
    async with running(one):
        store = await one.store()
        file = await one.attach(store)
        await log_contract.until(lambda: len(remaining_records(broker, topics.PASSAGES)) >= 128, 30)
        one.embedder.go.clear()
        await one.stores.detach(store, file)
        one.embedder.go.set()

        def nothing() -> bool:
            now = one.stores.at_once(store.id)
            values = set(remaining_records(broker, topics.PASSAGES).values())
            return now is not None and not now.files and values == {None}

        await log_contract.until(nothing, 30)
        await log_contract.until(lambda: not one.database.rows, 30)


async def test_what_was_written_during_an_erasure_elsewhere_is_erased_by_who_wrote_it(
    broker: memory_log.MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = Gateway(broker, "g1"), Gateway(broker, "g2")
    second.start(working=False)
    async with running(first):
        store = await first.store()
        add = first.passages.add

        async def erased_meanwhile(batch: Sequence[acts.Passage]) -> None:
            """Its passages are erased before these are written, and the file after."""
            now = await second.stores.find(store.id, ALICE)
            file = next(iter(now.files.values()))
            await second.passages.erase(store.id, file.act.attachment, 300)
            await add(batch)
            await log_contract.until(lambda: len(first.database.rows) == len(batch), 30)
            keys = acts.keys_of_file(store.id, file.act.attachment)
            await second.stores.erase(ALICE, keys)
            await first.stores.catch_up([acts.partition(ALICE)])

        monkeypatch.setattr(first.passages, "add", erased_meanwhile)
        await first.attach(store)
        await log_contract.until(
            lambda: (
                bool(first.database.folded)
                and not first.database.rows
                and set(remaining_records(broker, topics.PASSAGES).values()) == {None}
            ),
            5,
        )
    await second.kill()


async def test_an_erasure_that_was_cut_short_goes_on(broker: memory_log.MemoryLog) -> None:
    first = Gateway(broker)
    async with running(first):
        store = await first.store()
        file = await first.attach(store)
        await first.until_status(store, file, "completed")
    idle = Gateway(broker, "g2")
    async with running(idle, working=False):
        now = await idle.stores.find(store.id, ALICE)
        await idle.stores.delete(now)
        await idle.passages.erase(store.id, file.act.attachment, 100)
    other = Gateway(broker, "g3", database=first.database)
    async with running(other):
        await other.stores.catch_up([acts.partition(ALICE)])
        await log_contract.until(lambda: not list(other.stores.all_stores()), 30)
        assert set(remaining_records(broker, topics.PASSAGES).values()) == {None}
        assert set(remaining_records(broker, topics.VECTOR_STORES).values()) == {None}
        await log_contract.until(lambda: not first.database.rows, 30)


async def test_an_expired_store_loses_its_files(broker: memory_log.MemoryLog) -> None:
    one = Gateway(broker)
    async with running(one):
        fields = vector_stores_api.StoreFields("", None, None, 1)
        store = await one.stores.create(ALICE, fields)
        file = await one.attach(store, b"words")
        await one.until_status(store, file, "completed")
        one.clock = lambda: store.used + 86_399
        await asyncio.sleep(0.05)
        assert one.file(store, file) is not None
        one.clock = lambda: store.used + 86_400
        one.stores.changed.set()
        await log_contract.until(lambda: one.file(store, file) is None, 30)
        assert one.stores.at_once(store.id) is not None


async def test_passages_that_belong_to_nothing_are_erased(broker: memory_log.MemoryLog) -> None:
    """A process wrote them that did not know that their file was gone."""
    one = Gateway(broker)
    async with running(one):
        store, foreign = await one.store(), await one.store(BOB)
        file = await one.attach(store, b"words")
        await one.until_status(store, file, "completed")
        vector = struct.pack("<2f", 1.0, 2.0)
        late = acts.Passage(store.id, ALICE, "vsa_gone", 0, "secret", "m", vector)
        stolen = acts.Passage(foreign.id, ALICE, file.act.attachment, 0, "x", "m", vector)
        await one.passages.add([late, stolen])
        await log_contract.until(
            lambda: (
                [remaining_records(broker, topics.PASSAGES)[p.key] for p in (late, stolen)]
                == [None] * 2
            ),
            5,
        )
        actual = await one.passages.search(
            store, [file.act.attachment, "vsa_gone"], "m", vector, 10
        )
        assert [each.text for each in actual] == ["words"]
        assert len(one.database.rows) == 1


async def test_a_database_that_was_lost_is_built_again_and_one_that_was_not_is_not(
    broker: memory_log.MemoryLog,
) -> None:
    first = Gateway(broker)
    async with running(first):
        store = await first.store()
        file = await first.attach(store)
        await first.until_status(store, file, "completed")
        assert len(await first.passages.texts(store, file.act.attachment)) == 300
    rows, positions = dict(first.database.rows), first.database.folded
    again = Gateway(broker, "g2", database=first.database)
    lost = Gateway(broker, "g3")
    async with running(again, lost):
        assert await again.passages.texts(store, file.act.attachment) == (
            await lost.passages.texts(store, file.act.attachment)
        )
    assert lost.database.rows == rows
    assert again.database.folded == positions  # nothing was read again
    assert again.embedder.asked == lost.embedder.asked == []


async def test_a_search_waits_until_all_is_folded(
    broker: memory_log.MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passages, "CAUGHT_UP_S", 0.1)
    one, other = Gateway(broker, "g1"), Gateway(broker, "g2")
    async with running(one):
        store = await one.store()
        file = await one.attach(store, b"words")
        await one.until_status(store, file, "completed")
    partition = acts.passages_partition(store.id)
    broker.lag(topics.PASSAGES, partition, 0)
    async with running(other):
        await other.until_status(store, file, "completed")
        with pytest.raises(errors.ApiError) as error:
            await other.passages.texts(store, file.act.attachment)
        assert error.value.status == 503
        monkeypatch.setattr(passages, "CAUGHT_UP_S", 5.0)
        attachments = [file.act.attachment]
        vector = struct.pack("<2f", 1.0, 2.0)
        task = asyncio.ensure_future(other.passages.search(store, attachments, "m", vector, 3))
        await asyncio.sleep(0.05)
        broker.catch_up(topics.PASSAGES, partition)
        assert [each.text for each in await task] == ["words"]


async def test_garbage_is_no_passage_and_no_store(broker: memory_log.MemoryLog) -> None:
    one = Gateway(broker)
    async with running(one):
        store = await one.store()
        for topic, partition in (
            (topics.VECTOR_STORES, acts.partition(ALICE)),
            (topics.PASSAGES, acts.passages_partition(store.id)),
        ):
            for value in (b"x", b"{}", b'{"t":"PASSAGE"}'):
                broker.put(topic, partition, f"{store.id}:vsa_1:0".encode(), value)
        file = await one.attach(store, b"words")
        await one.until_status(store, file, "completed")
        assert len(one.database.rows) == 0 or set(one.database.rows) == {
            acts.passage_key(store.id, file.act.attachment, 0)
        }


async def test_a_row_that_the_database_refuses_holds_back_no_other(
    broker: memory_log.MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same batch was folded again for ever, and nobody's files were searched any more."""
    monkeypatch.setattr(passages, "RETRY_S", 0.01)
    one = Gateway(broker)
    one.database.refused = {"odd"}
    count_before = metric.value("tailrace_passages_refused_total")
    async with running(one):
        store = await one.store()
        odd = await one.attach(store, b"odd")
        plain = await one.attach(store, b"words")
        for file in (odd, plain):
            await one.until_status(store, file, "completed")
        names = [odd.act.attachment, plain.act.attachment]
        actual = await one.passages.search(store, names, "m", struct.pack("<2f", 1, 5), 9)
        assert [each.text for each in actual] == ["words"]
    assert metric.value("tailrace_passages_refused_total") == count_before + 1


async def test_a_database_that_takes_no_row_at_all_is_waited_for(
    broker: memory_log.MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passages, "RETRY_S", 0.01)
    one = Gateway(broker)
    count_before = metric.value("tailrace_passages_refused_total")
    async with running(one):
        store = await one.store()
        # The topic's beginning is folded: until then no passage would be written.
        assert await one.passages.numbers(store, "none", "m") == set()
        one.database.full = True
        file = await one.attach(store, b"words")
        await log_contract.until(lambda: bool(remaining_records(broker, topics.PASSAGES)), 30)
        await log_contract.until(lambda: one.database.attempts > 2, 30)
        one.database.full = False
        assert await one.passages.numbers(store, file.act.attachment, "m") == {0}
    assert metric.value("tailrace_passages_refused_total") == count_before
