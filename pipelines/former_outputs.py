"""Existing outputs of rows that are read again: these rows are not answered again."""

from __future__ import annotations

import contextlib

from pipelines import definition, rows
from tailrace.log import Offsets, Replays


async def places(
    pipeline: definition.Pipeline, partition: int, offsets: Offsets, replays: Replays
) -> frozenset[str]:
    """Places (`rows.Row.place`) of an input partition whose outputs or dead letters exist, written
    by this revision. Reads these topics from their beginning.

    Raises:
        LogUnavailable: no answer, or a transaction is open. Try again.
        HistoryLost: a topic lost records while it was read. Try again.
    """
    revision = f"{pipeline.name}/{pipeline.revision}".encode()
    prefix = f"{pipeline.input.topic}/{partition}/".encode()
    outputs: set[str] = set()
    for topic in (pipeline.output.topic, pipeline.dead_letters.topic):
        numbers = range(await offsets.partitions(topic))
        begins, ends = await offsets.beginnings(topic, numbers), await offsets.ends(topic, numbers)
        for number in numbers:
            reading = replays.read(topic, number, begins[number], ends[number])
            async with contextlib.aclosing(reading) as batches:
                async for batch in batches:
                    for record in batch:
                        headers = dict(record.headers)
                        place = headers.get(rows.SOURCE) or b""
                        if headers.get(rows.PIPELINE) == revision and place.startswith(prefix):
                            outputs.add(place.decode(errors="replace"))
    return frozenset(outputs)
