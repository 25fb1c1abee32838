"""This checkout compared with another one, such as the former release, or with itself with other
settings, measured in turn.

Both run the scripted engine, so everything but a model is compared. The idle side is frozen.
`--other FOLDER` names an installed checkout (`make install`); `--set NAME=VALUE`, which can be
repeated, gives a setting to `this` side alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final

import uvloop

from bench import load, measure, scripted, stacks, whole_path

NAME: Final = "beside"
OVER, UNDER = "this", "other"
PLOTS: Final = (
    "tokens_per_s",
    "first_p50_ms",
    "cpu_servers_us_per_token",
    "requests_per_core_s",
    "events_per_core_s",
    "kib_per_idle_socket",
    "resident_mib",
)
STREAMS, TOKENS = 32, 256
CLIENTS, REQUESTS = 16, 40
WATCHERS: Final = 100
IDLE: Final = 500
ROLES: Final = ("gateway", "push", "worker")

Values = dict[str, float]
Case = tuple[str, Callable[[stacks.Side], Coroutine[Any, Any, Values]]]


def run(plan: measure.Plan, _shared: Callable[[], stacks.Side]) -> Iterator[measure.Row]:
    """Rows of both sides, in the order A B, B A.

    Raises:
        stacks.NotHere: Nothing was named that differs, or the other checkout is not installed.
    """
    if plan.other is None and not plan.settings:
        raise stacks.NotHere("something that differs: --other FOLDER or --set NAME=VALUE")
    with stacks.together(
        stacks.tailrace(plan.scratch, settings={**whole_path.SETTINGS, **plan.settings}),
        stacks.tailrace(plan.scratch, settings=whole_path.SETTINGS, tree=plan.other),
    ) as (new_side, old_side):
        sides = {OVER: (new_side, old_side), UNDER: (old_side, new_side)}
        for name, (side, _) in sides.items():
            values = {"resident_mib": _resident_mib(side)}  # before the first question
            yield measure.Row(NAME, "resident at start", name, 0, values)
        for number in range(-1, plan.rounds):
            for case, case_run in CASES if number >= 0 else [("warm", _warm)]:
                for name in (OVER, UNDER) if number % 2 == 0 else (UNDER, OVER):
                    side, still = sides[name]
                    with stacks.frozen(still):
                        values = uvloop.run(case_run(side))
                    if number >= 0:
                        yield measure.Row(NAME, case, name, number, values)


def _resident_mib(side: stacks.Side) -> float:
    return sum(measure.resident(side.roles[role]) for role in ROLES) / 2**20


async def _warm(side: stacks.Side) -> Values:
    await scripted.warm(side)
    return {}


async def _streams(side: stacks.Side) -> Values:
    with side.meter() as meter:
        result = await load.closed_loop(scripted.sender(side, TOKENS, 1), STREAMS, 3)
    return {**result.values(), **meter.per(result.tokens, "us_per_token")}


async def _requests(side: stacks.Side) -> Values:
    with side.meter() as meter:
        result = await load.closed_loop(scripted.sender(side, 4, 0), CLIENTS, REQUESTS)
    cpu_s = meter.cpu_by_role["gateway"]
    return {**result.values(), "requests_per_core_s": len(result.good) / cpu_s if cpu_s else 0.0}


async def _watchers(side: stacks.Side) -> Values:
    watchers = [scripted.Watcher() for _ in range(WATCHERS)]
    await load.gather_limited([watcher.open(side.push_url, side.headers) for watcher in watchers])
    with side.meter() as meter:
        rid = await scripted.start(side, WATCHERS, 200, 20)
        for watcher in watchers:
            watcher.watch(rid)
        await scripted.wait_for_watchers(watchers)
    for watcher in watchers:
        watcher.close()
    events, cpu_s = sum(w.events for w in watchers), meter.cpu_by_role["push"]
    return {"events": float(events), "events_per_core_s": events / cpu_s if cpu_s else 0.0}


async def _idle(side: stacks.Side) -> Values:
    """Memory of idle sockets. From the second round on, memory of earlier sockets is reused."""
    before = measure.resident(side.roles["push"])
    watchers = [scripted.Watcher() for _ in range(IDLE)]
    await load.gather_limited([watcher.open(side.push_url, side.headers) for watcher in watchers])
    await asyncio.sleep(1.0)
    growth = measure.resident(side.roles["push"]) - before
    for watcher in watchers:
        watcher.close()
    return {"kib_per_idle_socket": growth / 1024 / IDLE, "resident_mib": _resident_mib(side)}


CASES: Final[tuple[Case, ...]] = (
    (f"{IDLE} idle sockets", _idle),
    (f"{STREAMS} streams", _streams),
    (f"{CLIENTS} clients, short answers", _requests),
    (f"1 response, {WATCHERS} watchers", _watchers),
)
