"""Writes the file and the records of an example, and reads the newest records of a topic."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import importlib.resources
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import httpx

from pipelines import definition
from pipelines.examples import data
from tailrace import log

# Factor for the range before the end of a partition: offsets of transactions are not records.
_BACK = 4
# The placeholder for the id of a store in the files of examples, and the store's name.
STORE: Final = b"vs_made-by-the-example-command"
STORE_NAME: Final = "tailrace-manuals"


class NoStore(Exception):
    """A store could not be made. The text says why."""


class What(enum.StrEnum):
    """Topics of a pipeline."""

    INPUT = "input"
    OUTPUT = "output"
    ALERTS = "alerts"
    DEAD = "dead"


def file(name: str) -> bytes:
    """The file of an example."""
    return importlib.resources.files("pipelines.examples").joinpath(f"{name}.yaml").read_bytes()


def store(url: str, credential: Path, transport: httpx.BaseTransport | None = None) -> str:
    """The id of the caller's vector store for examples, which is created if missing.

    Raises:
        NoStore
    """
    try:
        headers = {"authorization": f"Bearer {credential.read_text().strip()}"}
        with httpx.Client(
            base_url=url, headers=headers, timeout=30.0, transport=transport
        ) as client:
            query: dict[str, str] = {"limit": "100", "order": "asc"}
            while True:
                page = _json(client.get("/v1/vector_stores", params=query))
                for each in page["data"]:
                    if each["name"] == STORE_NAME and each["status"] != "expired":
                        return str(each["id"])
                if not page["has_more"]:
                    break
                query["after"] = page["last_id"]
            return str(_json(client.post("/v1/vector_stores", json={"name": STORE_NAME}))["id"])
    except OSError as error:
        raise NoStore(f"{credential}: {error.strerror}") from error
    except (httpx.HTTPError, KeyError, TypeError, ValueError) as error:
        raise NoStore(f"{url}: {type(error).__name__}: {error}") from error


def _json(answer: httpx.Response) -> Any:
    if answer.status_code == 200:
        return answer.json()
    try:
        why = answer.json()["error"]["message"]
    except (KeyError, TypeError, ValueError):
        why = answer.text[:200]
    raise NoStore(f"the gateway says {answer.status_code}: {why}")


def topic(pipeline: definition.Pipeline, what: What) -> str | None:
    """The name of a pipeline's topic; None if the pipeline has none."""
    return {
        What.INPUT: pipeline.input.topic,
        What.OUTPUT: pipeline.output.topic,
        What.ALERTS: pipeline.alert.topic if pipeline.alert else None,
        What.DEAD: pipeline.dead_letters.topic,
    }[what]


async def write(kafka: str, topic: str, records: Iterable[data.ExampleRecord]) -> None:
    """Append records; equal keys go to one partition.

    Raises:
        LogUnavailable: no answer, or a record was refused.
    """
    offsets, writer = log.Offsets(kafka), log.Writer(kafka)
    running = asyncio.create_task(writer.run())
    try:
        partitions = await offsets.partitions(topic)
        await asyncio.gather(
            *(
                writer.append(
                    topic, zlib.crc32(each.key) % partitions, each.key.decode(), each.value
                )
                for each in records
            )
        )
    except (log.AppendFailed, log.NotAppended) as error:
        raise log.LogUnavailable(f"{topic}: {error}") from error
    finally:
        await writer.stop()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await offsets.stop()


async def newest(kafka: str, topic: str, records: int) -> list[log.Record]:
    """The newest committed records of each partition, at most `records`, oldest first.

    Raises:
        LogUnavailable
        HistoryLost: the topic lost records while it was read.
    """
    offsets, replays = log.Offsets(kafka), log.Replays(kafka, read_committed=True)
    newest_records: list[log.Record] = []
    try:
        numbers = range(await offsets.partitions(topic))
        begins, ends = await offsets.beginnings(topic, numbers), await offsets.ends(topic, numbers)
        for number in numbers:
            first = max(begins[number], ends[number] - _BACK * records)
            there: list[log.Record] = []
            async with contextlib.aclosing(
                replays.read(topic, number, first, ends[number])
            ) as batches:
                async for batch in batches:
                    there += batch
            newest_records += there[-records:]
    finally:
        await offsets.stop()
        await replays.stop()
    return sorted(newest_records, key=lambda record: record.timestamp)
