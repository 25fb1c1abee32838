"""What `bench waits` could tell at best: its load at twice the capacity, simulated without costs.

    python -m bench.waits_ideal

Requests are served in order by one queue or by two, and each goes to the queue where it begins
first. The told wait is that of `worker.hold_times`, which here knows every length so far, and who
runs for how long, exactly and at once. Lengths of the future are unknown to it.
"""

from __future__ import annotations

import heapq
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from bench import measure, waits
from worker import workload
from worker.hold_times import HoldTimes
from worker.starts import Starts

SECONDS: Final = 25.0
SEEDS: Final = 12
KNOWN: Final = 400  # answers that were seen before the load
PACE_S: Final = waits.PACE_MS / 1000


@dataclass(slots=True)
class Queue:
    """One worker.

    Attributes:
        slots: when each slot comes free, a heap.
        begun: (begin, end) of its requests in seconds, in their order.
    """

    slots: list[float]
    begun: list[tuple[float, float]] = field(default_factory=list)

    def serve(self, now: float, length_s: float) -> float:
        """When a request begins that comes now."""
        begin = max(now, heapq.heappop(self.slots))
        heapq.heappush(self.slots, begin + length_s)
        self.begun.append((begin, begin + length_s))
        return begin

    def told_s(self, now: float, before: Sequence[float]) -> float:
        """The wait that a request which comes now would be told."""
        waiting = sum(begin > now for begin, _ in self.begun)
        ages = [now - begin for begin, end in self.begun if begin <= now < end]
        if not waiting and len(ages) < len(self.slots):
            return 0.0
        holds = HoldTimes()
        for length_s in (*before, *(end - begin for begin, end in self.begun if end <= now)):
            holds.add(length_s)
        rate = len(self.slots) / (waits.ANSWERS.mean * PACE_S)
        least, most = workload.AHEAD_S
        step_s = min(most, max(least, workload.FURTHER * waiting / rate)) / workload.STEPS
        counts = holds.starts(ages, step_s, workload.STEPS)
        times = tuple(step_s * (n + 1) for n in range(workload.STEPS))
        return Starts(times, tuple(counts), rate).seconds(waiting + 1)


def ratios(queues: int, seed: int) -> list[float]:
    """Told over true waits of the requests that come while others wait, as `bench waits` counts."""
    drawn = random.Random(seed)
    rate = 2 * waits.CAPACITY / waits.ANSWERS.mean
    before = [PACE_S * waits.ANSWERS.drawn(drawn) for _ in range(KNOWN)]
    places = waits.WORKERS * waits.PLACES // queues
    all_queues = [Queue([0.0] * places) for _ in range(queues)]
    found = []
    for number in range(int(SECONDS * rate)):
        now = number / rate
        told = [queue.told_s(now, before) for queue in all_queues]
        chosen = told.index(min(told))
        true_s = all_queues[chosen].serve(now, PACE_S * waits.ANSWERS.drawn(drawn)) - now
        if true_s >= waits.LEAST_WAIT_S:
            found.append(told[chosen] / true_s)
    return found


def main() -> None:
    """Write a line for each number of queues."""
    for queues in (waits.WORKERS, 1):
        found = [ratio for seed in range(SEEDS) for ratio in ratios(queues, seed)]
        within = sum(0.8 <= ratio <= 1.2 for ratio in found) / len(found)
        told = ", ".join(f"p{p} {measure.percentile(found, p):.2f}" for p in (10, 50, 90))
        sys.stdout.write(
            f"queues {queues}, waits {len(found)}; told over true {told}; ±20 %: {within:.0%}\n"
        )


if __name__ == "__main__":
    main()
