"""A service as it is, with a notebook: every acknowledged append and every commit goes into a
transcript (L4, R6).

    python -m tests.faults.traced worker

The file lies in TAILRACE_TEST_TRACE, one for each incarnation, written line by line: the process
may be killed at any moment. Of appends every TAILRACE_TEST_TRACE_EVERY-th is written down.
TAILRACE_TEST_PLANT plants a bug (M2, `tests.faults.plants`). TAILRACE_TEST_WALL is the true wall
clock minus the monotonic one, which all processes of a machine share: the service's own wall clock
may be wrong on purpose.
"""

from __future__ import annotations

import asyncio
import os
import runpy
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tailrace import log
from tailrace.verify import transcript


def trace(fd: int, every: int, wall: float) -> None:
    """Wrap the two calls through which everything is written."""
    append, commit = log.Writer.append, log.GroupConsumer.commit
    count = 0

    def traced_append(
        self: log.Writer,
        topic: str,
        partition: int,
        key: str,
        value: bytes | None,
        headers: log.Headers = (),
    ) -> asyncio.Future[log.Appended]:
        nonlocal count
        done = append(self, topic, partition, key, value, headers)
        count += 1
        if count % every == 0 and value is not None:
            done.add_done_callback(lambda f: acknowledged(topic, partition, key, value, f))
        return done

    def acknowledged(
        topic: str, partition: int, key: str, value: bytes, done: asyncio.Future[log.Appended]
    ) -> None:
        if not done.cancelled() and done.exception() is None:
            write(
                op="acked",
                topic=topic,
                partition=partition,
                rid=key,
                offset=done.result().offset,
                digest=transcript.digest(value),
            )

    async def traced_commit(
        self: log.GroupConsumer, offsets: Mapping[tuple[str, int], tuple[int, str]]
    ) -> bool:
        for (topic, partition), (offset, metadata) in offsets.items():
            write(
                op="commit",
                f="invoke",
                topic=topic,
                partition=partition,
                offset=offset,
                metadata=metadata,
            )
        return await commit(self, offsets)

    def write(**fields: Any) -> None:
        mono = time.monotonic()
        os.write(fd, transcript.encode(transcript.Line(wall=wall + mono, mono=mono, **fields)))

    log.Writer.append = traced_append  # type: ignore[method-assign]
    log.GroupConsumer.commit = traced_commit  # type: ignore[method-assign]


def main() -> None:
    """Become the service named in the first argument."""
    service = sys.argv[1]
    folder = Path(os.environ["TAILRACE_TEST_TRACE"])
    path = folder / f"{os.environ['TAILRACE_NAME']}.{os.getpid()}.jsonl"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    trace(
        fd,
        int(os.environ.get("TAILRACE_TEST_TRACE_EVERY", "1")),
        float(os.environ.get("TAILRACE_TEST_WALL") or time.time() - time.monotonic()),
    )
    if plant := os.environ.get("TAILRACE_TEST_PLANT"):
        from tests.faults import plants

        {
            **plants.PLANTS,
            **plants.REFUSALS,
            **plants.MOMENTS,
            **plants.FAILPOINTS,
            **plants.ARCHIVE,
            **plants.FALLBACK,
        }[plant]()
    sys.argv = [service]
    runpy.run_module(service, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
