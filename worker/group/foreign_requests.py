"""Requests of partitions that the group assigned to other workers: read one by one, and served here
(log rule P10)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Final

from tailrace import log
from tailrace.log import interfaces
from tailrace.protocol import ids, records, topics
from worker.engines import base
from worker.group.request_consumer import (
    RequestConsumer,
    asked_at,
    broker_time,
    continues,
    read_request,
)
from worker.queue.commit_tracker import Tracker
from worker.queue.delivery import Delivery
from worker.serving.servings import Servings
from worker.serving.worker_context import WorkerContext

MAX_SPAN: Final = 500  # offsets that one read covers


class ForeignRequests:
    """Reads and serves them, for one worker."""

    def __init__(
        self,
        context: WorkerContext,
        servings: Servings,
        consumer: RequestConsumer,
        offsets: interfaces.OffsetQueries,
        *,
        partitions: int,
    ) -> None:
        self._context = context
        self._servings = servings
        self._consumer = consumer
        self._offsets = offsets
        self._partition_count = partitions

    @property
    def room(self) -> int:
        """How many requests of others could begin here at once: none while own ones wait."""
        slots = self._context.engine_slots
        if self._context.leaving or slots.queued or not self._consumer.idle:
            return 0
        return max(0, slots.bound - max(slots.running, self._servings.wanting_slots))

    async def serve(
        self,
        topic: str,
        partition: int,
        wanted: Sequence[int],
        free: Callable[[], int],
        *,
        handed_over: bool = False,
        hedged: bool = False,
    ) -> None:
        """Serve the requests at these offsets, as far as they are any, the partition is another
        worker's, and `free` says that there is room.

        Raises:
            LogUnavailable, HistoryLost
        """
        if partition >= self._partition_count or partition in self._consumer.partitions:
            return
        read = [r for r in await self._read(topic, partition, sorted(wanted)) if self._request(r)]
        if not read:
            return
        ends = await self._offsets.ends(topics.TOKENS, [partition])
        beginnings = await self._offsets.beginnings(topics.TOKENS, [partition])
        # From here on nothing waits: a partition that is followed for no response is left again.
        tail, room = self._context.tail, free()
        chosen = [(r, request) for r in read[:room] if (request := self._request(r)) is not None]
        if not chosen or partition in self._consumer.partitions:
            return
        start = end = ends[partition]
        if partition not in tail.followed:
            bounds = (ids.parse(request.rid).offset for _, request in chosen)
            start = min(end, max(beginnings[partition], min(bounds)))
        tail.follow(partition, start, end)
        for r, request in chosen:
            self._context.clock.observe(r.timestamp, self._context.monotonic())
            delivery = Delivery(
                topic,
                partition,
                r.offset,
                asked_at(r),
                Tracker(valid=False),
                r.headers,
                len(r.value or b""),
                stolen=True,
                handed_over=handed_over,
                continues=continues(r),
                hedged=hedged,
                asked_ms=broker_time(r),
            )
            self._servings.deliver(request, delivery)

    async def _read(self, topic: str, partition: int, wanted: list[int]) -> list[log.Record]:
        """The records at these offsets, which are in order."""
        found: list[log.Record] = []
        while wanted:
            span = [offset for offset in wanted if offset < wanted[0] + MAX_SPAN]
            wanted = wanted[len(span) :]
            reading = self._context.ranges.read(topic, partition, span[0], span[-1] + 1)
            async with contextlib.aclosing(reading) as batches:
                async for batch in batches:
                    found += [r for r in batch if r.offset in span]
        return found

    def _request(self, r: log.Record) -> records.Request | None:
        """The request in a record, if this worker could serve it and does not."""
        request, _ = read_request(r, self._partition_count)
        if (
            request is None
            or request.model not in self._context.models | self._context.stands_in_for
            or ids.parse(request.rid).incarnation != self._context.identity.tag
            or self._servings.serves(request.rid)
        ):
            return None
        context = self._context
        lacks = base.lacking(request, context.engine.features, context.not_offered)
        return request if lacks is None else None
