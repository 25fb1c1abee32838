"""Steps of an engine that runs all of its responses together, as GPUs do: a step gives one token to
each of them, and its duration depends on how many they are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

# A longer pause is not a late step: nothing was running.
_IDLE_S = 0.1


class StepClock:
    """Ends one step after the other while responses wait for one.

    Attributes:
        _step: done when the present step ends; None while no response waits.
        _due: when the last step ended, or should have: a late step shortens the next one.
    """

    def __init__(self, durations: Sequence[tuple[int, float]], running: Callable[[], int]) -> None:
        """`durations`: pairs of a number of responses and the seconds of a step with up to as many.
        The last one holds for more. `running`: how many responses run now."""
        self._durations = durations
        self._running = running
        self._step: asyncio.Future[None] | None = None
        self._due = 0.0

    async def next(self) -> None:
        """Wait for the end of the present step."""
        if self._step is None:
            loop = asyncio.get_running_loop()
            self._step = loop.create_future()
            begin = self._due if loop.time() - self._due < _IDLE_S else loop.time()
            self._due = begin + self._duration()
            loop.call_at(self._due, self._end)
        await asyncio.shield(self._step)

    def _end(self) -> None:
        step, self._step = self._step, None
        if step is not None:
            step.set_result(None)

    def _duration(self) -> float:
        running = self._running()
        return next((s for most, s in self._durations if running <= most), self._durations[-1][1])
