"""Workers as members of their group, on the in-memory log."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from tailrace.protocol import ids, records, topics
from tests.support import memory_worker
from tests.support.memory_log import MemoryLog
from tests.support.memory_worker import POOL, REQUESTS, Time, answer, new_request
from tests.support.waiting import eventually
from worker.group.request_consumer import RequestConsumer
from worker.serving.running_responses import RunningResponses
from worker.serving.worker_context import WorkerContext

GROUP = topics.group(POOL)


@dataclass
class Member:
    """One worker in the group."""

    memory: MemoryLog
    context: WorkerContext
    responses: RunningResponses
    consumer: RequestConsumer

    @property
    def committed(self) -> tuple[int, str]:
        """What the group has committed for partition 0 of the interactive requests."""
        return self.memory.committed_offsets.get(GROUP, {}).get((REQUESTS, 0), (-1, ""))


def ask(memory: MemoryLog, topic: str = REQUESTS, **options: Any) -> records.Request:
    """A request as a gateway appends it."""
    request = new_request(memory, **options)
    memory.put_record(topic, ids.parse(request.rid).partition, request, request.rid)
    return request


async def done(memory: MemoryLog, request: records.Request) -> None:
    await eventually(
        lambda: answer(memory, request.rid).fold.ended, "the response is done", every_s=0.005
    )


@contextlib.asynccontextmanager
async def member(
    memory: MemoryLog, time: Time, *, name: str = "this", capacity: int = 4
) -> AsyncIterator[Member]:
    context = memory_worker.make_context(memory, time, name=name, capacity=capacity)
    async with asyncio.TaskGroup() as tasks:
        responses = RunningResponses(context, tasks)
        consumer = RequestConsumer(
            memory.group_consumer,
            memory.offsets(),
            memory.replays(),
            context,
            responses,
            tasks,
            pool=POOL,
            partitions=memory.layout.partitions,
        )
        tail = tasks.create_task(context.tail.run())
        running = tasks.create_task(consumer.run())
        try:
            yield Member(memory, context, responses, consumer)
        finally:
            context.draining = True
            await consumer.leave()
            await responses.hand_over(0)
            tail.cancel()
            running.cancel()
