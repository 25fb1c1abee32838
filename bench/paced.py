"""Paced: streams of an engine that steps as a GPU does, beside the least that a server can be.

All streams get a token a step. The step's duration is that of a small model on an H100, by the
number of streams; prompts cost nothing. So this shows without a GPU what the way from the engine to
the client adds: to the first token of requests that begin in one instant, to the gaps between
tokens (as multiples of the step), and in CPU time per token. The floor is `bench.floor_server`: one
process that keeps nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import uvloop

from bench import load, measure, scripted, stacks

NAME: Final = "paced"
OVER, UNDER = stacks.OURS, stacks.FLOOR
PLOTS: Final = ("gap_p50_steps", "gap_p99_steps", "first_p50_ms", "cpu_servers_us_per_token")
# (streams, milliseconds of a step), measured on one H100.
STEPS: Final = ((1, 6.1), (8, 6.2), (32, 6.6), (128, 8.2))
SETTING: Final = ",".join(f"{most}:{ms}" for most, ms in STEPS)


def run(plan: measure.Plan, _: Callable[[], stacks.Side]) -> Iterator[measure.Row]:
    tokens = plan.pick(100, 300)
    settings = {"TAILRACE_SCRIPT_STEPS": SETTING}
    with (
        stacks.tailrace(plan.scratch, settings=settings) as ours,
        stacks.floor(plan.scratch, SETTING) as floor,
    ):
        for side in (ours, floor):
            uvloop.run(scripted.warm(side))
        for number, side in measure.turns(plan.rounds, ours, floor):
            for streams, step_ms in STEPS:
                send = scripted.sender(side, tokens, 0)
                with side.meter() as meter:
                    result = uvloop.run(load.closed_loop(send, streams, 1))
                case = f"{streams} stream{'s' if streams > 1 else ''}, a step of {step_ms} ms"
                yield measure.Row(NAME, case, side.name, number, _values(result, meter, step_ms))


def _values(result: load.Result, meter: measure.Meter, step_ms: float) -> dict[str, float]:
    values = result.values()
    for p in (50, 99):
        values[f"gap_p{p}_steps"] = values[f"gap_p{p}_ms"] / step_ms
    return {**values, **meter.per(result.tokens, "us_per_token")}
