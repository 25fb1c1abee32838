"""Upgrade: three workers are replaced one after the other by a new model revision, under load.

The two that leave first have a drain time far below the length of an answer, so most of what they
run is yielded in the middle; the last one has time for its answers. Counted are the answers that
failed, and the longest time in which a reader saw nothing of one answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import os
import signal
from collections.abc import Callable, Iterator
from typing import Final

import uvloop

from bench import load, measure, scaling, scripted, stacks

NAME: Final = "upgrade"
OVER, UNDER = "", ""
PLOTS: Final = ("failed", "gap_max_ms")
OLD: Final = 3
PACE_MS: Final = 20
TOKENS: Final = 500  # ten seconds
RATE: Final = 2.0
FIRST_DRAIN_S, LAST_DRAIN_S = 2, 30


def run(plan: measure.Plan, _shared: Callable[[], stacks.Side]) -> Iterator[measure.Row]:
    for number in range(plan.pick(1, min(2, plan.rounds))):
        settings = {"TAILRACE_DRAIN_S": str(LAST_DRAIN_S)}
        with (
            stacks.tailrace(plan.scratch, settings=settings) as side,
            contextlib.ExitStack() as more,
        ):
            names = itertools.count(2)

            def another(drain_s: int, revision: str) -> int:
                environ = {
                    **side.environ,
                    "TAILRACE_DRAIN_S": str(drain_s),
                    "TAILRACE_SCRIPT_REVISION": revision,
                }
                made = dataclasses.replace(side, environ=environ)
                return more.enter_context(stacks.another_worker(made, next(names)))  # noqa: B023

            uvloop.run(scripted.warm(side))
            last = side.roles["worker"][0]
            first = [another(FIRST_DRAIN_S, "scripted-1") for _ in range(OLD - 1)]
            uvloop.run(scaling.balanced(side, OLD))
            values = uvloop.run(
                _measured(
                    side,
                    [*first, last],
                    lambda: another(FIRST_DRAIN_S, "scripted-2"),
                    plan.pick(60, 120),
                )
            )
            yield measure.Row(NAME, f"{OLD} workers", "tailrace", number, values)


async def _measured(
    side: stacks.Side, old: list[int], another: Callable[[], int], count: int
) -> dict[str, float]:
    """Replace the workers under load; ask until the last one is gone."""

    async def ask(number: int, due: float) -> load.Answer:
        return await scripted.ask(side, number, due, TOKENS, PACE_MS)

    loaded = asyncio.create_task(load.opened(ask, RATE, count))
    await asyncio.sleep(TOKENS * PACE_MS / 1000)
    for victim in old:
        another()
        await scaling.balanced(side, OLD + 1)
        os.kill(victim, signal.SIGTERM)
        await scaling.balanced(side, OLD)  # which is so when the victim is gone
    replaced = not loaded.done()
    result = await loaded
    gaps = [max(answer.gaps) for answer in result.good if answer.gaps]
    return {
        **result.values(),
        "gap_max_ms": 1e3 * max(gaps, default=0.0),
        "under_load": float(replaced),
    }
