"""Vector stores: their calls, over a log and a database in memory. A task embeds as a worker
would."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tailrace.protocol import records, topics
from tests.support import gateway_parts, gateway_process, log_contract, memory_vectors
from tests.unit.gateway.test_app import Service, serving

STATIC = {"type": "static", "static": {"max_chunk_size_tokens": 100, "chunk_overlap_tokens": 0}}
LONG = "\n\n".join(f"{n:03} " * 90 for n in range(200)).encode()


@pytest.fixture
def keys(tmp_path: Path) -> gateway_process.Keys:
    return gateway_process.Keys.make(tmp_path)


def vector(text: str | list[int]) -> bytes:
    """Of letters, so that equal texts are alike."""
    assert isinstance(text, str)
    counts = [1.0 + text.count(letter) for letter in "abcdefghijklmnopqrstuvwxyz0123456789"]
    return struct.pack(f"<{len(counts)}f", *counts)


async def work(service: Service, error: tuple[str, str] | None) -> None:
    """Answer every request for embeddings."""
    position = 0
    while True:
        requests = service.requests()
        for request in requests[position:]:
            assert request.embed is not None
            gateway_parts.put_vectors(
                service.broker,
                request,
                *(() if error else (vector(each) for each in request.embed.inputs)),
                error=error,
            )
        position = len(requests)
        await asyncio.sleep(0.01)


def with_vectors(
    keys: gateway_process.Keys, database: memory_vectors.MemoryVectors, model: str = "m"
) -> contextlib.AbstractAsyncContextManager[Service]:
    return serving(
        keys,
        vectors=database,
        TAILRACE_VECTORS="/vectors",
        TAILRACE_VECTORS_MODEL=model,
        TAILRACE_RECORDS_VERSION="2",
    )


@contextlib.asynccontextmanager
async def searching(
    keys: gateway_process.Keys,
    database: memory_vectors.MemoryVectors | None = None,
    error: tuple[str, str] | None = None,
) -> AsyncIterator[tuple[Service, httpx.AsyncClient]]:
    async with (
        with_vectors(keys, database or memory_vectors.MemoryVectors()) as service,
        service.client() as client,
    ):
        worker = asyncio.ensure_future(work(service, error))
        try:
            yield service, client
        finally:
            worker.cancel()


async def post(client: httpx.AsyncClient, path: str, body: Any = None) -> dict[str, Any]:
    answer = await client.post(f"/v1/vector_stores{path}", json=body or {})
    assert answer.status_code == 200, answer.text
    answer_body: dict[str, Any] = answer.json()
    return answer_body


async def get(client: httpx.AsyncClient, path: str) -> dict[str, Any]:
    answer = await client.get(f"/v1/vector_stores{path}")
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


async def upload(client: httpx.AsyncClient, data: bytes, name: str = "notes.md") -> str:
    answer = await client.post(
        "/v1/files", data={"purpose": "user_data"}, files={"file": (name, data)}
    )
    return str(answer.json()["id"])


async def ended(client: httpx.AsyncClient, store: str, file: str) -> dict[str, Any]:
    for _ in range(500):
        actual = await get(client, f"/{store}/files/{file}")
        if actual["status"] != "in_progress":
            return actual
        await asyncio.sleep(0.01)
    raise AssertionError("it is in progress still")


async def test_a_file_is_cut_embedded_and_found(keys: gateway_process.Keys) -> None:
    async with searching(keys) as (service, client):
        file, other = await upload(client, LONG), await upload(client, b"zebra zebra", "z.txt")
        store = (await post(client, "", {"name": "S", "file_ids": [other]}))["id"]
        made = await post(
            client,
            f"/{store}/files",
            {"file_id": file, "chunking_strategy": STATIC, "attributes": {"kind": "long"}},
        )
        assert made["chunking_strategy"] == STATIC
        assert (await ended(client, store, file))["last_error"] is None
        assert (await ended(client, store, other))["status"] == "completed"
        store_state = await get(client, f"/{store}")
        assert store_state["file_counts"] == {
            "in_progress": 0,
            "completed": 2,
            "failed": 0,
            "cancelled": 0,
            "total": 2,
        }
        page = await post(client, f"/{store}/search", {"query": ["zebra zebra"]})
        first = page["data"][0]
        assert (first["file_id"], first["filename"], first["content"]) == (
            other,
            "z.txt",
            [{"type": "text", "text": "zebra zebra"}],
        )
        assert first["score"] == pytest.approx(1.0)
        assert len(page["data"]) == 10
        only = await post(
            client,
            f"/{store}/search",
            {
                "query": "zebra zebra",
                "filters": {"type": "eq", "key": "kind", "value": "long"},
                "max_num_results": 50,
            },
        )
        assert {each["file_id"] for each in only["data"]} == {file}
        assert len(only["data"]) == 50
        near = await post(
            client,
            f"/{store}/search",
            {"query": "zebra zebra", "ranking_options": {"score_threshold": 0.999}},
        )
        assert [each["file_id"] for each in near["data"]] == [other]
        content = await get(client, f"/{store}/files/{file}/content")
        assert [each["text"] for each in content["data"]] == [
            (f"{n:03} " * 90).strip() for n in range(200)
        ]
        # Behind interactive requests, once each; the question is interactive.
        counts: collections.Counter[str] = collections.Counter()
        for record in service.broker.appended:
            request = records.decode_request(record.value)
            if request is not None and request.embed is not None:
                counts[record.topic] += len(request.embed.inputs)
        assert counts == {
            topics.requests("default", "batch"): 201,
            topics.requests("default", "interactive"): 3,
        }


async def test_a_file_is_described_added_again_and_taken_out(keys: gateway_process.Keys) -> None:
    database = memory_vectors.MemoryVectors()
    async with searching(keys, database) as (service, client):
        file = await upload(client, b"some words")
        store = (await post(client, ""))["id"]
        body = {"file_id": file, "attributes": {"n": 1}}
        await post(client, f"/{store}/files", body)
        await ended(client, store, file)
        before = len(service.requests())
        same = await post(client, f"/{store}/files", body)
        assert (same["status"], same["passages"]) == ("completed", 1)
        again = await post(client, f"/{store}/files", {**body, "attributes": {"n": 2}})
        assert (again["status"], again["attributes"]) == ("completed", {"n": 2.0})
        change = await post(client, f"/{store}/files/{file}", {"attributes": {}})
        assert change["attributes"] == {}
        assert len(service.requests()) == before
        await post(client, f"/{store}/files", {**body, "chunking_strategy": STATIC})
        await ended(client, store, file)
        assert len((await get(client, f"/{store}/files"))["data"]) == 1
        await log_contract.until(lambda: len(database.rows) == 1, 5)

        deletion = await client.delete(f"/v1/vector_stores/{store}/files/{file}")
        assert deletion.json() == {
            "id": file,
            "object": "vector_store.file.deleted",
            "deleted": True,
        }
        assert (await client.get(f"/v1/vector_stores/{store}/files/{file}")).status_code == 404
        assert (await post(client, f"/{store}/search", {"query": "some words"}))["data"] == []
        await log_contract.until(lambda: not database.rows, 5)


def last_values(service: Service, topic: str) -> dict[str, bytes | None]:
    return {
        (each.key or b"").decode(): each.value
        for each in service.broker.appended
        if each.topic == topic
    }


async def test_of_a_store_that_is_deleted_nothing_is_left_in_the_log(
    keys: gateway_process.Keys,
) -> None:
    database = memory_vectors.MemoryVectors()
    async with searching(keys, database) as (service, client):
        file = await upload(client, LONG)
        store = (await post(client, "", {"file_ids": [file]}))["id"]
        await ended(client, store, file)
        await log_contract.until(lambda: bool(database.rows), 5)
        answer = await client.delete(f"/v1/vector_stores/{store}")
        assert answer.json()["deleted"]
        for path in ("", "/files"):
            assert (await client.get(f"/v1/vector_stores/{store}{path}")).status_code == 404
        assert (await get(client, ""))["data"] == []
        topics_ = (topics.VECTOR_STORES, topics.PASSAGES)

        def nothing() -> bool:
            remaining = [
                value for topic in topics_ for value in last_values(service, topic).values()
            ]
            return bool(remaining) and set(remaining) == {None}

        await log_contract.until(nothing, 5)
        await log_contract.until(lambda: not database.rows, 5)


async def test_all_of_a_principal_is_deleted_and_nothing_of_another(
    keys: gateway_process.Keys,
) -> None:
    database = memory_vectors.MemoryVectors()
    async with searching(keys, database) as (service, client), service.client("bob") as bob:
        for number in range(2):
            file = await upload(client, f"words {number}".encode())
            store = (await post(client, "", {"file_ids": [file]}))["id"]
            await ended(client, store, file)
        kept = await upload(bob, b"Bob's")
        other = (await post(bob, "", {"file_ids": [kept]}))["id"]
        await ended(bob, other, kept)
        await log_contract.until(lambda: len(database.rows) == 3, 5)
        answer = (await client.delete("/v1/vector_stores")).json()
        assert [each["deleted"] for each in answer["data"]] == [True, True]
        assert (await get(client, ""))["data"] == []
        await log_contract.until(lambda: len(database.rows) == 1, 5)
        remaining = [v for v in last_values(service, topics.PASSAGES).values() if v is not None]
        assert len(remaining) == 1
        assert b"Bob's" in remaining[0]
        assert (await post(bob, f"/{other}/search", {"query": "Bob's"}))["data"][0]["score"] > 0.9


async def test_another_principal_gets_what_an_unknown_one_gets(keys: gateway_process.Keys) -> None:
    async with searching(keys) as (service, client), service.client("bob") as bob:
        file = await upload(client, b"words")
        store = (await post(client, "", {"file_ids": [file]}))["id"]
        await ended(client, store, file)
        unknown = store[:-4] + "AAAA"
        for method, path, body in (
            ("GET", "", None),
            ("POST", "", {"name": "x"}),
            ("DELETE", "", None),
            ("POST", "/search", {"query": "words"}),
            ("GET", "/files", None),
            ("POST", "/files", {"file_id": file}),
            ("GET", f"/files/{file}", None),
            ("GET", f"/files/{file}/content", None),
            ("DELETE", f"/files/{file}", None),
        ):
            observations = [
                await bob.request(method, f"/v1/vector_stores/{name}{path}", json=body)
                for name in (store, unknown, "x")
            ]
            assert [each.status_code for each in observations] == [404] * 3, (method, path)
            for answer, name in zip(observations, (store, unknown, "x"), strict=True):
                assert answer.json()["error"]["message"] == (
                    f"Vector store with id '{name}' not found."
                )
        assert (await get(bob, ""))["data"] == []
        assert (await get(client, f"/{store}"))["name"] == ""


@pytest.mark.parametrize(
    ("refused", "message"),
    [(("context_length_exceeded", "too long"), "too long"), (("invalid_value", "no"), "no")],
)
async def test_a_file_that_the_model_refuses_has_failed(
    keys: gateway_process.Keys, refused: tuple[str, str], message: str
) -> None:
    async with searching(keys, error=refused) as (_, client):
        file = await upload(client, b"words")
        store = (await post(client, "", {"file_ids": [file]}))["id"]
        actual = await ended(client, store, file)
        assert (actual["status"], actual["last_error"]) == (
            "failed",
            {"code": "server_error", "message": message},
        )
        assert (await get(client, f"/{store}/files?filter=completed"))["data"] == []
        assert len((await get(client, f"/{store}/files?filter=failed"))["data"]) == 1


async def test_a_batch_is_cancelled(keys: gateway_process.Keys) -> None:
    async with (
        with_vectors(keys, memory_vectors.MemoryVectors()) as service,
        service.client() as client,
    ):  # nobody embeds
        files = [await upload(client, f"words {n}".encode()) for n in range(2)]
        store = (await post(client, ""))["id"]
        batch = await post(client, f"/{store}/file_batches", {"file_ids": files})
        assert (batch["status"], batch["file_counts"]["in_progress"]) == ("in_progress", 2)
        name = batch["id"]
        assert (await get(client, f"/{store}/file_batches/{name}")) == batch
        cancelled = await post(client, f"/{store}/file_batches/{name}/cancel")
        assert (cancelled["status"], cancelled["file_counts"]["cancelled"]) == ("cancelled", 2)
        listing = await get(client, f"/{store}/file_batches/{name}/files?order=asc")
        assert [each["id"] for each in listing["data"]] == files
        before = await get(client, f"/{store}/files?order=asc&before={files[1]}")
        assert [each["id"] for each in before["data"]] == files[:1]
        missing = await client.get(f"/v1/vector_stores/{store}/file_batches/x")
        assert missing.status_code == 404


async def test_a_database_that_is_away_is_503_and_what_was_added_meanwhile_is_found_later(
    keys: gateway_process.Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.retrieval.passages.CAUGHT_UP_S", 0.2)
    monkeypatch.setattr("gateway.retrieval.passages.RETRY_S", 0.05)
    monkeypatch.setattr("gateway.retrieval.ingestion.RETRY_S", 0.05)
    database = memory_vectors.MemoryVectors()
    async with searching(keys, database) as (_, client):
        first, second = await upload(client, b"words"), await upload(client, b"more")
        store = (await post(client, "", {"file_ids": [first]}))["id"]
        await ended(client, store, first)
        database.away = True
        answer = await client.post(f"/v1/vector_stores/{store}/search", json={"query": "words"})
        assert answer.status_code == 503
        assert float(answer.headers["retry-after"]) > 0
        await post(client, f"/{store}/files", {"file_id": second})
        database.away = False
        assert (await ended(client, store, second))["status"] == "completed"
        page = await post(client, f"/{store}/search", {"query": "more"})
        assert page["data"][0]["file_id"] == second


async def test_without_a_pool_for_its_model_nothing_is_added(keys: gateway_process.Keys) -> None:
    async with (
        with_vectors(keys, memory_vectors.MemoryVectors(), "gone") as service,
        service.client() as client,
    ):
        file = await upload(client, b"words")
        answer = await client.post("/v1/vector_stores", json={"file_ids": [file]})
        assert answer.status_code == 503
        assert "No pool of this deployment offers 'gone'" in answer.text
        assert (await get(client, ""))["data"] == []


async def test_without_a_database_the_api_says_so(keys: gateway_process.Keys) -> None:
    async with serving(keys) as service, service.client() as client:
        answer = await client.post("/v1/vector_stores", json={})
        assert answer.status_code == 404
        assert "This deployment has no vector database" in answer.text
