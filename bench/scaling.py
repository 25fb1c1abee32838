"""Scaling: tokens per second of 1, 2 and 4 workers of fixed capacity, on the partitions there are.

The scripted engine makes one token per response and pace interval, so a worker's capacity is known.
The difference to N times one worker's throughput is the cost of sharing. Where the cores are full
(see the CPU columns), the machine bounds the curve, not the design.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Final

import uvloop

from bench import load, measure, scripted, stacks
from tailrace.local import plan as deployment
from tailrace.store.redis_store import RedisStore
from tailrace.store.workers import Workers

NAME: Final = "scaling"
OVER, UNDER = "", ""
PLOTS: Final = ("tokens_per_s", "share_of_capacity")
CAPACITY: Final = 8
PACE_MS: Final = 20
TOKENS: Final = 60
SETTLE_S: Final = 60.0


def run(plan: measure.Plan, _shared: Callable[[], stacks.Side]) -> Iterator[measure.Row]:
    for number in range(plan.pick(1, min(2, plan.rounds))):
        with (
            stacks.tailrace(
                plan.scratch, settings={"TAILRACE_MAX_NUM_SEQS": str(CAPACITY)}
            ) as side,
            contextlib.ExitStack() as more,
        ):
            uvloop.run(scripted.warm(side))
            for workers in (1, 2, 4):
                while len(side.roles["worker"]) < workers:
                    side.roles["worker"].append(
                        more.enter_context(
                            stacks.second_worker(side, len(side.roles["worker"]) + 1)
                        )
                    )
                uvloop.run(wait_until_balanced(side, workers))
                yield measure.Row(
                    NAME,
                    f"{workers} workers",
                    "tailrace",
                    number,
                    _values(side, workers, plan.pick(3, 4)),
                )


def _values(side: stacks.Side, workers: int, each: int) -> dict[str, float]:
    """Run twice as many clients as there are engine slots, so that no slot waits for a client."""

    with side.meter() as meter:
        result = uvloop.run(
            load.closed_loop(scripted.sender(side, TOKENS, PACE_MS), 2 * CAPACITY * workers, each)
        )
    values = result.values()
    ideal = workers * CAPACITY * 1000 / PACE_MS
    return {
        **values,
        "share_of_capacity": values["tokens_per_s"] / ideal,
        **meter.per(result.tokens, "us_per_token"),
    }


async def wait_until_balanced(side: stacks.Side, workers: int, pool: str = deployment.POOL) -> None:
    """Wait until every worker of a pool reports partitions, and none more than a fair share.

    Raises:
        load.Failed: not in SETTLE_S.
    """
    end, shares = time.monotonic() + SETTLE_S, list[int]()
    async with RedisStore(side.redis) as redis:
        while time.monotonic() < end:
            live_workers = await Workers(redis).list_workers(pool)
            shares = sorted(len(worker["partitions"]) for worker in live_workers)
            if len(shares) == workers and shares[0] > 0 and shares[-1] - shares[0] <= 1:
                await asyncio.sleep(1.0)
                return
            await asyncio.sleep(0.2)
    raise load.RequestFailed(
        f"{workers} workers did not share the partitions in {SETTLE_S:.0f} s: {shares}"
    )
