"""A worker's load and the waits of new requests, as members of its heartbeat
(`tailrace.store.workers`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from tailrace.fair_queue import waits_of
from tailrace.protocol import topics
from tailrace.store.workers import MAX_FIGURE
from worker.queue import waits
from worker.queue.read_ahead import Overflow
from worker.queue.slots import STARTED, Slots
from worker.queue.workload import Totals, Workload

# Part of the time that may be spent on computing waits: with 2,000 principals it takes long.
MOST_TIME: Final = 0.05

_AT_ONCE: Final = 0.0, 0.0


class Load:
    """The load of one worker.

    Attributes:
        _had_queue: requests waited for a slot at the last measurement.
        _waits: the waits of new requests, as last computed.
        _next_at: when they are computed again (`clock`).
    """

    def __init__(self, work: Workload, clock: Callable[[], float] = time.monotonic) -> None:
        """`work` keeps the measurements."""
        self._work = work
        self._clock = clock
        self._had_queue = False
        self._waits: waits.Waits | None = None
        self._next_at = 0.0

    def measure(self, slots: Slots, tokens: int, seconds: float) -> None:
        """Account for the seconds since the last call. `tokens`: since the worker's start."""
        totals = Totals(tokens, *slots.request_totals)
        has_queue = slots.queued > 0
        self._work.measure(
            totals,
            seconds,
            had_queue=has_queue and self._had_queue,
            running=slots.running,
            interactive=slots.interactive,
            holds=slots.holds,
        )
        slots.holds.clear()
        slots.demand.measure(seconds)
        self._had_queue = has_queue

    def report(self, slots: Slots | None, overflows: Sequence[Overflow]) -> dict[str, Any]:
        """The queued and running work in tokens that the engine will generate, and the waits of new
        requests.

        Args:
            slots: None until the engine is ready.
            overflows: by class.
        """
        work, running, waiting = self._work, 0.0, [0.0] * len(topics.CLASSES)
        pausable = 0, 0.0
        if slots is not None:
            running = slots.running_cost * work.part / 2  # on average half of it is done
            for rank, overflow in enumerate(overflows):
                cost = slots.waiting_cost(rank) + sum(overflow.aside.values())
                waiting[rank] = cost * work.part + overflow.unread * work.each
            waiting[0] += slots.waiting_cost(STARTED) * work.part
            pausable = slots.preemptible
        return {
            "running_tokens": round(running),
            "pausable": pausable[0],
            "pausable_tokens": round(pausable[1] * work.part / 2),
            "waiting_tokens": [round(tokens) for tokens in waiting],
            "request_tokens": round(work.each, 1),
            "drain_rate": round(work.rate, 1),
            **self._waits_report(slots, waiting, overflows),
        }

    def _waits_report(
        self, slots: Slots | None, waiting: Sequence[float], overflows: Sequence[Overflow]
    ) -> dict[str, list[str] | list[float]]:
        """The waits of new requests, by class, of known principals and of others. Empty while they
        are not known."""
        if slots is not None:
            self._work.update_forecast(sum(waiting), slots.ages, slots.paused_ages)
        if slots is None or not any(waiting):
            return _members({}, _AT_ONCE)
        if not self._work.forecast.rate:
            return _members({}, ())
        began = self._clock()
        if began >= self._next_at or self._waits is None:
            self._waits = waits.new_request_waits(slots, self._work, overflows, waiting)
            self._next_at = began + (self._clock() - began) / MOST_TIME
        return _members(self._waits.by_name, self._waits.others)


def _members(
    waits_by_name: Mapping[str, tuple[float, float]], others: Sequence[float]
) -> dict[str, list[str] | list[float]]:
    def seconds(each: Iterable[float]) -> list[float]:
        return [round(min(wait_s, MAX_FIGURE), 2) for wait_s in each]

    return {
        "waits_of": [waits_of(name) for name in waits_by_name],
        "interactive_waits_s": seconds(interactive for interactive, _ in waits_by_name.values()),
        "batch_waits_s": seconds(batch for _, batch in waits_by_name.values()),
        "waits_s": seconds(others),
    }
