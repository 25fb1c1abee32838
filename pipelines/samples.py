"""Writes the records of an example, and reads the newest records of a topic."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import importlib.resources
import zlib
from collections.abc import Iterable

from pipelines import definition
from pipelines.examples import data
from tailrace import log

# How far before its end a partition is looked into: offsets of transactions are no records.
_BACK = 4


class What(enum.StrEnum):
    """Topics of a pipeline."""

    INPUT = "input"
    OUTPUT = "output"
    ALERTS = "alerts"
    DEAD = "dead"


def file(name: str) -> bytes:
    """The file of an example."""
    return importlib.resources.files("pipelines.examples").joinpath(f"{name}.yaml").read_bytes()


def topic(pipeline: definition.Pipeline, what: What) -> str | None:
    """Its name; None: the pipeline has none."""
    return {
        What.INPUT: pipeline.input.topic,
        What.OUTPUT: pipeline.output.topic,
        What.ALERTS: pipeline.alert.topic if pipeline.alert else None,
        What.DEAD: pipeline.dead_letters.topic,
    }[what]


async def write(kafka: str, topic: str, generated: Iterable[data.Generated]) -> None:
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
                for each in generated
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
    """At most so many committed records of each partition, the newest ones, oldest first.

    Raises:
        LogUnavailable
        HistoryLost: the topic lost records while it was read.
    """
    offsets, replays = log.Offsets(kafka), log.Replays(kafka, read_committed=True)
    found: list[log.Record] = []
    try:
        numbers = range(await offsets.partitions(topic))
        begins, ends = await offsets.beginnings(topic, numbers), await offsets.ends(topic, numbers)
        for number in numbers:
            first = max(begins[number], ends[number] - _BACK * records)
            there: list[log.Record] = []
            async with contextlib.aclosing(replays.read(topic, number, first, ends[number])) as got:
                async for batch in got:
                    there += batch
            found += there[-records:]
    finally:
        await offsets.stop()
        await replays.stop()
    return sorted(found, key=lambda record: record.timestamp)
