"""Vector stores on real parts: Kafka, Redis, gateways, a worker on the scripted engine,
milvus-lite, and the official client as it is."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import openai
import pytest
from openai.types import StaticFileChunkingStrategyObjectParam
from openai.types.vector_stores import VectorStoreFile

from tailrace import log
from tailrace.protocol import topics
from tailrace.protocol import vector_stores as acts
from tests.services.gateway.conftest import vectors
from tests.support import gateway_process as gp
from tests.support import sdk as sdk_client
from tests.support import waiting

pytest.importorskip("pymilvus", reason="needs tailrace[retrieval]")

CUT = StaticFileChunkingStrategyObjectParam(
    type="static", static={"max_chunk_size_tokens": 100, "chunk_overlap_tokens": 0}
)
# Each paragraph is one passage, and the question that is its text finds it with the score 1.
PARAGRAPHS = [(f"Paragraph {n:03}: " + f"word{n:03} " * 42).strip() for n in range(300)]
LONG = "\n\n".join(PARAGRAPHS).encode()


@pytest.fixture
async def client(searching: gp.Gateway) -> AsyncIterator[openai.AsyncOpenAI]:
    async with sdk_client.of(searching, max_retries=2) as made:
        yield made


async def uploaded(client: openai.AsyncOpenAI, name: str, data: bytes) -> str:
    return (await client.files.create(file=(name, data), purpose="assistants")).id


async def added(client: openai.AsyncOpenAI, store: str, file: str) -> VectorStoreFile:
    return await client.vector_stores.files.create_and_poll(
        file, vector_store_id=store, chunking_strategy=CUT, poll_interval_ms=100
    )


async def found(client: openai.AsyncOpenAI, store: str, query: str) -> list[tuple[str, float]]:
    page = await client.vector_stores.search(store, query=query, max_num_results=3)
    return [(hit.content[0].text, round(hit.score, 4)) for hit in page.data]


async def passages(kafka: str, store: str) -> dict[str, bytes | None]:
    """What the log has of a store's passages: the last record of each key."""
    offsets, replays = log.Offsets(kafka), log.Replays(kafka, size=1)
    partition = acts.passages_partition(store)
    kept: dict[str, bytes | None] = {}
    try:
        begin = (await offsets.beginnings(topics.PASSAGES, [partition]))[partition]
        end = (await offsets.ends(topics.PASSAGES, [partition]))[partition]
        async for batch in replays.read(topics.PASSAGES, partition, begin, end):
            for record in batch:
                key = (record.key or b"").decode()
                if key.startswith(f"{store}:"):
                    kept[key] = record.value
    finally:
        await offsets.stop()
        await replays.stop()
    return kept


async def test_openais_client_creates_searches_and_deletes(
    client: openai.AsyncOpenAI, searching: gp.Gateway, kafka: str
) -> None:
    notes = await uploaded(client, "notes.md", b"# Rivers\n\nThe Rhine flows north.")
    page = await uploaded(client, "p.html", b"<title>no</title><p>Lakes are <b>still</b>.")
    store = await client.vector_stores.create(name="Water", metadata={"a": "b"})
    assert (store.name, store.status, store.metadata) == ("Water", "completed", {"a": "b"})
    made = await added(client, store.id, notes)
    assert (made.status, made.last_error, made.vector_store_id) == ("completed", None, store.id)
    await client.vector_stores.files.create_and_poll(
        page, vector_store_id=store.id, attributes={"kind": "page", "n": 2}, poll_interval_ms=100
    )
    seen = await client.vector_stores.retrieve(store.id)
    assert (seen.file_counts.completed, seen.file_counts.total) == (2, 2)
    assert seen.usage_bytes == len("# Rivers\n\nThe Rhine flows north.") + len("Lakes are still.")
    assert await found(client, store.id, "Lakes are still.") == [
        ("Lakes are still.", 1.0),
        ("# Rivers\n\nThe Rhine flows north.", pytest.approx(0.5, abs=0.5)),
    ]
    filtered = await client.vector_stores.search(
        store.id,
        query=["Lakes are still.", "else"],
        filters={
            "type": "and",
            "filters": [
                {"type": "eq", "key": "kind", "value": "page"},
                {"type": "gt", "key": "n", "value": 1},
            ],
        },
    )
    assert [(hit.file_id, hit.filename, hit.attributes) for hit in filtered.data] == [
        (page, "p.html", {"kind": "page", "n": 2})
    ]
    text = await client.vector_stores.files.content(page, vector_store_id=store.id)
    assert [each.text async for each in text] == ["Lakes are still."]
    files = client.vector_stores.files.list(store.id)
    assert [each.id async for each in files] == [page, notes]

    changed = await client.vector_stores.update(
        store.id, name="Waters", expires_after={"anchor": "last_active_at", "days": 2}
    )
    assert (changed.name, changed.metadata) == ("Waters", {"a": "b"})
    assert changed.expires_at == changed.last_active_at + 2 * 86_400  # type: ignore[operator]

    async with sdk_client.of(searching, "bob", max_retries=2) as bob:
        assert [each async for each in bob.vector_stores.list()] == []
        with pytest.raises(openai.NotFoundError):
            await bob.vector_stores.search(store.id, query="Lakes are still.")
        with pytest.raises(openai.NotFoundError):
            await bob.vector_stores.delete(store.id)

    gone = await client.vector_stores.files.delete(page, vector_store_id=store.id)
    assert gone.deleted
    assert [text for text, _ in await found(client, store.id, "Lakes are still.")] == [
        "# Rivers\n\nThe Rhine flows north."
    ]
    assert (await client.vector_stores.delete(store.id)).deleted
    with pytest.raises(openai.NotFoundError):
        await client.vector_stores.retrieve(store.id)

    async def erased() -> bool:
        kept = await passages(kafka, store.id)
        return len(kept) == 2 and set(kept.values()) == {None}

    await waiting.eventually(erased, "no text of the store in the log", within_s=15)


