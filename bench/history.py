"""Cost of history: the same questions to a stack with a long log and to one with an empty log.

Two stacks run side by side. The token topic of one is filled with whole, well-formed old responses.
The broker of the other gets as many records of the same size in a topic without readers, so that
both brokers are equally warm.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import uvloop

from bench import load, logged, measure, scripted, stacks
from tailrace import log
from tailrace.protocol import events, fold, ids, records, topics

NAME: Final = "history"
OVER, UNDER = "much history", "empty log"
PLOTS: Final = ("records_per_s", "begun_p50_ms", "first_p50_ms", "first_p99_ms", "gap_p99_ms")
SCRATCH: Final = "bench.history"
FRAMES: Final = 98  # TOK records of one former response
IN_FLIGHT: Final = 5_000
OWNER: Final = records.Owner("https://bench.invalid", "former")


def run(plan: measure.Plan, _shared: Callable[[], stacks.Side]) -> Iterator[measure.Row]:
    count = plan.pick(20_000, 500_000)  # an hour of 140 records a second
    with stacks.together(stacks.tailrace(plan.scratch), stacks.tailrace(plan.scratch)) as (
        full,
        empty,
    ):
        for side in (full, empty):
            began = time.perf_counter()
            uvloop.run(fill(side.kafka, -(-count // (FRAMES + 2)), real=side is full))
            yield measure.Row(
                NAME,
                "filling",
                OVER if side is full else UNDER,
                0,
                {"records_per_s": count / (time.perf_counter() - began)},
            )
        sides = {OVER: full, UNDER: empty}
        for side in sides.values():
            uvloop.run(scripted.warm(side))
        for number, name in measure.turns(plan.rounds, OVER, UNDER):
            for streams in (1, 16):
                with sides[name].meter() as meter:
                    each = 24 if streams == 1 else plan.pick(4, 6)
                    send = scripted.sender(sides[name], 40, 5)
                    result = uvloop.run(load.closed_loop(send, streams, each))
                values = {
                    **result.values(),
                    **meter.per(result.tokens, "us_per_token"),
                    "records_behind": float(count),
                }
                yield measure.Row(NAME, f"{streams} streams", name, number, values)


async def fill(bootstrap: str, responses: int, *, real: bool = True, frames: int = FRAMES) -> None:
    """Append whole responses of `frames` frames, spread over the partitions; unless `real`, to a
    topic that no service reads."""
    layout = await log.layout(bootstrap)
    if not real:
        await log.create_topics(bootstrap, [SCRATCH], partitions=1)
    flying: list[asyncio.Future[log.Appended]] = []
    async with logged.writer(bootstrap) as writer:
        for number in range(responses):
            partition = number % layout.partitions
            rid = ids.mint(ids.Address(layout.tag, partition, 0), os.urandom(ids.RANDOM_BYTES))
            for record in former(rid, frames):
                topic, place = (topics.TOKENS, partition) if real else (SCRATCH, 0)
                flying.append(writer.append(topic, place, rid, records.encode(record)))
            if len(flying) >= IN_FLIGHT:
                await asyncio.gather(*flying)
                flying.clear()
        await asyncio.gather(*flying)


def former(rid: str, frames: int = FRAMES) -> Iterable[records.TokenRecord]:
    """A whole response as a worker writes it: one claim, its frames, one end."""
    own, h = os.urandom(16).hex(), fold.H0
    echo = events.echo(rid, 0, "former")
    yield records.Claim(
        rid,
        own,
        None,
        OWNER,
        "former/1",
        topics.requests("default", "interactive"),
        0,
        "former-1",
        "former-1",
        echo=echo,
    )
    for seq in range(frames):
        yield records.Tok(rid, own, seq, [seq], " word", h)
        h = fold.roll(h, [seq])
    yield records.End(rid, own, frames, "stop", h, usage=records.Usage(1, frames))
