"""This checkout beside another one, such as the former release, measured in turn.

Both run the scripted engine, so everything but a model is compared. The idle side is frozen.
`python -m bench beside --other FOLDER` needs an installed checkout there (`make install`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final

import uvloop

from bench import load, measure, scripted, stacks

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
# A side that is frozen for less keeps its partitions.
SETTINGS: Final = {"TAILRACE_SESSION_TIMEOUT_MS": "600000"}
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
        stacks.NotHere: No other checkout was named, or it is not installed.
    """
    if plan.other is None:
        raise stacks.NotHere("another checkout: --other FOLDER")
    with stacks.together(
        stacks.tailrace(plan.scratch, settings=SETTINGS),
        stacks.tailrace(plan.scratch, settings=SETTINGS, tree=plan.other),
    ) as (this, other):
        yield from in_turn(NAME, plan.rounds, {OVER: this, UNDER: other})


def in_turn(suite: str, rounds: int, sides: dict[str, stacks.Side]) -> Iterator[measure.Row]:
    """Rows of two sides by name, in the order A B, B A; the other one is frozen."""
    yield from (_resident(suite, side, name) for name, side in sides.items())
    names = list(sides)
    for number in range(-1, rounds):
        for case, asked in CASES if number >= 0 else [("warm", _warm)]:
            for name in names if number % 2 == 0 else reversed(names):
                [still] = [side for other, side in sides.items() if other != name]
                with stacks.frozen(still):
                    values = uvloop.run(asked(sides[name]))
                if number >= 0:
                    yield measure.Row(suite, case, name, number, values)


def _resident(suite: str, side: stacks.Side, name: str) -> measure.Row:
    """Memory of the services before the first question."""
    found = {role: measure.resident(side.roles[role]) / 2**20 for role in ROLES}
    values = {"resident_mib": sum(found.values())}
    return measure.Row(suite, "resident at start", name, 0, values)


async def _warm(side: stacks.Side) -> Values:
    await scripted.warm(side)
    return {}


async def _streams(side: stacks.Side) -> Values:
    async def ask(number: int, due: float) -> load.Answer:
        return await scripted.ask(side, number, due, TOKENS, 1)

    with side.meter() as meter:
        result = await load.closed(ask, STREAMS, 3)
    return {**result.values(), **meter.per(result.tokens, "us_per_token")}


async def _requests(side: stacks.Side) -> Values:
    async def ask(number: int, due: float) -> load.Answer:
        return await scripted.ask(side, number, due, 4, 0)

    with side.meter() as meter:
        result = await load.closed(ask, CLIENTS, REQUESTS)
    used = meter.used["gateway"]
    return {**result.values(), "requests_per_core_s": len(result.good) / used if used else 0.0}


async def _watchers(side: stacks.Side) -> Values:
    watchers = [scripted.Watcher() for _ in range(WATCHERS)]
    await load.many([watcher.open(side.push_url, side.headers) for watcher in watchers])
    with side.meter() as meter:
        rid = await scripted.start(side, WATCHERS, 200, 20)
        for watcher in watchers:
            watcher.watch(rid)
        await scripted.end_of(watchers)
    for watcher in watchers:
        watcher.close()
    events, used = sum(w.events for w in watchers), meter.used["push"]
    return {"events": float(events), "events_per_core_s": events / used if used else 0.0}


async def _idle(side: stacks.Side) -> Values:
    """Memory of idle sockets. From the second round on, memory of earlier sockets is reused."""
    before = measure.resident(side.roles["push"])
    watchers = [scripted.Watcher() for _ in range(IDLE)]
    await load.many([watcher.open(side.push_url, side.headers) for watcher in watchers])
    await asyncio.sleep(1.0)
    grown = measure.resident(side.roles["push"]) - before
    for watcher in watchers:
        watcher.close()
    resident = sum(measure.resident(side.roles[role]) for role in ROLES) / 2**20
    return {"kib_per_idle_socket": grown / 1024 / IDLE, "resident_mib": resident}


CASES: Final[tuple[Case, ...]] = (
    (f"{IDLE} idle sockets", _idle),
    (f"{STREAMS} streams", _streams),
    (f"{CLIENTS} clients, short answers", _requests),
    (f"1 response, {WATCHERS} watchers", _watchers),
)
