"""A pipeline that fills a vector store while all that it rests on is killed, judged by the store.

Two runners share an input of four partitions. Every few seconds a runner, a gateway, a worker,
Redis or the broker gets SIGKILL. At the end:

- each section that can be read is one file of the store, completed, and one output names it;
- each one that cannot be stored has one dead letter;
- the log has the passages of one attachment for each file, and no others;
- after a replay of everything in another revision, neither the store nor the log has more.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import httpx
import yaml

from bench import stacks
from pipelines import definition, rows, samples
from pipelines.examples import data
from tailrace import log
from tailrace.local import dev_credentials, paths
from tailrace.protocol import topics
from tests.pipelines import trial

EXAMPLE: Final = paths.ROOT / "pipelines/examples/manuals.yaml"
MODEL: Final = "smollm2-135m-instruct"


def run(scratch: Path, count: int, seed: int, every_s: float, rounds: int) -> list[str]:
    """The whole trial, with two gateways. Returns what is wrong. Takes arguments like
    `trial.run`."""
    generated = list(data.manuals(count, seed))
    # Not within the data folder: it may not be there yet.
    vectors = tempfile.mkdtemp(prefix="vectors-", dir=scratch)
    settings = {
        "TAILRACE_VECTORS": vectors,
        "TAILRACE_VECTORS_MODEL": MODEL,
        "TAILRACE_RECORDS_VERSION": "2",
        "PYTHONPATH": str(paths.ROOT),
    }
    with stacks.tailrace(scratch, gateways=2, workers=2, settings=settings) as side:
        assert side.data is not None
        credential = scratch / "store.credential"
        credential.write_text(dev_credentials.issue(side.data, "pipelines", 3 * 3600))
        store = samples.store(side.urls[0], credential)
        told = yaml.safe_load(EXAMPLE.read_text()) | {
            "name": "manuals-trial",
            "batch": {"records": 50, "seconds": 1},
        }
        told["embed"]["store"] = store
        file = scratch / "manuals-trial.yaml"
        file.write_text(yaml.safe_dump(told))
        pipeline = definition.parse(file.read_bytes())
        names = [pipeline.input.topic, *pipeline.outputs]
        asyncio.run(log.create_topics(side.kafka, names, partitions=trial.PARTITIONS))
        asyncio.run(trial.produce(side.kafka, pipeline.input.topic, generated))
        runners = trial.Runners(side, file, scratch)
        wrong: list[str] = []
        try:
            for version in (1, 2):
                file.write_text(yaml.safe_dump({**told, "version": version}))
                if version == 2:
                    runners.replay()
                for _ in range(2):
                    runners.start()
                # With version 2 nothing is embedded any more, so a few kills are enough.
                kills = rounds if version == 1 else 2
                killed = trial.disturb(side, runners, seed, every_s, kills)
                runners.stop()
                trial.say(f"version {version}: {killed} kills")
                judge = _judged(side, pipeline, generated, credential, store, version)
                wrong += asyncio.run(judge)
        finally:
            for process in runners.running:
                process.kill()
                process.wait()
    return wrong


async def _judged(
    side: stacks.Side,
    pipeline: definition.Pipeline,
    generated: list[data.ExampleRecord],
    credential: Path,
    store: str,
    version: int,
) -> list[str]:
    """What is wrong after so many versions; empty if nothing is."""
    wrong: list[str] = []

    def expect(what: str, found: object, wanted: object) -> None:
        trial.say(f"  {what}: {found} (wanted {wanted})")
        if found != wanted:
            wrong.append(f"version {version}: {what}: {found}, wanted {wanted}")

    stored = sum(each.planted is not None for each in generated)
    files = await _files(side.urls[0], credential, store)
    expect("files in the store", len(files), stored)
    expect("of them completed", sum(each["status"] == "completed" for each in files), stored)
    sources = {each["attributes"]["source"]: each["id"] for each in files}
    expect("rows in the store", len(sources), stored)
    found = await trial.consumed(side.kafka, pipeline.output.topic)
    outputs: Counter[str] = Counter(dict(r.headers)[rows.PIPELINE].decode() for r in found)
    expect("outputs by revision", sorted(outputs.values()), [stored] * version)
    named = [json.loads(each.value) for each in found]
    right = sum(sources.get(_source(each["source"])) == each["file"] for each in named)
    expect("outputs that name the row's file", right, stored * version)
    dead = await trial.consumed(side.kafka, pipeline.dead_letters.topic)
    broken = sum(each.broken for each in generated)
    expect("dead letters", len(dead), broken * version)
    passages = await _keys(side.kafka, topics.PASSAGES, lambda key: key.startswith(f"{store}:"))
    expect("passages in the log", len(passages), stored)
    attached = await _keys(
        side.kafka, topics.VECTOR_STORES, lambda key: key.startswith(f"{store}:f:")
    )
    expect("attachments that stand", len(attached), stored)
    return wrong


def _source(at: dict[str, Any]) -> str:
    return f"{at['topic']}/{at['partition']}/{at['offset']}"


async def _files(url: str, credential: Path, store: str) -> list[dict[str, Any]]:
    headers = {"authorization": f"Bearer {credential.read_text()}"}
    found: list[dict[str, Any]] = []
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=60.0) as client:
        query = {"limit": "100"}
        while True:
            answer = await client.get(f"/v1/vector_stores/{store}/files", params=query)
            answer.raise_for_status()
            found += answer.json()["data"]
            if not answer.json()["has_more"]:
                return found
            query["after"] = answer.json()["last_id"]


async def _keys(kafka: str, topic: str, wanted: Callable[[str], bool]) -> list[str]:
    """Keys whose last record is no tombstone."""
    last = {(r.key or b"").decode(): r.value for r in await trial.consumed(kafka, topic)}
    return [key for key, value in last.items() if wanted(key) and value is not None]
