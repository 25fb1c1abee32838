"""Pipelines: rows per second of 1, 2 and 4 runners, each bound by its `concurrency`.

The scripted engine answers at a pace, so what one runner can do is known: `concurrency` answers at
a time. The input has four partitions. What is measured is whether runners share them, and what a
row costs in CPU, transactions included.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import psutil
import uvloop
import yaml

from bench import load, measure, scripted, stacks
from pipelines import definition, progress
from tailrace import log
from tailrace.local import dev_credentials, paths

NAME: Final = "pipeline_runners"
OVER, UNDER = "", ""
PLOTS: Final = ("rows_per_s", "share_of_capacity")
RUNNERS: Final = (1, 2, 4)
PARTITIONS: Final = 4
CONCURRENCY: Final = 8
PACE_MS: Final = 20
TOKENS: Final = 40
LOOK_S: Final = 0.25
DEADLINE_S: Final = 240.0


def run(plan: measure.Plan, _shared: Callable[[], stacks.Side]) -> Iterator[measure.Row]:
    for number in range(plan.pick(1, min(2, plan.rounds))):
        with stacks.tailrace(plan.scratch) as side:
            uvloop.run(scripted.warm(side))
            for runners in RUNNERS:
                file = _file(plan.scratch, f"bench-{runners}")
                rows = plan.pick(40, 150) * runners
                pipeline = definition.decoded(file.read_bytes())
                values = uvloop.run(_rate(side, pipeline, file, runners, rows))
                yield measure.Row(NAME, f"{runners} runners", "tailrace", number, values)


def _file(folder: Path, name: str) -> Path:
    """A pipeline whose answers take TOKENS times PACE_MS each."""
    told = {
        "name": name,
        "input": {"topic": f"{name}.in"},
        "prompt": {"user": "{{ record.text }}"},
        "output": {"topic": f"{name}.out"},
        "dead_letters": {"topic": f"{name}.dead"},
        "max_output_tokens": TOKENS,
        "metadata": {"script_tokens": str(TOKENS), "script_pace_ms": str(PACE_MS)},
        "concurrency": CONCURRENCY,
        "batch": {"records": 20, "seconds": 0.5},
    }
    file = folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump(told))
    return file


async def _rate(
    side: stacks.Side, pipeline: definition.Pipeline, file: Path, runners: int, rows: int
) -> dict[str, float]:
    """Start the runners, then write the rows, and see how long they take."""
    names = [pipeline.input.topic, *pipeline.outputs]
    await log.create_topics(side.kafka, names, partitions=PARTITIONS)
    offsets = log.Offsets(side.kafka)
    with _started(side, file, runners) as pids:
        try:
            await _write(side, pipeline, PARTITIONS)  # until each partition has an owner
            await _until(offsets, pipeline, PARTITIONS)
            meter = measure.Meter({**side.roles, "runner": pids})
            with meter:
                began = time.perf_counter()
                await _write(side, pipeline, rows)
                await _until(offsets, pipeline, PARTITIONS + rows)
                rate = rows / (time.perf_counter() - began)
        finally:
            await offsets.stop()
    ideal = runners * CONCURRENCY * 1000 / (TOKENS * PACE_MS)
    return {
        "rows_per_s": rate,
        "share_of_capacity": rate / ideal,
        **meter.per(rows, "ms_per_row", 1e3),
    }


async def _write(side: stacks.Side, pipeline: definition.Pipeline, rows: int) -> None:
    """As many rows in each partition."""
    values = [b'{"text": "row %d"}' % number for number in range(rows)]
    writer = log.Writer(side.kafka)
    running = asyncio.create_task(writer.run())
    try:
        topic = pipeline.input.topic
        appended = [
            writer.append(topic, number % PARTITIONS, str(number), value)
            for number, value in enumerate(values)
        ]
        await asyncio.gather(*appended)
    finally:
        await writer.stop()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def _until(offsets: log.Offsets, pipeline: definition.Pipeline, rows: int) -> None:
    """Wait until so many rows are answered. Raises load.Failed."""
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end:
        done = (await progress.look(pipeline, offsets)).done
        if done.read >= rows:
            if done.answered != done.read:
                raise load.Failed(f"{pipeline.name}: {done.dead} dead letters")
            return
        await asyncio.sleep(LOOK_S)
    raise load.Failed(f"{pipeline.name}: not {rows} rows in {DEADLINE_S:.0f} s")


@contextlib.contextmanager
def _started(side: stacks.Side, file: Path, runners: int) -> Iterator[Sequence[int]]:
    """So many runners; their process ids."""
    assert side.data is not None
    credential = file.with_suffix(".credential")
    credential.write_text(dev_credentials.issue(side.data, "bench", 3600))
    environ = stacks.environment(
        TAILRACE_KAFKA=side.kafka,
        TAILRACE_URL=side.url,
        TAILRACE_CREDENTIAL_FILE=str(credential),
    )
    command = [sys.executable, "-m", "pipelines", "run", str(file)]
    processes = [psutil.Popen(command, cwd=paths.ROOT, env=environ) for _ in range(runners)]
    try:
        yield [process.pid for process in processes]
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(60)
