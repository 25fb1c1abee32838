"""A runner: one member of a pipeline's group. At most one runner per partition has work."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Collection
from typing import Final

from pipelines import answerer, definition, metrics, start_position, storing
from pipelines.gateway import Gateway
from pipelines.partition import Beginning, Outcome, Partition
from pipelines.rows import Rows
from tailrace import log

_logger = logging.getLogger(__name__)

SESSION_MS: Final = 6_000
POLL: Final = 500  # records
DRAIN_S: Final = 20.0
COMPARE_S: Final = 30.0  # between checks whether the log was rolled back


class MissingTopic(Exception):
    """A topic of the pipeline is missing. A runner creates none."""


def outcome_of(pipeline: definition.Pipeline, rows: Rows, gateway: Gateway) -> Outcome:
    """The function that processes each row. Raises definition.Invalid: the schema is invalid, or
    the judge's template has an error."""
    if pipeline.embed is not None:
        return storing.Storing(pipeline, rows, gateway).outcome
    return answerer.Answerer(pipeline, rows, gateway).outcome


class Runner:
    """Reads the input and gives its records to one `Partition` each.

    Attributes:
        _partitions: those that are assigned to this runner, with the tasks that run them.
        _paused: partitions that are not polled now.
        _compare_at: monotonic seconds.
    """

    def __init__(self, pipeline: definition.Pipeline, kafka: str, gateway: Gateway) -> None:
        """Raises definition.Invalid: a template, an expression or the schema has an error."""
        self._pipeline = pipeline
        self._kafka = kafka
        self._rows = Rows(pipeline)
        self._outcome = outcome_of(pipeline, self._rows, gateway)
        self._row_slots = asyncio.Semaphore(pipeline.concurrency)
        self._name = f"{pipeline.group}-{secrets.token_hex(3)}"
        self._offsets = log.Offsets(kafka, client_id=self._name)
        self._replays = log.Replays(kafka, client_id=self._name, read_committed=True)
        self._member = log.GroupConsumer(
            kafka,
            pipeline.group,
            [pipeline.input.topic],
            session_timeout_ms=SESSION_MS,
            assigned=self._on_assigned,
            revoked=self._on_revoked,
            client_id=self._name,
            read_committed=True,
        )
        self._partitions: dict[int, tuple[Partition, asyncio.Task[None]]] = {}
        self._paused: set[int] = set()
        # An alert on an increase does not see a counter's first value.
        metrics.POSITIONS.labels(pipeline=pipeline.name, reason="deleted")
        metrics.POSITIONS.labels(pipeline=pipeline.name, reason="rolled_back")
        self._compare_at = 0.0

    async def run(self) -> None:
        """Run until cancelled; then commit finished rows, and leave the group.

        Raises:
            MissingTopic
        """
        try:
            await self._check_topics()
            await self._member.start()
            while True:
                await self._poll()
                await self._compare()
        finally:
            await self._end()

    async def _check_topics(self) -> None:
        """Wait for a broker that is away. Raises MissingTopic."""
        names = (self._pipeline.input.topic, *self._pipeline.outputs)
        while True:
            try:
                there = await self._offsets.existing(names)
                break
            except log.LogUnavailable as error:
                _logger.warning("%s: %s", self._pipeline.name, error)
                await asyncio.sleep(log.RETRY_S)
        if missing := [name for name in names if name not in there]:
            raise MissingTopic(f"there is no topic {', '.join(missing)}")

    async def _poll(self) -> None:
        try:
            records = await self._member.poll(POLL, timeout_ms=100)
        except log.LogUnavailable:
            await asyncio.sleep(log.RETRY_S)
            return
        by_partition: dict[int, list[log.Record]] = {}
        for record in records:
            by_partition.setdefault(record.partition, []).append(record)
        for number, batch in by_partition.items():
            if number in self._partitions:
                self._partitions[number][0].add(batch)
        self._pause()
        waiting = sum(len(partition) for partition, _ in self._partitions.values())
        metrics.WAITING.labels(pipeline=self._pipeline.name).set(waiting)
        for _, task in self._partitions.values():
            if task.done() and not task.cancelled() and (error := task.exception()):
                raise error

    def _pause(self) -> None:
        full = {number for number, (partition, _) in self._partitions.items() if partition.full}
        topic = self._pipeline.input.topic
        if to_pause := full - self._paused:
            self._member.pause([(topic, number) for number in to_pause])
        if to_resume := self._paused - full:
            self._member.resume([(topic, number) for number in to_resume])
        self._paused = full

    async def _on_assigned(self, partitions: Collection[tuple[str, int]]) -> None:
        for _, number in sorted(partitions):
            if number in self._partitions:
                continue
            transactions = log.Transactions(
                self._kafka, self._pipeline.transactional_id(number), client_id=self._name
            )
            partition = Partition(
                number,
                self._pipeline,
                self._rows,
                self._outcome,
                self._begin,
                transactions,
                self._row_slots,
                self._member.rejoin,
            )
            self._partitions[number] = partition, asyncio.create_task(partition.run())

    async def _on_revoked(self, partitions: Collection[tuple[str, int]]) -> None:
        removed = [
            self._partitions.pop(number) for _, number in partitions if number in self._partitions
        ]
        self._paused -= {number for _, number in partitions}
        for _, task in removed:
            task.cancel()
        await asyncio.gather(*(task for _, task in removed), return_exceptions=True)

    async def _begin(self, number: int) -> Beginning:
        return await start_position.begin(self._pipeline, number, self._offsets, self._replays)

    async def _compare(self) -> None:
        """Restart partitions whose records are no longer in the log."""
        if time.monotonic() < self._compare_at:
            return
        self._compare_at = time.monotonic() + COMPARE_S
        positions_or_none = {
            number: each.position for number, (each, _) in self._partitions.items()
        }
        positions = {number: at for number, at in positions_or_none.items() if at is not None}
        with contextlib.suppress(log.LogUnavailable):
            if await log.rolled_back(
                self._offsets, self._replays, self._pipeline.input.topic, positions
            ):
                self._member.rejoin()

    async def _end(self) -> None:
        for partition, _ in self._partitions.values():
            partition.end()
        tasks = [task for _, task in self._partitions.values()]
        if tasks:
            await asyncio.wait(tasks, timeout=DRAIN_S)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._partitions.clear()
        with contextlib.suppress(log.LogUnavailable):
            await self._member.stop()
        await self._offsets.stop()
        await self._replays.stop()
