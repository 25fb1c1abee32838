"""Cancel: from the command of another connection to the engine's stop.

The worker's last frame of a cancelled response, ignored or not, says when the engine last made a
token that was sent. After the stop nothing is sent. So the figure is exact up to the time between
two tokens and one linger (docs/measurements/README.md), and frames in flight never make it
negative.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Final

import uvloop

from bench import load, logged, measure, scripted, stacks
from tailrace.protocol import records

NAME: Final = "cancel"
OVER, UNDER = "", ""
PLOTS: Final = ("stop_p50_ms", "stop_p99_ms", "answered_p50_ms")
PACE_MS: Final = 2
TOKENS: Final = 4000  # more than it can make before it is cancelled


def run(plan: measure.Plan, shared: Callable[[], stacks.Side]) -> Iterator[measure.Row]:
    side = shared()
    for number in range(plan.rounds):
        for streams in plan.pick((1, 8), (1, 32)):
            waves = plan.pick(3, 12) if streams == 1 else plan.pick(1, 3)
            yield measure.Row(
                NAME,
                f"{streams} streams",
                "tailrace",
                number,
                uvloop.run(_cancel_times(side, streams, waves)),
            )


async def _cancel_times(side: stacks.Side, streams: int, waves: int) -> dict[str, float]:
    requested_at: dict[str, float] = {}
    answer_times: list[float] = []

    async def cancel(rid: str) -> None:
        requested_at[rid] = time.time() * 1000
        ended = await load.fetch(side.url, "POST", f"/v1/responses/{rid}/cancel", side.headers)
        answer_times.append(time.time() * 1000 - requested_at[rid])
        if ended["status"] != "cancelled":
            raise load.RequestFailed(f"{rid} is {ended['status']}")

    for wave in range(waves):
        rids = [
            await scripted.start(side, wave * streams + n, TOKENS, PACE_MS) for n in range(streams)
        ]
        await asyncio.sleep(0.5)
        await asyncio.gather(*map(cancel, rids))
    await asyncio.sleep(1.0)  # an engine that had not stopped would still be writing
    stops = await _stops(side.kafka, requested_at)
    return {
        **measure.spread("stop", (ms / 1000 for ms in stops)),
        **measure.spread("answered", (ms / 1000 for ms in answer_times)),
        "stop_max_ms": max(stops),
        "cancels": float(len(stops)),
    }


async def _stops(bootstrap: str, requested_at: dict[str, float]) -> list[float]:
    """Per response: ms from the cancel to the last frame that its worker sent.

    0 when that frame was sent before the cancel.
    """
    last: dict[str, float] = {}
    async for record, _ in logged.token_records(bootstrap, requested_at):
        if isinstance(record, records.Tok):
            last[record.rid] = max(record.ts, last.get(record.rid, 0.0))
    if silent := requested_at.keys() - last.keys():
        raise load.RequestFailed(
            f"{len(silent)} responses were cancelled before their first token: nothing was stopped"
        )
    return [max(0.0, last[rid] - at) for rid, at in requested_at.items()]
