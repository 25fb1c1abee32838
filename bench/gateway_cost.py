"""Gateway: the CPU time of one request and the delay it adds, with an engine that costs nothing.

A closed loop measures requests per second and core (requests over the gateway's CPU seconds), an
open loop latency. In turn, this process appends to the same log at the same rate. The time of
`response.created` beyond such an append is the gateway's.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Final

import uvloop

from bench import load, logged, measure, scripted, stacks
from tailrace import log

NAME: Final = "gateway"
OVER, UNDER = "gateway", "append alone"
PLOTS: Final = ("begun_p50_ms", "begun_p99_ms", "requests_per_core_s", "cpu_gateway_ms_per_request")
TOKENS: Final = 4
SCRATCH: Final = "bench.appends"  # a topic without readers, for the appends to compare with


def run(plan: measure.Plan, shared: Callable[[], stacks.Side]) -> Iterator[measure.Row]:
    side = shared()
    uvloop.run(log.create_topics(side.kafka, [SCRATCH], partitions=1))
    send = scripted.sender(side, TOKENS, 0)
    for number in range(plan.rounds):
        for clients in plan.pick((16,), (1, 16, 64)):
            with side.meter() as meter:
                result = uvloop.run(
                    load.closed_loop(send, clients, plan.pick(160, 640) // max(8, clients))
                )
            yield measure.Row(
                NAME, f"closed loop, {clients} clients", OVER, number, _values(result, meter)
            )
        for rate in plan.pick((40,), (40, 80)):
            count = rate * plan.pick(4, 6)
            for name in (OVER, UNDER) if number % 2 == 0 else (UNDER, OVER):
                with side.meter() as meter:
                    result = uvloop.run(
                        load.open_loop(send, rate, count)
                        if name == OVER
                        else _appends(side, rate, count)
                    )
                yield measure.Row(
                    NAME,
                    f"open loop, {rate}/s",
                    name,
                    number,
                    _values(result, meter) if name == OVER else result.values(),
                )


def _values(result: load.Result, meter: measure.Meter) -> dict[str, float]:
    cpu_s, count = meter.cpu_by_role["gateway"], len(result.good)
    return {
        **result.values(),
        **meter.per(count, "ms_per_request", 1e3),
        "requests_per_core_s": count / cpu_s if cpu_s else 0.0,
    }


async def _appends(side: stacks.Side, rate: float, count: int) -> load.Result:
    """Append records of a request's size. Each is awaited until the broker acknowledges it."""
    value = os.urandom(1500)
    async with logged.writer(side.kafka) as writer:

        async def append(number: int, due: float) -> load.Answer:
            answer = load.Answer(due)
            try:
                await writer.append(SCRATCH, 0, str(number), value)
            except log.AppendFailed as error:
                answer.error = str(error)
            answer.began = answer.ended = time.perf_counter()
            answer.stamps = [answer.began]
            return answer

        await append(-1, time.perf_counter())  # connects
        return await load.open_loop(append, rate, count)
