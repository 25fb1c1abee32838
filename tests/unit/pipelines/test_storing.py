"""From a row to a file of a vector store, through failures, and how rows wait together."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Any, cast

import pytest
import yaml

from pipelines import definition, storing
from pipelines.documents import Document
from pipelines.gateway import Gateway, Rejected, StoreFile
from pipelines.rows import Refusal, Row, Rows, StoredFile
from tailrace.log import Record

STORE = "vs_" + "a" * 32
TOLD: dict[str, Any] = {
    "name": "docs",
    "input": {"topic": "in"},
    "embed": {"store": STORE, "text": "{{ record.text }}", "attributes": {"n": "record.n"}},
    "output": {"topic": "out"},
    "dead_letters": {"topic": "dead"},
}
UNKNOWN = Rejected("invalid_value", "not found", "file_id")


class Store:
    """A gateway with one store. What is attached is in progress until `settle`.

    Attributes:
        uploads: document and key of each upload.
        attached: file and attributes of each call.
        answers: of the next calls of `attach`, before the usual one.
        states: the files by their ids.
        looks: what was asked for by each look.
        slept: pauses between looks.
    """

    def __init__(self) -> None:
        self.uploads: list[tuple[Document, str]] = []
        self.attached: list[tuple[str, dict[str, Any]]] = []
        self.answers: list[StoreFile | Exception] = []
        self.states: dict[str, StoreFile] = {}
        self.looks: list[set[str]] = []
        self.slept: list[float] = []
        self.fail: Exception | None = None

    async def upload(self, document: Document, key: str) -> str:
        self.uploads.append((document, key))
        return f"file-{key}"

    async def attach(self, store: str, file: str, attributes: Mapping[str, Any]) -> StoreFile:
        assert store == STORE
        self.attached.append((file, dict(attributes)))
        if self.answers:
            answer = self.answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer
        return self.states.setdefault(file, StoreFile(file, "in_progress"))

    async def files_in_store(self, store: str, files: Collection[str]) -> dict[str, StoreFile]:
        assert store == STORE
        self.looks.append(set(files))
        await asyncio.sleep(0)
        if self.fail is not None:
            raise self.fail
        return {file: self.states[file] for file in files}

    def settle(self, status: str = "completed", passages: int = 0, code: str = "") -> None:
        for file in self.states:
            self.states[file] = StoreFile(file, status, passages, code, "because")

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await asyncio.sleep(0)


def made(store: Store, **changes: Any) -> storing.Storing:
    pipeline = definition.parse(yaml.safe_dump({**TOLD, **changes}))
    return storing.Storing(pipeline, Rows(pipeline), cast(Gateway, store), sleep=store.sleep)


def row(offset: int = 7, value: bytes = b'{"text": "it", "n": 3}') -> Row:
    pipeline = definition.parse(yaml.safe_dump(TOLD))
    return Rows(pipeline).read(Record("in", 1, offset, 99, None, value, ()))


async def until(condition: Any) -> None:
    for _ in range(1_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it does not come true")


async def test_a_row_is_uploaded_attached_and_waited_for() -> None:
    store = Store()
    work = asyncio.ensure_future(made(store).outcome(row()))
    await until(lambda: len(store.looks) == 2)
    assert not work.done()
    store.settle(passages=4)
    [(document, key)] = store.uploads
    assert key == f"docs/in/1/7/99/{document.digest}"
    assert document == Document("in-1-7.txt", b"it", {"source": "in/1/7", "n": 3})
    assert store.attached == [(f"file-{key}", document.attributes)]
    assert await work == StoredFile(f"file-{key}", STORE, 4)


async def test_the_key_is_of_place_and_content_and_not_of_the_revision() -> None:
    store = Store()

    async def key(given: Row, **changes: Any) -> str:
        store.answers.append(StoreFile("f", "completed"))
        await made(store, **changes).outcome(given)
        return store.uploads[-1][1]

    one = await key(row())
    assert await key(row(), version=2) == one
    assert await key(row(value=b'{"text": "it", "n": 4}')) == one
    assert len({one, await key(row(8)), await key(row(value=b'{"text": "x", "n": 3}'))}) == 3
    other = {**TOLD["embed"], "filename": "a.txt"}
    assert await key(row(), embed=other) != one


async def test_a_file_that_is_there_already_is_not_looked_for() -> None:
    store = Store()
    store.answers = [StoreFile("file-1", "completed", 2)]
    found = await made(store).outcome(row())
    assert isinstance(found, StoredFile)
    assert found.passages == 2
    assert store.looks == []


async def test_a_row_without_a_document_asks_nothing() -> None:
    store = Store()
    found = await made(store).outcome(row(value=b"{}"))
    assert isinstance(found, Refusal)
    assert (found.reason, store.uploads) == ("embed", [])


@pytest.mark.parametrize(("code", "calls"), [("server_error", 2), ("invalid_file", 1)])
async def test_what_the_model_refuses_is_added_again_and_what_has_no_text_is_not(
    code: str, calls: int
) -> None:
    store = Store()
    store.answers = [StoreFile("file-1", "failed", 0, code, "no")] * 2
    assert await made(store).outcome(row()) == Refusal(code, "no", requests=calls)
    assert len(store.attached) == calls


async def test_a_file_that_was_taken_out_meanwhile_is_added_again() -> None:
    store = Store()
    store.answers = [
        StoreFile("file-1", "gone", 0, "vector_store_file_not_found"),
        StoreFile("file-1", "completed", 1),
    ]
    found = await made(store).outcome(row())
    assert isinstance(found, StoredFile)
    assert found.requests == 2


async def test_an_upload_that_has_expired_before_it_was_attached_is_made_again() -> None:
    store = Store()
    store.answers = [UNKNOWN, StoreFile("file-1", "completed", 1)]
    assert isinstance(await made(store).outcome(row()), StoredFile)
    assert len({key for _, key in store.uploads}) == 1
    assert len(store.uploads) == 2
    store.answers = [UNKNOWN] * storing.MOST_EXPIRED
    assert await made(store).outcome(row()) == Refusal("invalid_value", "not found")
    store.answers = [Rejected("unsupported_file", "no text", "file_id")]
    assert await made(store).outcome(row()) == Refusal("unsupported_file", "no text")


async def test_rows_look_together_and_less_often_while_nothing_comes() -> None:
    store = Store()
    it = made(store)
    work = [asyncio.ensure_future(it.outcome(row(n))) for n in range(50)]
    await until(lambda: len(store.looks) == 6)
    assert all(len(each) == 50 for each in store.looks)
    assert store.slept[:6] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    first = store.attached[0][0]
    store.states[first] = StoreFile(first, "completed")
    await until(lambda: len(store.looks[-1]) == 49)
    assert 0.1 in store.slept[6:]
    store.settle()
    assert all(isinstance(each, StoredFile) for each in await asyncio.gather(*work))
    looks = len(store.looks)
    await asyncio.sleep(0.01)
    assert len(store.looks) == looks  # there are no waiters
    store.states.clear()
    later = asyncio.ensure_future(it.outcome(row()))
    await until(lambda: len(store.looks) > looks)
    store.settle()
    assert isinstance(await later, StoredFile)


async def test_a_row_that_is_given_up_is_not_looked_for_any_more() -> None:
    store = Store()
    it = made(store)
    one, two = (asyncio.ensure_future(it.outcome(row(n))) for n in (1, 2))
    await until(lambda: store.looks and len(store.looks[-1]) == 2)
    one.cancel()
    await until(lambda: len(store.looks[-1]) == 1)
    store.settle()
    assert isinstance(await two, StoredFile)


async def test_a_look_that_is_refused_is_told_to_all_who_wait() -> None:
    store = Store()
    store.fail = Rejected("method_not_allowed", "no")
    it = made(store)
    found = await asyncio.gather(*(it.outcome(row(n)) for n in range(3)))
    assert found == [Refusal("method_not_allowed", "no")] * 3
    store.fail = RuntimeError("odd")
    with pytest.raises(RuntimeError, match="odd"):
        await it.outcome(row())
