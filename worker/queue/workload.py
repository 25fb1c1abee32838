"""How much work is queued at this worker, and how fast its engine does it (pure).

Work is counted in tokens that the engine will generate. A request states only its limit: its prompt
and the longest answer (`response_state.request_cost`). The used part of the limit is measured here,
and so is the rate. The rate counts only while requests wait: at other times it is the rate of
arrivals, not of the engine.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from worker.queue.hold_times import HoldTimes
from worker.queue.start_forecast import StartForecast

# Seconds until an old measurement counts e times less. Long answers end rarely, so the used part
# needs a longer memory than the rate.
RATE_MEMORY_S: Final = 30.0
PART_MEMORY_S: Final = 300.0
BATCH_PART_MEMORY_S: Final = 20.0  # changes with the interactive load
# Range and steps of the forecast: one and a half times the length of the queue.
AHEAD_S: Final = (8.0, 600.0)
FURTHER: Final = 1.5
STEPS: Final = 128
FORECAST_POINTS: Final = 32


class Totals(NamedTuple):
    """Since the worker's start.

    `tokens`: generated. `requests` and `cost`: requests started in the engine, and their cost, as
    `Slots.request_totals` counts them.
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
        _busy_s, _busy_tokens: seconds in which requests waited, and the tokens generated in them.
        _tokens, _requests, _cost: sums of the increases of the totals.
        _run_s: seconds of engine slots in use.
        batch_part: the part of the engine that interactive requests leave to batch requests.
        _holds: how long slots were held.
        _forecast: when queued work starts, as last computed.
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
            had_queue: requests waited all the time.
            running: engine slots in use.
            interactive: the part of the slots in which interactive requests run.
            holds: for how many seconds each released slot was held.
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
        """When queued work starts.

        Args:
            waiting: tokens of the queued work.
            ages: for how many seconds each slot in use has been held.
            paused_ages: for how many seconds each paused response has held a slot.
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
        """When queued work starts, as last computed."""
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
        """Requests that start per second while others wait; 0 while nothing is known."""
        return self.rate / self.each if self.each else 0.0

    @property
    def pace(self) -> float:
        """Tokens per second of one response; 0 while nothing ran."""
        return self._tokens / self._run_s if self._run_s else 0.0

    @property
    def part(self) -> float:
        """The used part of the cost, at most 1; 1 while nothing is known."""
        return min(1.0, self._tokens / self._cost) if self._cost > 0 and self._tokens > 0 else 1.0

    @property
    def each(self) -> float:
        """Tokens that one request generates; 0 while nothing is known."""
        return self._tokens / self._requests if self._requests > 0 else 0.0
