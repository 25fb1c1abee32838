"""Resume: read a finished answer of 2,000 tokens from a new instance, with Redis empty.

Each round starts a push instance. Its first response includes the one-time costs of a new process;
further ones are cold responses on a warm instance.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import redis.asyncio
import uvloop

from bench import load, measure, scripted, stacks

NAME: Final = "resume"
OVER, UNDER = "", ""
PLOTS: Final = ("first_event_p50_ms", "whole_p50_ms")
TOKENS: Final = 2000


def run(plan: measure.Plan, shared: Callable[[], stacks.Side]) -> Iterator[measure.Row]:
    side, count = shared(), plan.pick(4, 10)
    for number in range(plan.rounds):
        rids = uvloop.run(_answers(side, count))
        with stacks.second_push(side, plan.scratch) as fresh:
            uvloop.run(_forget(side))
            yield measure.Row(
                NAME, "first on a new instance", "push", number, uvloop.run(_read(fresh, rids[:1]))
            )
            yield measure.Row(
                NAME,
                "cold response, warm instance",
                "push",
                number,
                uvloop.run(_read(fresh, rids[1:])),
            )


async def _answers(side: stacks.Side, count: int) -> list[str]:
    rids = [await scripted.start(side, n, TOKENS, 1) for n in range(count)]
    for rid in rids:
        ended = await scripted.wait_for_response(side, rid)
        if ended["usage"]["output_tokens"] != TOKENS:
            raise load.RequestFailed(f"{rid} has {ended['usage']} tokens")
    return rids


async def _forget(side: stacks.Side) -> None:
    """Empty Redis, so that an instance must read everything from the log."""
    async with contextlib.aclosing(redis.asyncio.from_url(side.redis)) as client:
        await client.flushall()


async def _read(side: stacks.Side, rids: list[str]) -> dict[str, float]:
    firsts, wholes, numbers = [], [], []
    for rid in rids:
        arrivals: list[float] = []
        last: list[dict[str, Any]] = []

        def on_event(
            event: bytes, arrivals: list[float] = arrivals, last: list[dict[str, Any]] = last
        ) -> None:
            arrivals.append(time.perf_counter())
            if any(mark in event for mark in scripted.TERMINAL_MARKS):
                last.append(load.event_data(event))

        began = time.perf_counter()
        await load.exchange(
            side.push_url,
            "GET",
            f"/v1/responses/{rid}?stream=true",
            side.headers,
            on_body=load.EventReader(on_event).feed,
        )
        wholes.append(time.perf_counter() - began)
        firsts.append(arrivals[0] - began)
        # Every event but [DONE] has a number, dense from 0, so the last number shows whether any
        # was missing.
        if (
            not last
            or last[0]["sequence_number"] != len(arrivals) - 2
            or last[0]["response"]["usage"]["output_tokens"] != TOKENS
        ):
            raise load.RequestFailed(f"{rid} was not read whole: {len(arrivals)} events")
        numbers.append(len(arrivals) - 1)
    return {
        **measure.spread("first_event", firsts),
        **measure.spread("whole", wholes),
        "events": sum(numbers) / len(numbers),
    }
