"""Hand-over: how long a reader waits when a worker ends by SIGTERM (drain) or by SIGKILL.

Measured at a socket of push, for each response that changed its worker: the longest gap between two
frames, and the median gap for comparison. A killed worker is noticed by its session timeout
(`session_timeout_ms`), so the gap includes it. `kill_to_next` counts from the signal.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import itertools
import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Final

import uvloop

from bench import load, logged, measure, scaling, scripted, stacks
from tailrace.protocol import records

NAME: Final = "handover"
OVER, UNDER = "", ""
PLOTS: Final = ("gap_p50_ms", "gap_max_ms")
STREAMS: Final = 16
PACE_MS: Final = 10
SESSION_MS: Final = 10_000  # the worker's default
DRAIN_S: Final = 3
# Signal, and tokens of an answer, which must outlast the drain.
CASES: Final = {"drained": (signal.SIGTERM, 700), "killed": (signal.SIGKILL, 300)}


def run(plan: measure.Plan, _shared: Callable[[], stacks.Side]) -> Iterator[measure.Row]:
    settings = {"TAILRACE_DRAIN_S": str(DRAIN_S), "TAILRACE_SESSION_TIMEOUT_MS": str(SESSION_MS)}
    with (
        stacks.tailrace(plan.scratch, workers=2, settings=settings) as side,
        contextlib.ExitStack() as more,
    ):
        uvloop.run(scripted.warm(side))
        names = itertools.count(3)  # two workers of one name would share one heartbeat
        for number in range(plan.pick(1, plan.rounds)):
            for case, (how, tokens) in CASES.items():
                uvloop.run(scaling.wait_until_balanced(side, 2))
                victim = side.roles["worker"].pop(0)
                yield measure.Row(
                    NAME, case, "tailrace", number, uvloop.run(_measure(side, victim, how, tokens))
                )
                side.roles["worker"].append(
                    more.enter_context(stacks.second_worker(side, next(names)))
                )


async def _measure(
    side: stacks.Side, victim: int, how: signal.Signals, tokens: int
) -> dict[str, float]:
    stamps: list[list[float]] = [[] for _ in range(STREAMS)]
    watchers = [scripted.Watcher(lambda _m, at=at: at.append(time.monotonic())) for at in stamps]  # type: ignore[misc]
    rids = [await scripted.start(side, n, tokens, PACE_MS) for n in range(STREAMS)]
    for watcher, rid in zip(watchers, rids, strict=True):
        await watcher.open(side.push_url, side.headers)
        watcher.watch(rid)
    await asyncio.sleep(1.0)
    os.kill(victim, how)
    sent_at = time.monotonic()
    await scripted.wait_for_watchers(watchers)
    for watcher in watchers:
        watcher.close()
    moved_rids = await _moved_rids(side.kafka, rids)
    gaps, waits, usual = [], [], []
    for at, rid in zip(stamps, rids, strict=True):
        if rid in moved_rids:
            between = sorted(
                (later - earlier, later)
                for earlier, later in itertools.pairwise(at)
                if later > sent_at
            )
            gaps.append(between[-1][0])
            waits.append(between[-1][1] - sent_at)
            usual.append(between[len(between) // 2][0])
    if not gaps:
        raise load.RequestFailed("no response changed hands")
    return {
        **measure.spread("gap", gaps),
        "gap_max_ms": 1e3 * max(gaps),
        "usual_gap_p50_ms": 1e3 * measure.percentile(usual, 50),
        **(measure.spread("kill_to_next", waits) if how is signal.SIGKILL else {}),
        "moved": float(len(gaps)),
        "session_timeout_ms": float(SESSION_MS),
    }


async def _moved_rids(bootstrap: str, rids: list[str]) -> set[str]:
    """The responses that a second worker ended."""
    claims = collections.Counter(
        [
            record.rid
            async for record, _ in logged.token_records(bootstrap, rids)
            if isinstance(record, records.Claim)
        ]
    )
    return {rid for rid in rids if claims[rid] > 1}
