"""The fault injector of the mixture: what can be done to a stage, and how often, drawn from the
drill's seed."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import time
from collections.abc import Awaitable, Callable, Sequence

import aiokafka
import redis.asyncio

from tailrace import log
from tailrace.protocol import ids, records, topics
from tests.faults import archived, drill, stage

CREATES = 30
# Twelve seconds: a CANCEL that follows a claim in the log comes before the end, also where the
# gateway's writer needs some seconds to reach a broker that is back on a busy machine.
CREATE_TOKENS, CREATE_PACE_MS = 600, 20
CREATES_FAIL_S = 16.0  # longer than a create takes to fail
REDIS_STOPPED_S = 2.0  # more than one call of a service waits
WARM_UP_S = 3.0  # undisturbed, so that responses stream when the first fault comes
# All workers of a pool are away: for longer than gateways take to see it (a heartbeat's 5 s, and
# 2 s) and to ask another pool.
POOL_AWAY_S = (11.0, 15.0)
BETWEEN_POOLS_S = (20.0, 50.0)  # undisturbed by that
BEGIN_S = 1.0  # in which some responses get their first tokens

Fault = Callable[[drill.Drill], Awaitable[None]]


def _worker(d: drill.Drill) -> str | None:
    """A living worker, if at least one other lives. While the first pool is lost, it is one of the
    second."""
    role = "fallback" if d.away else "worker"
    alive = [s.name for s in d.stage.of(role) if s.alive]
    return d.rng.choice(alive) if len(alive) > 1 else None


async def kill_worker(d: drill.Drill) -> None:
    if name := _worker(d):
        d.kill(name)


async def term_worker(d: drill.Drill) -> None:
    """Scale-in: it finishes or yields, then goes."""
    if name := _worker(d):
        d.fault("term", name)
        d.stage.send(name, signal.SIGTERM)


async def stop_worker(d: drill.Drill) -> None:
    """Past its session: a zombie comes back."""
    if name := _worker(d):
        d.pause(name)
        await asyncio.sleep(d.stage.session_ms / 1000 + d.rng.uniform(1.0, 3.0))
        d.resume(name)


async def blink_worker(d: drill.Drill) -> None:
    """For less than its session."""
    if name := _worker(d):
        d.fault("short stop", name)
        d.stage.send(name, signal.SIGSTOP)
        await asyncio.sleep(d.stage.session_ms / 1000 * d.rng.uniform(0.2, 0.6))
        d.stage.send(name, signal.SIGCONT)


async def lose_pool(d: drill.Drill) -> None:
    """No worker of the first pool works: each is killed, or stopped and comes back as a zombie.
    Beside all that runs, there is plain text that has begun and some that has to wait."""
    await d.crowd.ask_many(3, tokens=400, pace_ms=20, sampling=d.rng.randrange(2))
    await asyncio.sleep(BEGIN_S)
    workers = d.stage.of("worker")
    d.fault("pool lost", stage.POOL)
    d.away = {service.name for service in workers}
    for service in workers:
        if d.rng.random() < 0.5:
            d.stage.kill(service.name)
        elif service.alive:
            d.stage.send(service.name, signal.SIGSTOP)
    await asyncio.gather(
        d.crowd.ask_many(3, tokens=100, sampling=d.rng.randrange(2)),
        asyncio.sleep(d.rng.uniform(*POOL_AWAY_S)),
    )
    d.away.clear()
    for service in workers:
        if service.alive:
            d.stage.send(service.name, signal.SIGCONT)


async def lose_pools(d: drill.Drill, until: float) -> None:
    """Beside the other faults, which stay as frequent as they are."""
    last = until - POOL_AWAY_S[1]
    while time.monotonic() + (pause_s := d.rng.uniform(*BETWEEN_POOLS_S)) < last:
        await asyncio.sleep(pause_s)
        await lose_pool(d)


async def kill_gateway(d: drill.Drill) -> None:
    d.kill(d.rng.choice(d.stage.of("gateway")).name)


async def kill_push(d: drill.Drill) -> None:
    d.kill(d.rng.choice(d.stage.of("push")).name)


async def term_edge(d: drill.Drill) -> None:
    name = d.rng.choice(d.stage.of("push") + d.stage.of("gateway")).name
    d.fault("term", name)
    d.stage.send(name, signal.SIGTERM)


async def partition(d: drill.Drill) -> None:
    name = d.rng.choice(list(d.stage.kafka.links))
    d.fault("partition", name)
    up, down = d.rng.choice(((True, True), (True, False), (False, True)))
    d.stage.kafka.links[name].partition(up=up, down=down)
    await asyncio.sleep(d.rng.uniform(1.0, 6.0))
    d.stage.kafka.links[name].heal()


async def lose_responses(d: drill.Drill) -> None:
    """Loses what the broker answers: appends succeed, and the client is not told."""
    d.fault("responses lost", "worker-1")
    link = d.stage.kafka.links["worker-1"]
    link.lost_down = True
    await asyncio.sleep(d.rng.uniform(0.05, 0.6))
    link.heal()


async def slow_link(d: drill.Drill) -> None:
    name = d.rng.choice(list(d.stage.kafka.links))
    d.fault("latency", name)
    d.stage.kafka.links[name].delay_s = 0.2
    await asyncio.sleep(d.rng.uniform(1.0, 4.0))
    d.stage.kafka.links[name].heal()


async def hurt_redis(d: drill.Drill) -> None:
    kind = d.rng.choice(("flush", "stop", "kill"))
    d.fault(kind, "redis")
    if kind == "kill":
        d.stage.redis.kill()
        await asyncio.sleep(d.rng.uniform(0.5, 3.0))
        d.stage.redis.start()
    elif kind == "stop":
        os.kill(d.stage.redis.pid, signal.SIGSTOP)
        await asyncio.sleep(REDIS_STOPPED_S)
        os.kill(d.stage.redis.pid, signal.SIGCONT)
    else:
        async with redis.asyncio.from_url(d.stage.redis.url) as client:
            await client.flushall()


async def kill_broker(d: drill.Drill) -> None:
    d.fault("kill", "kafka")
    d.stage.kafka.kill()
    await asyncio.sleep(d.rng.uniform(0.1, 1.0))
    d.stage.kafka.launch()
    await asyncio.to_thread(d.stage.kafka.wait_ready)


async def stop_broker(d: drill.Drill) -> None:
    d.fault("stop", "kafka")
    os.kill(d.stage.kafka.pid, signal.SIGSTOP)
    await asyncio.sleep(d.rng.uniform(0.5, 4.0))
    os.kill(d.stage.kafka.pid, signal.SIGCONT)


async def ask_without_broker(d: drill.Drill, how: signal.Signals) -> None:
    """Creates while the broker is stopped or killed, with and without keys; all have their answer
    before it is back."""
    on, loop = d.stage, asyncio.get_running_loop()
    for service in on.of("gateway"):  # which learns the broker's time from this
        assert await d.crowd.ask(tokens=5, pace_ms=2, gateway=service.url)
    asking, began = set[asyncio.Future[object]](), loop.time()
    d.fault("stop" if how is signal.SIGSTOP else "kill", "kafka")
    for i in range(CREATES):
        key = f"{d.name}-{d.seed}-{i}" if i % 3 == 0 else None
        create = d.crowd.ask(tokens=CREATE_TOKENS, pace_ms=CREATE_PACE_MS, key=key)
        asking.add(asyncio.ensure_future(create))
        if i == CREATES // 3:  # some are acknowledged, some on their way, some not sent
            os.kill(on.kafka.pid, how)
        await asyncio.sleep(0.02)
    await asyncio.sleep(began + CREATES_FAIL_S - loop.time())
    if how is signal.SIGSTOP:
        os.kill(on.kafka.pid, signal.SIGCONT)
    else:
        on.kafka.kill()
        on.kafka.launch()
        await asyncio.to_thread(on.kafka.wait_ready)
    await asyncio.gather(*asking)
    await asyncio.to_thread(on.wait_ready)


async def write_garbage(d: drill.Drill) -> None:
    d.fault("garbage", "every topic")
    await garbage(d.stage.kafka.bootstrap, d.stage.pools, d.rng)


async def replay(d: drill.Drill, most: int = 6) -> None:
    """Records arrive a second time, late: what a producer's retry or a healed partition may do. All
    of it is ignored by the log rule."""
    d.fault("replay", "llm.tokens")
    writer = log.Writer(d.stage.kafka.bootstrap, client_id="replay")
    running = asyncio.ensure_future(writer.run())
    try:
        for asked in d.crowd.asked[-most:]:
            found = [r for _, r in await d.records_of(asked.rid)]
            if not found:
                continue
            again = [
                found[0],
                *d.rng.sample(found, min(4, len(found))),
                found[-1],
            ]  # the first claim, some of all, the newest
            for r in again:
                await writer.append(
                    topics.TOKENS, ids.parse(asked.rid).partition, asked.rid, records.encode(r)
                )
    except log.AppendFailed:
        pass  # the broker is away: nothing arrives twice just now
    finally:
        await writer.stop()
        running.cancel()


FAULTS: dict[Fault, float] = {
    kill_worker: 40,
    stop_worker: 14,
    term_worker: 8,
    blink_worker: 4,
    kill_gateway: 6,
    kill_push: 6,
    term_edge: 4,
    partition: 8,
    lose_responses: 8,
    slow_link: 3,
    hurt_redis: 5,
    write_garbage: 2,
    replay: 6,
    stop_broker: 2,
    kill_broker: 1.5,
    archived.kill: 6,
    archived.stop: 3,
    archived.drop: 3,
}


async def rage(d: drill.Drill, until: float, pause_s: tuple[float, float]) -> None:
    """One fault after the other, with pauses, until then. A fault may go on while the next
    begins."""
    running: set[asyncio.Task[None]] = set()
    await asyncio.sleep(WARM_UP_S)
    while time.monotonic() < until:
        fault = d.rng.choices(list(FAULTS), list(FAULTS.values()))[0]
        task = asyncio.ensure_future(fault(d))
        running.add(task)
        if fault in (kill_broker, stop_broker, hurt_redis):
            await task  # no second fault on these at the same time
        await asyncio.sleep(d.rng.uniform(*pause_s))
        for done in [t for t in running if t.done()]:
            running.discard(done)
            done.result()
    if running:
        await asyncio.wait(running)


async def heal(d: drill.Drill) -> None:
    """Undoes every fault. Killed processes are started again by their supervisor."""
    for link in d.stage.kafka.links.values():
        link.heal()
    for service in d.stage.services.values():
        if service.alive:
            d.stage.send(service.name, signal.SIGCONT)


JUNK = (
    b"",
    b"{",
    b"null",
    b"\xff\xfe\x00",
    b"[" * 5000,
    b'{"t":"TOK"}',
    b'{"t":"NEW","v":9}',
    b'{"t":"CLAIM","rid":7}',
    None,
)


async def garbage(bootstrap: str, pools: Sequence[str], rng: random.Random) -> int:
    """A little of everything that is no record, on every partition of what services read or write;
    how many records."""
    # A record of a response that no client has asked for, under the key that such a record has:
    # under another one the judge would call it forged (A1).
    unknown = "resp_" + "x" * 32
    valid = json.dumps({"t": "YIELD", "rid": unknown, "own": "a", "seq": 0}).encode()
    names = [topics.requests(pool, c) for pool in pools for c in topics.CLASSES] + [
        topics.TOKENS,
        topics.DELETIONS,
        topics.DLQ,
        topics.USAGE,
        topics.HISTORY,
        topics.ACTIVITY,
        topics.CONVERSATIONS,
    ]
    uncounted = (topics.DELETIONS, topics.HISTORY, topics.ACTIVITY, topics.CONVERSATIONS)
    producer = aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap)
    await producer.start()
    sent = 0
    try:
        for name in names:
            for partition in await producer.partitions_for(name):
                for value in [*rng.sample(JUNK, 5), valid]:
                    key = unknown.encode() if value is valid else b"k"
                    await producer.send(name, value=value, key=key, partition=partition)
                    # What the judge does not count as garbage.
                    sent += name not in uncounted
        await producer.flush()
    finally:
        await producer.stop()
    return sent
