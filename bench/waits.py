"""Waits: the wait that a refusal tells, beside the wait that was; consumer lag beside the truth.

Two workers with eight places each get an open loop of requests, of which 3 % have answers 30 times
as long as the others; every request allows the same longest answer. Four times a second a request
that cannot wait is sent, and the wait that its refusal tells is compared with how long the next
request waited until its CLAIM. Twice a second the group's lag is read: what an autoscaler would
see, beside the requests that were unfinished then, and the tokens that the workers say are left.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import statistics
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import aiokafka.admin
import httpx
import uvloop

from bench import load, logged, measure, places, scaling, scripted, stacks
from gateway import backlog
from tailrace import log
from tailrace.local import plan as deployment
from tailrace.log import address
from tailrace.protocol import records, topics
from tailrace.store.redis_store import RedisStore
from tailrace.store.workers import Workers

NAME: Final = "waits"
OVER, UNDER = "", ""
PLOTS: Final = (
    "told_over_true_p50",
    "lag_over_unfinished",
    "interactive_first_eta_over_true_p50",
    "interactive_refusal_over_true_p50",
    "batch_first_eta_over_true_p50",
    "batch_refusal_over_true_p50",
)
WORKERS: Final = 2
PLACES: Final = 8  # of each worker
PACE_MS: Final = 40
SHORT, LONG, LONG_SHARE = 20, 600, 0.03  # tokens
MOST: Final = 1000  # tokens that every request allows
ANSWERS: Final = places.Answers(SHORT, LONG, LONG_SHARE, MOST, PACE_MS)
CAPACITY: Final = WORKERS * PLACES * 1000 / PACE_MS  # tokens per second
PROBE_S, LOOK_S = 0.25, 0.5
# Below it the time until a heartbeat is read is a great part of the wait.
LEAST_WAIT_S: Final = 3.0
CASES: Final = {"four fifths of the capacity": 0.8, "twice the capacity": 2.0}


@dataclass(slots=True)
class Seen:
    """What was seen during one load. Times are seconds of `time.time`.

    Attributes:
        asked: rid -> when it was asked.
        told: rid of the request behind a probe -> seconds that the probe was told.
        looks: (when, lag in records, tokens left by the heartbeats).
    """

    asked: dict[str, float] = field(default_factory=dict)
    told: dict[str, float] = field(default_factory=dict)
    looks: list[tuple[float, int, float]] = field(default_factory=list)


def run(plan: measure.Plan, _shared: Callable[[], stacks.Side]) -> Iterator[measure.Row]:
    settings = {"TAILRACE_MAX_NUM_SEQS": str(PLACES)}
    with stacks.tailrace(plan.scratch, workers=WORKERS, settings=settings) as side:
        uvloop.run(scaling.balanced(side, WORKERS))
        client = places.Client(side, ANSWERS)
        uvloop.run(places.warm(client, WORKERS * PLACES))
        for number in range(plan.pick(1, plan.rounds)):
            for case, load_factor in CASES.items():
                values = uvloop.run(
                    _measured(side, load_factor, plan.pick(10.0, 25.0), seed=number)
                )
                yield measure.Row(NAME, case, "tailrace", number, values)
            for mixed in places.CASES:
                values = uvloop.run(
                    places.measured(*(client, mixed, CAPACITY, plan.pick(10.0, 25.0)), seed=number)
                )
                yield measure.Row(NAME, mixed.name, "tailrace", number, values)


async def _measured(
    side: stacks.Side, load_factor: float, seconds: float, seed: int
) -> dict[str, float]:
    seen = Seen()
    looking = asyncio.create_task(_look(side, seen))
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_load(side, seen, load_factor, seconds, seed))
            tasks.create_task(_probe(side, seen, seconds))
        begun, ended = await _times(side, seen.asked)
    finally:
        looking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await looking
    waits = {rid: begun[rid] - at for rid, at in seen.asked.items()}
    values = _waits([(seen.told[rid], waits[rid]) for rid in seen.told])
    return {
        "requests": float(len(seen.asked)),
        "wait_max_s": max(waits.values()),
        **values,
        **_lag(seen, ended),
    }


def _waits(pairs: Sequence[tuple[float, float]]) -> dict[str, float]:
    """`told_over_true`, of waits that were long enough to be told.

    Args:
        pairs: seconds that were told and that were waited.
    """
    ratios = [told / true for told, true in pairs if true >= LEAST_WAIT_S]
    if not ratios:
        return {"told": 0.0}
    return {
        "told": float(len(ratios)),
        **{f"told_over_true_p{p}": measure.percentile(ratios, p) for p in (10, 50, 90)},
        "within_a_fifth": sum(0.8 <= ratio <= 1.2 for ratio in ratios) / len(ratios),
    }


def _lag(seen: Seen, ended: Mapping[str, float]) -> dict[str, float]:
    """Lag and unfinished requests at the look where they differ most."""
    looks = [
        (lag, sum(seen.asked[rid] <= at < ended[rid] for rid in seen.asked), tokens)
        for at, lag, tokens in seen.looks
    ]
    during = [each for each in looks if each[1] > 0]
    if not during:
        return {}
    lag, unfinished, tokens = max(during, key=lambda each: each[0])
    return {
        "lag_max": float(lag),
        "unfinished_then": float(unfinished),
        "tokens_left_then": tokens,
        "lag_over_unfinished": statistics.median(each[0] / each[1] for each in during),
    }


async def _load(
    side: stacks.Side, seen: Seen, load_factor: float, seconds: float, seed: int
) -> None:
    """An open loop of background requests."""
    rate = load_factor * CAPACITY / ANSWERS.mean
    drawn = random.Random(seed)
    began = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for number in itertools.count():
            at = began + number / rate
            if at - began > seconds:
                return
            await asyncio.sleep(at - time.perf_counter())
            tokens = ANSWERS.drawn(drawn)
            tasks.create_task(_ask(side, seen, number, tokens))


async def _ask(side: stacks.Side, seen: Seen, number: int, tokens: int) -> str:
    asked = scripted.body(side, number, tokens, PACE_MS, background=True)
    at = time.time()
    made = await load.fetch(
        side.url, "POST", "/v1/responses", side.headers, {**asked, "max_output_tokens": MOST}
    )
    seen.asked[made["id"]] = at
    return str(made["id"])


async def _probe(side: stacks.Side, seen: Seen, seconds: float) -> None:
    """Ask what cannot wait, and after a refusal the same with time to wait."""
    end = time.perf_counter() + seconds
    async with httpx.AsyncClient(base_url=side.url, headers=side.headers) as client:
        for number in itertools.count(1_000_000):
            if time.perf_counter() > end:
                return
            body = scripted.body(side, number, SHORT, PACE_MS, background=True, deadline_ms=1)
            refused = await client.post("/v1/responses", json=body)
            if refused.status_code == 429:
                rid = await _ask(side, seen, number, SHORT)
                seen.told[rid] = int(refused.headers["retry-after-ms"]) / 1000
            await asyncio.sleep(PROBE_S)


async def _look(side: stacks.Side, seen: Seen) -> None:
    """Note lag and heartbeats until cancelled."""
    async with _lag_reader(side.kafka) as lag, RedisStore(side.redis) as redis:
        while True:
            work = backlog.of(await Workers(redis).list_workers(deployment.POOL))
            left = work.running + sum(work.waiting)
            seen.looks.append((time.time(), await lag(), left))
            await asyncio.sleep(LOOK_S)


@contextlib.asynccontextmanager
async def _lag_reader(bootstrap: str) -> AsyncGenerator[Callable[[], asyncio.Future[int]]]:
    """Yield a function that returns the lag of the pool's group in its interactive topic."""
    topic = topics.requests(deployment.POOL, "interactive")
    admin = aiokafka.admin.AIOKafkaAdminClient(**address.options(bootstrap))
    offsets = log.Offsets(bootstrap)
    await admin.start()

    async def lag() -> int:
        committed = await admin.list_consumer_group_offsets(topics.group(deployment.POOL))
        places = {
            tp.partition: max(0, found.offset)
            for tp, found in committed.items()
            if tp.topic == topic
        }
        ends = await offsets.ends(topic, places)
        return sum(ends[partition] - at for partition, at in places.items())

    try:
        yield lambda: asyncio.ensure_future(lag())
    finally:
        await offsets.stop()
        await admin.close()


async def _times(
    side: stacks.Side, asked: Mapping[str, float]
) -> tuple[dict[str, float], dict[str, float]]:
    """When each response was claimed and ended, after all have ended."""
    for rid in asked:
        await scripted.finished(side, rid, poll_s=1.0)
    begun: dict[str, float] = {}
    ended: dict[str, float] = {}
    async for record, raw in logged.token_records(side.kafka, asked):
        if isinstance(record, records.Claim):
            begun.setdefault(record.rid, raw.timestamp / 1000)
        elif isinstance(record, records.End):
            ended[record.rid] = raw.timestamp / 1000
    if missing := asked.keys() - begun.keys():
        raise load.Failed(f"{len(missing)} responses were never claimed")
    return begun, ended
