"""Fan-out: one response to many watchers, many responses to one watcher each, and the cost of an
idle socket.

The figure is delivered events per CPU second of the push service, so it does not depend on the load
of the other processes. Every watcher must get every event, else there is no figure. One message may
carry several events. One response is watched in both forms of events, in turn, and
`bytes_around_token` are the bytes of a message of deltas without their text.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any, Final

import uvloop

from bench import load, measure, scripted, stacks

NAME: Final = "fanout"
OVER, UNDER = "compact", "push"
PLOTS: Final = (
    "events_per_core_s",
    "cpu_push_us_per_event",
    "cpu_push_ms_per_look_up",
    "kib_per_idle_socket",
    "bytes_around_token",
)
FULL: Final = 2000
LOOK_UPS: Final = 8  # watchers of cold responses that connect at once


def run(plan: measure.Plan, shared: Callable[[], stacks.Side]) -> Iterator[measure.Row]:
    side, many = shared(), plan.pick(300, FULL)
    for number in range(plan.rounds):
        for watchers in plan.pick((1, 100), (1, 100, FULL)):
            # A figure per core needs a busy core: 2,000 watchers get events faster than one message
            # per event could carry them.
            pace_ms, tokens = (10, 400) if watchers == FULL else (20, plan.pick(80, 200))
            case = f"1 response, {watchers} watchers"
            for name in (UNDER, OVER):
                compact = name == OVER
                values = uvloop.run(_one_to_many(side, watchers, tokens, pace_ms, compact=compact))
                yield measure.Row(NAME, case, name, number, values)
        if number == 0:  # it takes more than a minute
            for case, values in uvloop.run(
                _each_its_own(side, many, tokens=plan.pick(20, 60), pace_ms=plan.pick(500, 1000))
            ):
                yield measure.Row(NAME, case, "push", number, values)
        with stacks.second_push(side, plan.scratch) as fresh:
            yield measure.Row(
                NAME, f"{many} idle sockets", "push", number, uvloop.run(_idle(fresh, many))
            )


async def _one_to_many(
    side: stacks.Side, count: int, tokens: int, pace_ms: float, *, compact: bool
) -> dict[str, float]:
    messages: list[bytes] = []
    watchers = await _open(side, count, messages.append, compact=compact)
    with side.meter() as meter:
        rid = await scripted.start(side, count, tokens, pace_ms)
        for watcher in watchers:
            watcher.watch(rid)
        await scripted.wait_for_watchers(watchers)
    _close(watchers)
    await _check(side, {rid: watchers})
    return {**_values(watchers, meter), "bytes_around_token": _around(messages)}


def _around(messages: list[bytes]) -> float:
    """Bytes of one watcher's messages that have nothing but deltas, without the JSON of their text,
    per delta. The quotes are not of the text."""
    around = count = 0
    for message in messages:
        message_value: Any = json.loads(message)
        events = message_value[1:] if isinstance(message_value, list) else message_value["events"]
        texts = [each if isinstance(each, str) else each.get("delta") for each in events]
        if None not in texts:
            encoded_texts = [json.dumps(text, ensure_ascii=False).encode() for text in texts]
            around += len(message) - sum(map(len, encoded_texts)) + 2 * len(encoded_texts)
            count += len(encoded_texts)
    return around / count if count else 0.0


async def _each_its_own(
    side: stacks.Side, count: int, tokens: int, pace_ms: float
) -> list[tuple[str, dict[str, float]]]:
    """Measure two cases: look-ups of responses while others stream, then streaming to all."""
    watchers = await _open(side, count)
    by_rid: dict[str, list[scripted.Watcher]] = {}

    async def watch_one(number: int) -> None:
        rid = await scripted.start(side, number, tokens, pace_ms)
        by_rid[rid] = [watchers[number]]
        watchers[number].watch(rid)
        await watchers[number].first.wait()

    async with asyncio.timeout(2 * load.ANSWER_DEADLINE_S):
        with side.meter() as looking:
            await load.gather_limited([watch_one(n) for n in range(count)], LOOK_UPS)
    before = sum(w.events for w in watchers)
    with side.meter() as streaming:
        await scripted.wait_for_watchers(watchers)
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
    growth = measure.resident(side.roles["push"]) - before
    _close(watchers)
    return {
        "kib_per_idle_socket": growth / 1024 / count,
        "sockets": float(count),
        "push_cores": meter.cpu_by_role["push"] / meter.wall,
    }


async def _open(
    side: stacks.Side,
    count: int,
    on_message: Callable[[bytes], None] | None = None,
    *,
    compact: bool = False,
) -> list[scripted.Watcher]:
    """`on_message` gets the messages to the first of them."""
    watchers = [
        scripted.Watcher(on_message if n == 0 else None, compact=compact) for n in range(count)
    ]
    await load.gather_limited([watcher.open(side.push_url, side.headers) for watcher in watchers])
    return watchers


def _close(watchers: list[scripted.Watcher]) -> None:
    for watcher in watchers:
        watcher.close()


async def _check(side: stacks.Side, watchers_by_rid: dict[str, list[scripted.Watcher]]) -> None:
    """Check that every watcher got as many events as a later reader of the whole response.

    Raises:
        load.Failed: one did not.
    """
    expected_counts: dict[str, int] = {}
    # Only a sample: reading thousands of responses again would take minutes.
    sample = dict(list(watchers_by_rid.items())[:: max(1, len(watchers_by_rid) // 20)])
    for rid in sample:
        count_ = 0

        def count(event: bytes) -> None:
            nonlocal count_
            count_ += b'"sequence_number":' in event

        await load.exchange(
            side.url,
            "GET",
            f"/v1/responses/{rid}?stream=true",
            side.headers,
            on_body=load.EventReader(count).feed,
        )
        expected_counts[rid] = count_
    wrong = [
        (rid, w.events, expected_counts[rid])
        for rid, watchers in sample.items()
        for w in watchers
        if w.events != expected_counts[rid]
    ]
    if wrong:
        raise load.RequestFailed(
            f"{len(wrong)} watchers did not get every event, for example {wrong[0]}"
        )


def _values(
    watchers: list[scripted.Watcher], meter: measure.Meter, before: int = 0
) -> dict[str, float]:
    events, cpu_s = sum(w.events for w in watchers) - before, meter.cpu_by_role["push"]
    every = sum(w.events for w in watchers)
    return {
        "events": float(events),
        "events_per_s": events / meter.wall,
        "events_per_core_s": events / cpu_s if cpu_s else 0.0,
        "push_cores": cpu_s / meter.wall,
        "bytes_per_event": sum(w.bytes for w in watchers) / every,
        "events_per_message": every / sum(w.messages for w in watchers),
        **meter.per(events, "us_per_event"),
    }
