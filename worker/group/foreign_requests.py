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
    broker_time,
    continues,
    read_request,
    request_time_bound,
)
from worker.queue.commit_tracker import Tracker
from worker.queue.delivery import Delivery
from worker.serving.running_responses import RunningResponses
from worker.serving.worker_context import WorkerContext

MAX_SPAN: Final = 500  # offsets that one read covers


class ForeignRequests:
    """Reads and serves them, for one worker."""

    def __init__(
        self,
        context: WorkerContext,
        responses: RunningResponses,
        consumer: RequestConsumer,
        offsets: interfaces.OffsetQueries,
        *,
        partitions: int,
    ) -> None:
        self._context = context
        self._responses = responses
        self._consumer = consumer
        self._offsets = offsets
        self._partition_count = partitions

    @property
    def room(self) -> int:
        """How many requests of others could start here at once: none while own ones wait."""
        slots = self._context.engine_slots
        if self._context.leaving or slots.queued or not self._consumer.idle:
            return 0
        return max(0, slots.bound - max(slots.running, self._responses.slot_demand))

    async def serve(
        self,
        topic: str,
        partition: int,
        offsets: Sequence[int],
        free: Callable[[], int],
        *,
        handed_over: bool = False,
        hedged: bool = False,
    ) -> None:
        """Serve the requests at these offsets, if the partition is another worker's, up to the room
        that `free` returns. Other records are skipped.

        Raises:
            LogUnavailable, HistoryLost
        """
        if partition >= self._partition_count or partition in self._consumer.partitions:
            return
        candidates = [
            r for r in await self._read(topic, partition, sorted(offsets)) if self._request(r)
        ]
        if not candidates:
            return
        ends = await self._offsets.ends(topics.TOKENS, [partition])
        beginnings = await self._offsets.beginnings(topics.TOKENS, [partition])
        # No await from here on: a partition that is followed for no response is left again.
        tail, room = self._context.tail, free()
        selection = [
            (r, request) for r in candidates[:room] if (request := self._request(r)) is not None
        ]
        if not selection or partition in self._consumer.partitions:
            return
        start = end = ends[partition]
        if partition not in tail.partitions:
            bounds = (ids.parse(request.rid).offset for _, request in selection)
            start = min(end, max(beginnings[partition], min(bounds)))
        tail.follow(partition, start, end)
        for r, request in selection:
            self._context.clock.observe(r.timestamp, self._context.monotonic())
            delivery = Delivery(
                topic,
                partition,
                r.offset,
                request_time_bound(r),
                Tracker(valid=False),
                r.headers,
                len(r.value or b""),
                stolen=True,
                handed_over=handed_over,
                continues=continues(r),
                hedged=hedged,
                request_ms=broker_time(r),
            )
            self._responses.deliver(request, delivery)

    async def _read(self, topic: str, partition: int, offsets: list[int]) -> list[log.Record]:
        """The records at these ascending offsets."""
        matches: list[log.Record] = []
        while offsets:
            span = [offset for offset in offsets if offset < offsets[0] + MAX_SPAN]
            offsets = offsets[len(span) :]
            reading = self._context.ranges.read(topic, partition, span[0], span[-1] + 1)
            async with contextlib.aclosing(reading) as batches:
                async for batch in batches:
                    matches += [r for r in batch if r.offset in span]
        return matches

    def _request(self, r: log.Record) -> records.Request | None:
        """The request in a record, if this worker could serve it and does not."""
        request, _ = read_request(r, self._partition_count)
        if (
            request is None
            or request.model not in self._context.models | self._context.stands_in_for
            or ids.parse(request.rid).incarnation != self._context.identity.tag
            or self._responses.serves(request.rid)
        ):
            return None
        context = self._context
        lacks = base.lacking(request, context.engine.features, context.not_offered)
        return request if lacks is None else None