async def test_what_has_no_text_is_refused_and_without_a_database_all_is(
    client: openai.AsyncOpenAI, searching: gp.Gateway, gateway: gp.Gateway
) -> None:
    store = await client.vector_stores.create()
    binary = await uploaded(client, "sheet.xlsx", b"no, it is text")
    with pytest.raises(openai.BadRequestError, match="has no text that can be searched"):
        await client.vector_stores.files.create(store.id, file_id=binary)
    with pytest.raises(openai.BadRequestError, match="was not found"):
        await client.vector_stores.files.create(store.id, file_id="file-other")
    async with sdk_client.of(searching, "bob", max_retries=2) as bob:
        secret = await uploaded(bob, "secret.txt", b"Bob's")
    with pytest.raises(openai.BadRequestError, match="was not found"):
        await client.vector_stores.files.create(store.id, file_id=secret)
    empty = await added(client, store.id, await uploaded(client, "a.html", b"<script>1</script>"))
    assert empty.status == "failed"
    assert empty.last_error is not None
    assert (empty.last_error.code, empty.last_error.message) == (
        "invalid_file",
        "The file holds no text.",
    )
    async with sdk_client.of(gateway, max_retries=2) as without:
        with pytest.raises(openai.NotFoundError, match="has no vector database"):
            await without.vector_stores.create()


async def test_a_chunk_that_is_too_long_for_the_model_is_found_by_its_beginning(
    client: openai.AsyncOpenAI,
) -> None:
    """Symptom: a file whose script needs more tokens than its characters say failed as a whole."""
    store = await client.vector_stores.create()
    dense = "川" * 12_000  # 9,000 tokens in one chunk, of which the model takes 4,096
    made = await client.vector_stores.files.create_and_poll(
        await uploaded(client, "dense.txt", dense.encode()),
        vector_store_id=store.id,
        chunking_strategy=StaticFileChunkingStrategyObjectParam(
            type="static", static={"max_chunk_size_tokens": 3_000, "chunk_overlap_tokens": 0}
        ),
        poll_interval_ms=100,
    )
    assert (made.status, made.last_error) == ("completed", None)
    (hit,) = (await client.vector_stores.search(store.id, query="川", max_num_results=3)).data
    assert hit.content[0].text == dense


async def test_files_that_are_added_together(client: openai.AsyncOpenAI) -> None:
    store = await client.vector_stores.create()
    files = [await uploaded(client, f"{n}.txt", f"Text {n}".encode()) for n in range(3)]
    batch = await client.vector_stores.file_batches.create_and_poll(
        store.id, file_ids=files, poll_interval_ms=100
    )
    assert (batch.status, batch.file_counts.completed) == ("completed", 3)
    listed = client.vector_stores.file_batches.list_files(batch.id, vector_store_id=store.id)
    assert [each.id async for each in listed] == files[::-1]
    assert (await found(client, store.id, "Text 1"))[0] == ("Text 1", 1.0)


async def test_a_gateway_is_killed_while_it_embeds_and_another_one_goes_on(
    folder: Path, kafka: str, redis_url: str, pool: str, keys: gp.Keys, searching: gp.Gateway
) -> None:
    """And a database that is lost is built again from the log, without the file and the model."""
    with gp.gateway(
        folder, kafka, redis_url, pool, keys, name="killed", **vectors(folder)
    ) as killed:
        async with sdk_client.of(killed, max_retries=2) as client:
            store = await client.vector_stores.create()
            file = await uploaded(client, "long.txt", LONG)
            await client.vector_stores.files.create(
                store.id,
                file_id=file,
                chunking_strategy=CUT,
            )

            async def begun() -> bool:
                return bool(await passages(kafka, store.id))

            await waiting.eventually(begun, "passages in the log", within_s=30)
        killed.kill()
    assert len(await passages(kafka, store.id)) < len(PARAGRAPHS)
    async with sdk_client.of(searching, max_retries=2) as client:

        async def completed() -> bool:
            now = await client.vector_stores.files.retrieve(file, vector_store_id=store.id)
            return now.status == "completed"

        await waiting.eventually(completed, "the file is completed", within_s=60)
        kept = await passages(kafka, store.id)
        assert len(kept) == len(PARAGRAPHS)
        assert None not in kept.values()
        await client.files.delete(file)
        questions = [PARAGRAPHS[n] for n in (0, 150, 299)]
        before = [await found(client, store.id, each) for each in questions]
        assert [hits[0] for hits in before] == [(each, 1.0) for each in questions]
    shutil.rmtree(folder / "vectors" / "killed.db")
    with gp.gateway(
        folder, kafka, redis_url, pool, keys, name="killed", **vectors(folder)
    ) as again:
        async with sdk_client.of(again, max_retries=2) as client:
            after = await asyncio.gather(*(found(client, store.id, each) for each in questions))
            assert after == before
            content = await client.vector_stores.files.content(file, vector_store_id=store.id)
            assert [each.text async for each in content] == PARAGRAPHS
