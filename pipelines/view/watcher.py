"""Observes every pipeline every few seconds, independent of the number of callers."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from pipelines import definition, progress
from pipelines.view import status
from tailrace.log import LogUnavailable, Offsets

_logger = logging.getLogger(__name__)

EVERY_S: Final = 3.0


class Watcher:
    """One loop over all pipelines.

    Attributes:
        observations: of each pipeline, by its name.
    """

    def __init__(
        self,
        pipelines: Sequence[definition.Pipeline],
        offsets: Offsets,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._pipelines = pipelines
        self._offsets = offsets
        self._monotonic = monotonic
        self._wall = wall
        self.observations: Mapping[str, status.Observations] = {
            each.name: status.Observations() for each in pipelines
        }

    async def run(self) -> None:
        """Observe until cancelled."""
        try:
            while True:
                await self.look()
                await asyncio.sleep(EVERY_S)
        finally:
            await self._offsets.stop()

    async def look(self) -> None:
        """Observe each pipeline once, all at the same time."""
        updates = await asyncio.gather(*map(self._look, self._pipelines))
        self.observations = {
            each.name: observation
            for each, observation in zip(self._pipelines, updates, strict=True)
        }

    async def _look(self, pipeline: definition.Pipeline) -> status.Observations:
        before = self.observations[pipeline.name]
        try:
            state = await progress.read(pipeline, self._offsets)
        except LogUnavailable as error:
            problem = await self._problem(pipeline)
            if before.problem is not problem:
                _logger.warning("%s: %s: %s", pipeline.name, problem.value, error)
            return before.with_problem(problem)
        return before.with_look(status.Look(self._monotonic(), self._wall(), state))

    async def _problem(self, pipeline: definition.Pipeline) -> status.State:
        """The cause of a failed observation."""
        try:
            there = await self._offsets.existing([pipeline.input.topic])
        except LogUnavailable:
            return status.State.UNKNOWN
        return status.State.UNKNOWN if there else status.State.MISSING
