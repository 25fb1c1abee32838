"""Hedge: first tokens of short prompts, of which one worker of two is at times too busy with a long
prompt; with hedged requests, of one in twenty at most, and without.

The scripted engine computes one prompt after another, so what comes to a worker behind a long
prompt waits for that. Both sides run in turn, each on a deployment of its own.
"""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Callable, Iterator
from typing import Final

import uvloop

from bench import load, measure, scaling, scripted, stacks
from tailrace.local import plan as deployment

NAME: Final = "hedge"
OVER, UNDER = "hedged", "without"
PLOTS: Final = ("first_p50_ms", "first_p99_ms", "hedged_share")
SHARE: Final = {OVER: 0.05, UNDER: 0.0}
RATE: Final = 10.0
TOKENS, PACE_MS = 20, 20
PREFILL_MS: Final = 500  # for a thousand tokens of a prompt
LONG, LONG_EVERY = 8_000, 150  # characters, which take a second; and which of the requests
SHORT: Final = 80


def run(plan: measure.Plan, _shared: Callable[[], stacks.Side]) -> Iterator[measure.Row]:
    for number, name in measure.turns(plan.pick(1, min(2, plan.rounds)), OVER, UNDER):
        pool = {"models": ["scripted"], "engine": "scripted", "hedge": {"share": SHARE[name]}}
        pools = plan.scratch / "hedge-pools.json"
        pools.write_text(json.dumps({"pools": {deployment.POOL: pool}}))
        settings = {
            "TAILRACE_POOLS": str(pools),
            "TAILRACE_SCRIPT_PREFILL_MS": str(PREFILL_MS),
        }
        with (
            stacks.tailrace(plan.scratch, settings=settings) as side,
            contextlib.ExitStack() as more,
        ):
            uvloop.run(scripted.warm(side))
            side.roles["worker"].append(more.enter_context(stacks.another_worker(side, 2)))
            uvloop.run(scaling.balanced(side, 2))
            with side.meter() as meter:
                values, tokens = uvloop.run(_values(side, plan.pick(300, 900)))
            cpu = meter.per(tokens, "us_per_token")
            case = f"{RATE:.0f} requests/s, one in {LONG_EVERY} long"
            yield measure.Row(NAME, case, name, number, {**values, **cpu})


async def _values(side: stacks.Side, count: int) -> tuple[dict[str, float], int]:
    """What short requests saw, and all tokens."""

    async def ask(number: int, due: float) -> load.Answer:
        pick = random.Random(number)
        text = "".join(pick.choices("abcdefgh ", k=LONG if _is_long(number) else SHORT))
        body = scripted.body(side, number, TOKENS, PACE_MS, stream=True, input=text)
        return await load.stream(side.url, "POST", "/v1/responses", side.headers, body, due)

    offered = _offered(side)
    result = await load.opened(ask, RATE, count)
    short = [answer for n, answer in enumerate(result.answers) if not _is_long(n)]
    values = load.Result(short, result.wall).values()
    hedges = _offered(side) - offered
    failed = float(len(result.answers) - len(result.good))
    return {**values, "failed": failed, "hedged_share": hedges / count}, result.tokens


def _is_long(number: int) -> bool:
    return number % LONG_EVERY == LONG_EVERY - 1


def _offered(side: stacks.Side) -> float:
    """How many hedges the gateway has offered."""
    return stacks.metric(side.roles["gateway"][0], "tailrace_hedges_offered_total") or 0.0
