"""Skew: every request lies in the partitions of one of two workers; with stealing and without.

The rate is 1.25 times what that worker can do, and 0.63 times what both can do. Requests get there
by their idempotency keys, from which partitions follow. Both sides run in turn, each on a
deployment of its own.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Collection, Iterator
from typing import Final

import uvloop

from bench import load, measure, scaling, scripted, stacks
from gateway import placement
from tailrace.local import dev_credentials
from tailrace.local import plan as deployment
from tailrace.protocol import records
from tailrace.store.redis_store import RedisStore
from tailrace.store.workers import Workers

NAME: Final = "skew"
OVER, UNDER = "stealing", "without"
PLOTS: Final = ("first_p50_ms", "first_p99_ms", "tokens_per_s")
CAPACITY: Final = 8
PACE_MS: Final = 20
TOKENS: Final = 60
RATE: Final = 1.25 * CAPACITY * 1000 / PACE_MS / TOKENS
STEAL_AFTER_MS: Final = {OVER: "500", UNDER: "0"}


def run(plan: measure.Plan, _shared: Callable[[], stacks.Side]) -> Iterator[measure.Row]:
    for number in range(plan.pick(1, min(2, plan.rounds))):
        for name in (OVER, UNDER) if number % 2 == 0 else (UNDER, OVER):
            settings = {
                "TAILRACE_MAX_NUM_SEQS": str(CAPACITY),
                "TAILRACE_STEAL_AFTER_MS": STEAL_AFTER_MS[name],
            }
            with (
                stacks.tailrace(plan.scratch, settings=settings) as side,
                contextlib.ExitStack() as s,
            ):
                uvloop.run(scripted.warm(side))
                side.roles["worker"].append(s.enter_context(stacks.another_worker(side, 2)))
                uvloop.run(scaling.balanced(side, 2))
                with side.meter() as meter:
                    result = uvloop.run(_load(side, plan.pick(80, 200)))
                yield measure.Row(
                    NAME,
                    f"{RATE:.1f} requests/s for one worker",
                    name,
                    number,
                    {**result.values(), **meter.per(result.tokens, "us_per_token")},
                )


async def _load(side: stacks.Side, count: int) -> load.Result:
    async with RedisStore(side.redis) as redis:
        workers = await Workers(redis).list_workers(deployment.POOL)
    mine = set(workers[0]["partitions"])
    total = sum(len(worker["partitions"]) for worker in workers)
    keys = list(itertools.islice(_keys(mine, total), count))

    async def ask(number: int, due: float) -> load.Answer:
        body = scripted.body(side, number, TOKENS, PACE_MS, stream=True)
        headers = {**side.headers, "idempotency-key": keys[number]}
        return await load.stream(side.url, "POST", "/v1/responses", headers, body, due)

    return await load.opened(ask, RATE, count)


def _keys(partitions: Collection[int], total: int) -> Iterator[str]:
    """Idempotency keys whose requests lie in these partitions."""
    owner = records.Owner(dev_credentials.ISSUER, "bench")
    of_key = functools.partial(placement.of_key, owner.key, partitions=total)
    for number in itertools.count():
        if of_key(f"skew-{number}") in partitions:
            yield f"skew-{number}"
