"""Waits: the wait that a refusal says and the `eta_s` of a waiting request, over the wait that was.

Two workers with eight places each get open loops of streamed requests, of which 3 % have answers 30
times as long as the others; every request allows the same longest answer. Twice a second a request
of each class that cannot wait is sent, and the wait that its refusal says is compared with that of
the next request of the same user. The goal: within a factor of two for nine of ten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import uvloop

from bench import measure, places, scaling, stacks

NAME: Final = "waits"
OVER, UNDER = "", ""
PLOTS: Final = (
    "interactive_first_eta_within_twice",
    "interactive_refusal_within_twice",
    "batch_first_eta_within_twice",
    "batch_refusal_within_twice",
)
WORKERS: Final = 2
PLACES: Final = 8  # of each worker
PACE_MS: Final = 40
SHORT, LONG, LONG_SHARE = 20, 600, 0.03  # tokens
MOST: Final = 1000  # tokens that every request allows
ANSWERS: Final = places.Answers(SHORT, LONG, LONG_SHARE, MOST, PACE_MS)
CAPACITY: Final = WORKERS * PLACES * 1000 / PACE_MS  # tokens per second


def run(plan: measure.Plan, _shared: Callable[[], stacks.Side]) -> Iterator[measure.Row]:
    settings = {"TAILRACE_MAX_NUM_SEQS": str(PLACES)}
    with stacks.tailrace(plan.scratch, workers=WORKERS, settings=settings) as side:
        uvloop.run(scaling.wait_until_balanced(side, WORKERS))
        client = places.Client(side, ANSWERS)
        uvloop.run(places.warm(client, WORKERS * PLACES))
        for number in range(plan.pick(1, plan.rounds)):
            for case in places.CASES:
                values = uvloop.run(
                    places.measure_places(
                        *(client, case, CAPACITY, plan.pick(10.0, 25.0)), seed=number
                    )
                )
                yield measure.Row(NAME, case.name, "tailrace", number, values)
