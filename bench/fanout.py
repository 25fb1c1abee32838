"""Fan-out: one response to many watchers, many responses to one watcher each, and the cost of an
idle socket.

The figure is delivered events per CPU second of the push service, so it does not depend on the load
of the other processes. Every watcher must get every event, else there is no figure. One message may
carry several events.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Final

import uvloop

from bench import load, measure, scripted, stacks

NAME: Final = "fanout"
OVER, UNDER = "", ""
PLOTS: Final = (
    "events_per_core_s",
    "cpu_push_us_per_event",
    "cpu_push_ms_per_look_up",
    "kib_per_idle_socket",
)
FULL: Final = 2000
LOOK_UPS: Final = 8  # watchers of cold responses that ask at once


def run(plan: measure.Plan, shared: Callable[[], stacks.Side]) -> Iterator[measure.Row]:
    side, many = shared(), plan.pick(300, FULL)
    for number in range(plan.rounds):
        for watchers in plan.pick((1, 100), (1, 100, FULL)):
            # A figure per core needs a busy core: 2,000 watchers get events faster than one message
            # per event could carry them.
            pace_ms, tokens = (10, 400) if watchers == FULL else (20, plan.pick(80, 200))
            values = uvloop.run(_one_to_many(side, watchers, tokens=tokens, pace_ms=pace_ms))
            yield measure.Row(NAME, f"1 response, {watchers} watchers", "push", number, values)
        if number == 0:  # it takes more than a minute
            for case, values in uvloop.run(
                _each_its_own(side, many, tokens=plan.pick(20, 60), pace_ms=plan.pick(500, 1000))
            ):
                yield measure.Row(NAME, case, "push", number, values)
        with stacks.another_push(side, plan.scratch) as fresh:
            yield measure.Row(
                NAME, f"{many} idle sockets", "push", number, uvloop.run(_idle(fresh, many))
            )


async def _one_to_many(
    side: stacks.Side, count: int, tokens: int, pace_ms: float
) -> dict[str, float]:
    watchers = await _open(side, count)
    with side.meter() as meter:
        rid = await scripted.start(side, count, tokens, pace_ms)
        for watcher in watchers:
            watcher.watch(rid)
        await scripted.end_of(watchers)
    _close(watchers)
    await _check(side, {rid: watchers})
    return _values(watchers, meter)


async def _each_its_own(
    side: stacks.Side, count: int, tokens: int, pace_ms: float
) -> list[tuple[str, dict[str, float]]]:
    """Measure two cases: look-ups of responses while others stream, then streaming to all."""
    watchers = await _open(side, count)
    by_rid: dict[str, list[scripted.Watcher]] = {}

    async def follow(number: int) -> None:
        rid = await scripted.start(side, number, tokens, pace_ms)
        by_rid[rid] = [watchers[number]]
        watchers[number].watch(rid)
        await watchers[number].first.wait()

    async with asyncio.timeout(2 * load.ANSWER_DEADLINE_S):
        with side.meter() as looking:
            await load.many([follow(n) for n in range(count)], LOOK_UPS)
    before = sum(w.events for w in watchers)
    with side.meter() as streaming:
        await scripted.end_of(watchers)
    _close(watchers)
    await _check(side, by_rid)
    looked_up = {
        **looking.per(count, "ms_per_look_up", 1e3),
        "look_ups_per_s": count / looking.wall,
        "refused": float(sum(w.refused for w in watchers)),
    }
    return [
        (f"{count} responses, look-ups", looked_up),
        (f"{count} responses, 1 watcher each", _values(watchers, streaming, before)),
    ]


async def _idle(side: stacks.Side, count: int) -> dict[str, float]:
    """Resident memory that idle sockets add to a new push service, and its CPU share with them."""
    before = measure.resident(side.roles["push"])
    watchers = await _open(side, count)
    await asyncio.sleep(1.0)
    with side.meter() as meter:
        await asyncio.sleep(3.0)
    grown = measure.resident(side.roles["push"]) - before
    _close(watchers)
    return {
        "kib_per_idle_socket": grown / 1024 / count,
        "sockets": float(count),
        "push_cores": meter.used["push"] / meter.wall,
    }


async def _open(side: stacks.Side, count: int) -> list[scripted.Watcher]:
    watchers = [scripted.Watcher() for _ in range(count)]
    await load.many([watcher.open(side.push_url, side.headers) for watcher in watchers])
    return watchers


def _close(watchers: list[scripted.Watcher]) -> None:
    for watcher in watchers:
        watcher.close()


async def _check(side: stacks.Side, watched: dict[str, list[scripted.Watcher]]) -> None:
    """Check that every watcher got as many events as a later reader of the whole response.

    Raises:
        load.Failed: one did not.
    """
    expected: dict[str, int] = {}
    # Only a sample: reading thousands of responses again would take minutes.
    sample = dict(list(watched.items())[:: max(1, len(watched) // 20)])
    for rid in sample:
        seen = 0

        def count(event: bytes) -> None:
            nonlocal seen
            seen += b'"sequence_number":' in event

        await load.exchange(
            side.url,
            "GET",
            f"/v1/responses/{rid}?stream=true",
            side.headers,
            on_body=load.EventReader(count).feed,
        )
        expected[rid] = seen
    wrong = [
        (rid, w.events, expected[rid])
        for rid, watchers in sample.items()
        for w in watchers
        if w.events != expected[rid]
    ]
    if wrong:
        raise load.Failed(f"{len(wrong)} watchers did not get every event, for example {wrong[0]}")


def _values(
    watchers: list[scripted.Watcher], meter: measure.Meter, before: int = 0
) -> dict[str, float]:
    events, used = sum(w.events for w in watchers) - before, meter.used["push"]
    return {
        "events": float(events),
        "events_per_s": events / meter.wall,
        "events_per_core_s": events / used if used else 0.0,
        "push_cores": used / meter.wall,
        **meter.per(events, "us_per_event"),
    }
