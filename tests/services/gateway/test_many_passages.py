"""Many passages, folded twice, with `kill -9` in between: same count, same answers.

`make nightly` has ten thousand.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import openai
import pytest

from tailrace import log
from tailrace.protocol import topics
from tailrace.protocol import vector_stores as acts
from tests.services.gateway.conftest import vectors
from tests.services.gateway.test_vector_stores import CUT, found, passages
from tests.support import gateway_process as gp
from tests.support import sdk as sdk_client
from tests.support import waiting
from tests.support.long_runs import LONG

pytest.importorskip("pymilvus", reason="needs tailrace[retrieval]")

pytestmark = pytest.mark.nightly

FILES, EACH = 16 if LONG else 4, 625  # an upload of text has at most 256 KiB


def text(number: int) -> str:
    return (f"Paragraph {number:05}: " + f"word{number:05} " * 36).strip()


async def completed(client: openai.AsyncOpenAI, store: str) -> int:
    return (await client.vector_stores.retrieve(store)).file_counts.completed


async def count(client: openai.AsyncOpenAI, store: str) -> int:
    """Passages that the API shows."""
    rows = 0
    async for file in client.vector_stores.files.list(store):
        page = await client.vector_stores.files.content(file.id, vector_store_id=store)
        rows += len([each async for each in page])
    return rows


async def answers(client: openai.AsyncOpenAI, store: str) -> list[list[tuple[str, float]]]:
    questions = [text(number) for number in range(0, FILES * EACH, 500)]
    return [await found(client, store, each) for each in questions]


async def appended(kafka: str, kept: Sequence[tuple[str, bytes]], store: str) -> None:
    """All records once more."""
    writer = log.Writer(kafka, client_id="again", deadline_s=60)
    sending = asyncio.ensure_future(writer.run())
    try:
        partition = acts.passages_partition(store)
        for start in range(0, len(kept), 500):
            pending = [
                writer.append(topics.PASSAGES, partition, key, value)
                for key, value in kept[start : start + 500]
            ]
            for each in pending:
                await each
    finally:
        await writer.stop()
        sending.cancel()


POSITION = """
import sys
from tailrace.vectors import milvus
database = milvus.open_database(sys.argv[1], "first", bytes.fromhex(sys.argv[2]))
database.open()
print(database.positions()[int(sys.argv[3])])
"""


def position(folder: Path, tag: bytes, partition: int) -> int:
    """How far the database has come. In a process of its own: milvus-lite keeps the file locked
    until the process ends that has opened it."""
    url = vectors(folder)["TAILRACE_VECTORS"]
    command = [sys.executable, "-c", POSITION, url, tag.hex(), str(partition)]
    return int(subprocess.run(command, check=True, capture_output=True, timeout=60).stdout)


@pytest.mark.timeout(900)
async def test_many_passages_are_folded_twice_with_kills(
    tmp_path: Path, kafka: str, redis_url: str, pool: str, keys: gp.Keys, engine: gp.Process
) -> None:
    def gateway(name: str) -> contextlib.AbstractContextManager[gp.Gateway]:
        return gp.gateway(tmp_path, kafka, redis_url, pool, keys, name=name, **vectors(tmp_path))

    layout = await log.layout(kafka)
    began = time.monotonic()
    with gateway("first") as first:
        async with sdk_client.of(first, max_retries=2) as client:
            store = (await client.vector_stores.create()).id
            for file in range(FILES):
                body = "\n\n".join(text(file * EACH + n) for n in range(EACH)).encode()
                name = (await client.files.create(file=("a.txt", body), purpose="assistants")).id
                await client.vector_stores.files.create(store, file_id=name, chunking_strategy=CUT)

            async def half() -> bool:
                return len(await passages(kafka, store)) >= FILES * EACH // 2

            await waiting.eventually(half, "half of it is in the log", within_s=300)
        first.kill()
    print(f"half embedded: {time.monotonic() - began:.1f} s")
    with gateway("first") as first:
        async with sdk_client.of(first, max_retries=2) as client:

            async def all_done() -> bool:
                return await completed(client, store) == FILES

            await waiting.eventually(all_done, "all files are completed", within_s=300)
            print(f"all embedded: {time.monotonic() - began:.1f} s")
            kept = await passages(kafka, store)
            before = await answers(client, store)
            assert await count(client, store) == len(kept) == FILES * EACH
            assert [hits[0][1] for hits in before] == [1.0] * len(before)
            started = time.monotonic()
            await appended(kafka, [(k, v) for k, v in kept.items() if v is not None], store)
        first.kill()
    folded = position(tmp_path, layout.tag, acts.passages_partition(store))
    print(f"of {2 * len(kept)} records folded when it was killed: {folded}")
    assert folded < 2 * len(kept)
    print(f"second copy in the log, and killed: {time.monotonic() - started:.1f} s")
    with gateway("first") as first:
        started = time.monotonic()
        async with sdk_client.of(first, max_retries=2) as client:
            # 503 until the rest is folded.
            after = await answers(client.with_options(max_retries=60), store)
            print(f"folded and answered again: {time.monotonic() - started:.1f} s")
            assert after == before
            assert await count(client, store) == FILES * EACH
