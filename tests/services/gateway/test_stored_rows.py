"""A pipeline that fills a vector store, on real parts. Its runner is killed in the middle, and all
rows are read again later: each one is in the store once."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from pipelines import rows, samples
from pipelines.examples import data
from tailrace import log
from tailrace.local import paths
from tailrace.protocol import topics
from tests.pipelines import trial
from tests.support import gateway_process as gp
from tests.support import waiting

pytest.importorskip("pymilvus", reason="needs tailrace[retrieval]")

ROWS = 24
KILL_AT = 4
WITHIN_S = 90.0  # some seconds on an idle machine


@pytest.fixture(scope="module")
def storing(
    folder: Path, kafka: str, redis_url: str, pool: str, keys: gp.Keys, engine: gp.Process
) -> Iterator[gp.Gateway]:
    vectors = {
        "TAILRACE_VECTORS": str(folder / "rows"),
        "TAILRACE_VECTORS_MODEL": gp.MODEL,
    }
    with gp.gateway(folder, kafka, redis_url, pool, keys, name="storing", **vectors) as running:
        yield running


class Runners:
    """Runners of one pipeline, as users start them."""

    def __init__(self, folder: Path, kafka: str, gateway: gp.Gateway, told: dict[str, Any]) -> None:
        self.file = folder / "rows.yaml"
        self.file.write_text(yaml.safe_dump(told))
        credential = folder / "rows.credential"
        credential.write_text(gateway.keys.token("alice"))
        self._log = folder / "rows.log"
        self._environ = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("TAILRACE_", "OTEL_"))},
            "PYTHONPATH": str(paths.ROOT),
            "TAILRACE_KAFKA": kafka,
            "TAILRACE_URL": gateway.url,
            "TAILRACE_CREDENTIAL_FILE": str(credential),
        }

    @contextlib.contextmanager
    def running(self, many: int = 1) -> Iterator[list[subprocess.Popen[bytes]]]:
        with self._log.open("ab") as out:
            started = [self._start("run", out) for _ in range(many)]
        try:
            yield started
        finally:
            for each in started:
                if each.poll() is None:
                    each.kill()
                each.wait()

    def stop(self, started: list[subprocess.Popen[bytes]]) -> None:
        for each in started:
            each.send_signal(signal.SIGTERM)
        assert [each.wait(40) for each in started] == [0] * len(started), self.tail()

    def asked(self, *words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "pipelines", words[0], str(self.file), *words[1:]],
            env=self._environ,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        return f"{done.stdout}{done.stderr}" if done.returncode else ""

    def tail(self) -> str:
        return self._log.read_text(errors="replace")[-4_000:]

    def _start(self, command: str, out: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "pipelines", command, str(self.file)],
            env=self._environ,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
        )


def pipeline(store: str) -> dict[str, Any]:
    return {
        "name": "stored-rows",
        "input": {"topic": "rows.in"},
        "where": "record.text",
        "embed": {
            "store": store,
            "text": "{{ record.text }}",
            "filename": "größe-{{ record.id }}.md",
            "attributes": {"number": "record.id"},
        },
        "output": {"topic": "rows.out"},
        "dead_letters": {"topic": "rows.dead"},
        "batch": {"records": 30, "seconds": 1},
    }


async def listed(client: httpx.AsyncClient, store: str, **query: str) -> list[dict[str, Any]]:
    answer = await client.get(f"/v1/vector_stores/{store}/files", params={"limit": 100, **query})
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["data"]
    return found


async def search(client: httpx.AsyncClient, store: str, text: str) -> Any:
    answer = await client.post(f"/v1/vector_stores/{store}/search", json={"query": text})
    return answer.json() if answer.status_code == 200 else answer.status_code


async def outputs(kafka: str, many: int, runners: Runners) -> list[Any]:
    """The committed outputs, once there are so many."""
    found: list[Any] = []

    async def there() -> bool:
        nonlocal found
        found = await trial.consumed(kafka, "rows.out")
        return len(found) >= many

    try:
        await waiting.eventually(there, f"{many} outputs", within_s=WITHIN_S)
    except AssertionError as error:
        raise AssertionError(f"{error}:\n{runners.tail()}") from error
    return found


@pytest.mark.nightly
@pytest.mark.timeout(300)
async def test_each_row_is_in_the_store_once_though_its_runner_is_killed(
    folder: Path, kafka: str, storing: gp.Gateway
) -> None:
    texts = [f"Row {n:03}:" + f" word{n:03}" * 5 for n in range(ROWS)]
    values = [json.dumps({"id": n, "text": text}).encode() for n, text in enumerate(texts)]
    broken = [b'{"id": 1}', b'{"id": 2, "text": "cut']  # no member `text`, and no JSON
    generated = [
        data.ExampleRecord(f"k{n}".encode(), value) for n, value in enumerate([*values, *broken])
    ]
    await log.create_topics(kafka, ["rows.in", "rows.out", "rows.dead"], partitions=2)
    await samples.write(kafka, "rows.in", generated)
    async with storing.client() as client:
        store = (await client.post("/v1/vector_stores", json={"name": "rows"})).json()["id"]
        told = pipeline(store)
        runners = Runners(folder, kafka, storing, told)

        async def some() -> bool:
            return len(await listed(client, store, filter="completed")) >= KILL_AT

        with runners.running() as started:
            await waiting.eventually(some, "rows in the store", within_s=WITHIN_S)
            started[0].kill()
        with runners.running(2) as started:
            written = await outputs(kafka, ROWS, runners)
            runners.stop(started)

        files = await listed(client, store)
        assert [each["status"] for each in files] == ["completed"] * ROWS
        assert sorted(each["attributes"]["number"] for each in files) == list(range(ROWS))
        sources = {each["attributes"]["source"]: each["id"] for each in files}
        assert len(sources) == ROWS
        assert len(written) == ROWS
        for record in written:
            value = json.loads(record.value)
            at = value["source"]
            place = f"{at['topic']}/{at['partition']}/{at['offset']}"
            assert dict(record.headers)[rows.SOURCE].decode().startswith(f"{place}/")
            assert (value["file"], value["store"]) == (sources.pop(place), store)
            assert value["passages"] == 1
        assert sources == {}
        dead = await trial.consumed(kafka, "rows.dead")
        assert {dict(each.headers)[rows.REASON] for each in dead} == {b"unreadable"}
        assert len(dead) == len(broken)
        [first] = [
            hit
            for hit in (await search(client, store, texts[7]))["data"]
            if hit["content"][0]["text"] == texts[7]
        ]
        assert (first["score"], first["filename"]) == (pytest.approx(1.0), "größe-7.md")

        # Everything again, in another revision: all rows are asked for, and none is added.
        runners.file.write_text(yaml.safe_dump({**told, "version": 2}))

        async def replayed() -> bool:  # the killed runner is a member for some seconds
            return not await asyncio.to_thread(
                runners.asked, "replay", "--from", "earliest", "--yes"
            )

        await waiting.eventually(replayed, "the offsets are moved back", within_s=WITHIN_S)
        with runners.running() as started:
            again = await outputs(kafka, 2 * ROWS, runners)
            runners.stop(started)
        assert len(again) == 2 * ROWS
        assert {json.loads(each.value)["file"] for each in again} == {f["id"] for f in files}
        assert await listed(client, store) == files
    attached, passages = set(), set()
    for record in await trial.consumed(kafka, topics.VECTOR_STORES):
        key = (record.key or b"").decode()
        attached |= {key} if key.startswith(f"{store}:f:") else set()
    for record in await trial.consumed(kafka, topics.PASSAGES):
        key = (record.key or b"").decode()
        passages |= {key} if key.startswith(f"{store}:") else set()
    assert len(attached) == ROWS
    assert len(passages) == ROWS

    async with storing.client("bob") as bob:
        assert await search(bob, store, texts[7]) == 404
        own = (await bob.post("/v1/vector_stores", json={})).json()["id"]
        assert (await search(bob, own, texts[7]))["data"] == []
        body = {"file_id": files[0]["id"]}
        stolen = await bob.post(f"/v1/vector_stores/{own}/files", json=body)
        assert stolen.status_code == 400
