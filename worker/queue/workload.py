"""How much work lies ahead of this worker, and how fast it is done (pure).

Work is counted in tokens that the engine will make. A request says only what it may take: its
prompt and the bound of its answer (`response_state.asked`). What requests make of that is
measured here, and so is the rate, which counts only while requests wait: otherwise it says how much
was asked for, not how much could be done.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from worker.queue.hold_times import HoldTimes
from worker.queue.start_forecast import StartForecast

# Seconds until an old measurement counts e times less. Long answers end rarely, so what requests
# make of what they ask needs more of them than the rate needs seconds.
RATE_MEMORY_S: Final = 30.0
PART_MEMORY_S: Final = 300.0
BATCH_PART_MEMORY_S: Final = (
    20.0  # of what interactive requests leave, which changes with their load
)
# How far and how finely is looked ahead: as far as the queue reaches and half as far again.
AHEAD_S: Final = (8.0, 600.0)
FURTHER: Final = 1.5
STEPS: Final = 128
FORECAST_POINTS: Final = 32


class Totals(NamedTuple):
    """Since the worker's start.

    `made`: tokens the engine made. `begun` and `asked`: requests begun in the engine, and what they
    asked for, as `Slots.begun` counts them.
    """

    tokens: int
    requests: float
    cost: float


_AT_START: Final = Totals(0, 0.0, 0.0)


@dataclass(slots=True)
class Workload:
    """Measurements of one worker, the newer the heavier.

    Attributes:
        _last: the totals of the last measurement.
        _busy_s, _busy_made: seconds in which requests waited, and the tokens made in them.
        _made, _begun, _asked: what came to the totals.
        _run_s: seconds of engine slots in use.
        left: the part of the engine that interactive requests leave to batch requests.
        _holds: how long slots were held.
        _starts: when what waits begins, as it was last looked at.
    """

    _last: Totals = _AT_START
    _busy_s: float = 0.0
    _busy_tokens: float = 0.0
    _tokens: float = 0.0
    _requests: float = 0.0
    _cost: float = 0.0
    _run_s: float = 0.0
    batch_part: float = 1.0
    _holds: HoldTimes = field(default_factory=HoldTimes)
    _forecast: StartForecast | None = None

    def measure(
        self,
        now: Totals,
        seconds: float,
        *,
        had_queue: bool,
        running: float = 0.0,
        interactive: float = 0.0,
        holds: Iterable[float] = (),
    ) -> None:
        """Account for the `seconds` since the last call.

        Args:
            waited: requests waited all the time.
            running: engine slots in use.
            interactive: the part of the slots in which interactive requests run.
            holds: for how many seconds each slot was held that came free.
        """
        tokens = now.tokens - self._last.tokens
        weight = math.exp(-seconds / RATE_MEMORY_S)
        if had_queue:
            self._busy_s = self._busy_s * weight + seconds
            self._busy_tokens = self._busy_tokens * weight + tokens
        self.batch_part += (1 - math.exp(-seconds / BATCH_PART_MEMORY_S)) * (
            1 - interactive - self.batch_part
        )
        weight = math.exp(-seconds / PART_MEMORY_S)
        self._tokens = self._tokens * weight + tokens
        self._requests = self._requests * weight + now.requests - self._last.requests
        self._cost = self._cost * weight + now.cost - self._last.cost
        self._run_s = self._run_s * weight + running * seconds
        self._holds.fade(weight)
        for hold in holds:
            self._holds.add(hold)
        self._last = now

    def update_forecast(
        self, waiting: float, ages: Sequence[float], paused_ages: Sequence[float] = ()
    ) -> StartForecast:
        """When what waits begins.

        Args:
            waiting: tokens that all of it makes.
            ages: for how many seconds each slot in use has been held.
            stopped: for how many seconds each response held one that has made way.
        """
        if not (waiting and self.rate and self.each and self._holds and ages):
            self._forecast = None
            return self.forecast
        least, most = AHEAD_S
        step_s = min(most, max(least, FURTHER * waiting / self.rate)) / STEPS
        counts = self._holds.expected_starts(ages, step_s, STEPS, paused_ages)
        points = range(STEPS // FORECAST_POINTS, STEPS + 1, STEPS // FORECAST_POINTS)
        times = tuple(step * step_s for step in points)
        tokens = tuple(counts[step - 1] * self.each for step in points)
        hold_s = self._holds.mean((*ages, *paused_ages))
        self._forecast = StartForecast(times, tokens, self.each * len(ages) / hold_s)
        return self.forecast

    @property
    def forecast(self) -> StartForecast:
        """When what waits begins, as it was last looked at."""
        return self._forecast or StartForecast(rate=self.rate)

    @property
    def rate(self) -> float:
        """Tokens per second while requests wait; 0 before any waited."""
        return self._busy_tokens / self._busy_s if self._busy_s else 0.0

    @property
    def measured(self) -> bool:
        """Whether requests ever waited, so that `rate` says something."""
        return self._busy_s > 0

    @property
    def starts_per_s(self) -> float:
        """Requests that start in a second while others wait; 0 while nothing is known."""
        return self.rate / self.each if self.each else 0.0

    @property
    def pace(self) -> float:
        """Tokens per second of one response; 0 while nothing ran."""
        return self._tokens / self._run_s if self._run_s else 0.0

    @property
    def part(self) -> float:
        """The part of what is asked for that is made, at most 1; 1 while nothing is known."""
        return min(1.0, self._tokens / self._cost) if self._cost > 0 and self._tokens > 0 else 1.0

    @property
    def each(self) -> float:
        """Tokens that one request makes; 0 while nothing is known."""
        return self._tokens / self._requests if self._requests > 0 else 0.0
