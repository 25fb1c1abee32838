"""The short selection: each fault once or a few times, with the draws of one seed, on one stage.
`python -m tests.faults` runs the long mixture."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest
import redis.asyncio

from tailrace.verify import report
from tests.faults import chaos, crowd, drill, plants, stage
from tests.faults.conftest import LONG, SEED

# Durations of faults.
PAST_SESSION_S = 3.0  # a partition of the network outlasts the session by this much
PUSH_CUT_OFF_S = 4.0
REDIS_STOPPED_S = 2.0
REDIS_AWAY_S = 2.0
BROKER_AWAY_S = 1.0
LOSING_S, BETWEEN_S = 0.4, 1.0  # answers are lost, then pass again

# Before and after the log has the request; the other points are nightly.
BY_DAY = ("die_before_the_send", "die_after_the_send")

pytestmark = pytest.mark.timeout(240)


async def test_f1_workers_are_killed_in_mid_answer(on: stage.Stage) -> None:
    async with drill.drill(on, "f1", SEED) as d:
        for _ in range(2):
            asked = await d.crowd.ask_many(6, tokens=250, pace_ms=10, sampling=d.rng.choice((0, 1)))
            victim = await d.streaming(asked[0], d.rng.randrange(1, 60))
            d.kill(victim)
            await d.restart(victim)
        found = await d.judge()
    drill.passed(found, ("takeovers with k > 0", len(d.takeovers()) >= 2))
    assert d.statuses() == {"completed": 12}


async def test_f3_a_worker_is_stopped_past_its_session_and_comes_back_as_a_zombie(
    on: stage.Stage,
) -> None:
    async with drill.drill(on, "f3", SEED) as d:
        asked = await d.crowd.ask_many(6, tokens=500, pace_ms=10, sampling=1)
        victim = await d.streaming(asked[0], 20)
        d.pause(victim)
        await d.succeeded(asked[0], victim)
        d.resume(victim)  # while its successor streams
        found = await d.judge()
    drill.passed(
        found,
        ("takeovers with k > 0", d.takeovers(victim)),
        ("ignored records of the zombie", d.ignored()),
    )
    assert d.statuses() == {"completed": 6}


@pytest.mark.nightly
async def test_f4_a_worker_is_stopped_for_less_than_its_session(on: stage.Stage) -> None:
    async with drill.drill(on, "f4", SEED) as d:
        asked = await d.crowd.ask_many(4, tokens=200, pace_ms=10)
        victim = await d.streaming(asked[0], 10)
        d.pause(victim)
        await asyncio.sleep(on.session_ms / 2000)
        d.resume(victim)
        found = await d.judge()
    drill.passed(
        found,
        (
            "a pause that a watcher saw",
            max(found.samples["longest gap a watcher saw, ms"]) > on.session_ms / 3,
        ),
    )
    assert not d.takeovers()
    assert d.statuses() == {"completed": 4}


async def test_f5_gateways_are_killed_between_submit_and_acknowledgement(on: stage.Stage) -> None:
    async with drill.drill(on, "f5", SEED) as d:
        for i in range(3):
            asks = [
                asyncio.create_task(
                    d.crowd.ask(
                        tokens=10,
                        pace_ms=2,
                        key=f"key-{SEED}-{i}-{j}" if j % 2 else None,
                        gateway=None if j % 2 else on.services["gateway-1"].url,
                    )
                )
                for j in range(12)
            ]
            await asyncio.sleep(d.rng.uniform(0.005, 0.06))
            d.kill("gateway-1")
            restart = asyncio.create_task(d.restart("gateway-1"))
            await asyncio.gather(*asks)
            await restart
        for asked in list(d.crowd.asked):
            d.crowd.watch(asked)
        found = await d.judge()
    drill.passed(
        found,
        ("submits with an unknown outcome", d.unknown()),
        ("keys", found.results["R2"].count),
    )


@pytest.mark.parametrize(
    "point",
    [pytest.param(point, marks=() if point in BY_DAY else LONG) for point in plants.FAILPOINTS],
)
async def test_f5_a_gateway_is_killed_on_the_way_of_a_request_and_a_retry_gets_the_same_response(
    on: stage.Stage, point: str
) -> None:
    async with drill.drill(on, f"f5-{point}", SEED) as d:
        first, second = on.services["gateway-1"], on.services["gateway-2"]
        on.kill(first.name)
        on.start(first.name, TAILRACE_TEST_PLANT=point)
        await asyncio.to_thread(on.wait_ready, first.name)
        d.fault("kill", first.name)
        asked = await d.crowd.ask(
            tokens=30,
            pace_ms=5,
            key=f"{point}-{SEED}",
            user="alice",
            gateways=[first.url, second.url],
        )
        assert asked is not None
        assert first.child is not None
        died = first.child.wait(10.0)
        await d.restart(first.name)
        again = await d.crowd.ask_again(asked, first.url)
        d.crowd.watch(asked)
        found = await d.judge()
    assert again == asked.rid
    drill.passed(
        found,
        ("it was killed there", died == -signal.SIGKILL),
        ("a submit with an unknown outcome", d.unknown()),
        ("the key", found.results["R2"].count),
    )
    assert d.statuses() == {"completed": 1}


async def test_f6_a_push_is_killed_in_mid_stream(on: stage.Stage) -> None:
    async with drill.drill(on, "f6", SEED) as d:
        for i in range(2):
            asked = [
                a
                for a in await asyncio.gather(
                    *(d.crowd.ask(tokens=200, pace_ms=10) for _ in range(4))
                )
                if a
            ]
            pushes = [s.url for s in on.of("push")]
            for a in asked:
                d.crowd.watch(a, bases=pushes, via="ws")
                d.crowd.watch(a, bases=pushes, via="sse")
            await d.streaming(asked[0], 20)
            victim = f"push-{i % 2 + 1}"
            d.kill(victim)
            await d.restart(victim)
        found = await d.judge()
    drill.passed(found, ("reconnects", d.reconnects()))
    assert d.statuses() == {"completed": 8}


@LONG
async def test_f10_a_worker_is_cut_off_from_the_broker(on: stage.Stage) -> None:
    async with drill.drill(on, "f10", SEED) as d:
        for up, down in ((True, True), (False, True)):
            asked = await d.crowd.ask_many(8, tokens=400, pace_ms=10)
            owners = {a.rid: await d.streaming(a, 10) for a in asked}
            if "worker-1" not in owners.values():
                continue
            d.fault("partition", "worker-1")
            on.kafka.links["worker-1"].partition(up=up, down=down)
            await asyncio.sleep(on.session_ms / 1000 + PAST_SESSION_S)
            on.kafka.links["worker-1"].heal()
            await d.crowd.settle(60)
        found = await d.judge()
    drill.passed(found, ("takeovers with k > 0 from the one cut off", d.takeovers("worker-1")))
    assert set(d.statuses()) == {"completed"}


async def test_f11_a_push_is_cut_off_from_the_broker(on: stage.Stage) -> None:
    async with drill.drill(on, "f11", SEED) as d:
        asked = [
            a
            for a in await asyncio.gather(*(d.crowd.ask(tokens=250, pace_ms=10) for _ in range(4)))
            if a
        ]
        for a in asked:
            d.crowd.watch(a, bases=[on.services["push-1"].url], via="ws")
            d.crowd.watch(a, bases=[on.services["push-2"].url], via="ws")
        await d.streaming(asked[0], 20)
        await asyncio.sleep(0.5)
        d.fault("partition", "push-1")
        on.kafka.links["push-1"].partition()
        await asyncio.sleep(PUSH_CUT_OFF_S)
        on.kafka.links["push-1"].heal()
        found = await d.judge()
    drill.passed(
        found,
        ("a watcher that stalled", max(found.samples["longest gap a watcher saw, ms"]) > 3_000),
    )
    assert d.statuses() == {"completed": 4}


async def test_f12_a_half_open_connection_is_noticed_and_resumed_elsewhere(on: stage.Stage) -> None:
    from tests.faults import link

    async with drill.drill(on, "f12", SEED) as d:
        broken = link.Link(lambda: on.services["push-2"].port)
        try:
            asked = [
                a
                for a in await asyncio.gather(
                    *(d.crowd.ask(tokens=400, pace_ms=10) for _ in range(4))
                )
                if a
            ]
            for a in asked:
                d.crowd.watch(
                    a,
                    bases=[f"http://127.0.0.1:{broken.port}", on.services["push-1"].url],
                    via="ws",
                )
            await d.streaming(asked[0], 20)
            await asyncio.sleep(0.5)
            connected = broken.connections
            d.fault("half-open", "push-2")
            broken.partition()
            found = await d.judge()
        finally:
            broken.close()
    drill.passed(found, ("connections that hung", connected), ("reconnects", d.reconnects()))
    # Found after at most two pings, then a new connection.
    assert (
        max(found.samples["longest gap a watcher saw, ms"][-len(asked) :])
        < 2 * crowd.PING_S * 1000 + 8_000
    )


@LONG
async def test_f13_the_broker_is_far_away(on: stage.Stage) -> None:
    async with drill.drill(on, "f13", SEED) as d:
        for name, one in on.kafka.links.items():
            d.fault("latency", name)
            one.delay_s, one.jitter_s, one.rate = 0.2, 0.05, 125_000.0
        asked = await d.crowd.ask_many(8, tokens=200, pace_ms=10)
        owners = {await d.streaming(a, 10) for a in asked}
        await d.crowd.settle(90)
        for one in on.kafka.links.values():
            one.heal()
        found = await d.judge()
    behind = found.samples["behind the append, ms"]
    drill.passed(
        found, ("worker-1 streamed", "worker-1" in owners), ("push-1 was behind", max(behind) > 150)
    )
    assert d.statuses() == {"completed": 8}
    print(f"F13: behind the append, ms: {report.figure(behind)}")


async def test_f14_redis_is_paused_emptied_and_killed(on: stage.Stage) -> None:
    async with drill.drill(on, "f14", SEED) as d:
        # what is asked here is whether Redis matters, not how fast a busy machine answers a ping
        d.crowd.ping_s = 15.0
        asked = await d.crowd.ask_many(4, tokens=700, pace_ms=10)
        await d.streaming(asked[0], 20)
        d.fault("stop", "redis")
        os.kill(on.redis.pid, signal.SIGSTOP)
        slow = asyncio.create_task(d.crowd.ask_many(2, tokens=20))
        await asyncio.sleep(REDIS_STOPPED_S)
        os.kill(on.redis.pid, signal.SIGCONT)
        more = await slow
        d.fault("flush", "redis")
        async with redis.asyncio.from_url(on.redis.url) as client:
            await client.flushall()
        d.fault("kill", "redis")
        on.redis.kill()
        try:
            while_away = await d.crowd.ask_many(2, tokens=50)
            await asyncio.sleep(REDIS_AWAY_S)
            streamed = await d.streaming(asked[0], 150)
        finally:
            on.redis.start()
        found = await d.judge()
    drill.passed(found, ("tokens while it was away", streamed))
    assert len(asked + more + while_away) == 8, "submits need no Redis"
    assert d.statuses() == {"completed": 8}
    assert d.reconnects() == [], "live streams are unaffected"


async def test_f17_an_engine_fails_the_same_request_again_and_again(on: stage.Stage) -> None:
    async with drill.drill(on, "f17", SEED) as d:
        bad = await d.crowd.ask(tokens=60, pace_ms=5, fault="error", fault_at=20)
        assert bad is not None
        d.crowd.watch(bad)
        good = await d.crowd.ask_many(3, tokens=60, pace_ms=5)
        found = await d.judge()
    drill.passed(found, ("attempts in the engine", d.outcomes[bad.rid].takeovers))
    assert d.outcomes[bad.rid].status == "failed"
    assert d.outcomes[bad.rid].dead == 1
    assert {d.outcomes[a.rid].status for a in good} == {"completed"}


async def test_f18_produce_responses_are_lost_after_the_write(on: stage.Stage) -> None:
    async with drill.drill(on, "f18", SEED) as d:
        asked = await d.crowd.ask_many(8, tokens=300, pace_ms=10, sampling=1)
        owners = [await d.streaming(a, 10) for a in asked]
        link = on.kafka.links["worker-1"]
        before = link.lost
        for _ in range(2):
            d.fault("responses lost", "worker-1")
            link.lost_down = True
            await asyncio.sleep(LOSING_S)
            link.heal()
            await asyncio.sleep(BETWEEN_S)
        found = await d.judge()
    drill.passed(
        found, ("worker-1 streamed", "worker-1" in owners), ("bytes lost", link.lost > before)
    )
    assert d.statuses() == {"completed": 8}


async def test_f22_garbage_on_every_topic_stalls_nobody(on: stage.Stage) -> None:
    async with drill.drill(on, "f22", SEED) as d:
        first = await d.crowd.ask_many(4, tokens=150, pace_ms=10)
        await d.streaming(first[0], 5)
        sent = await chaos.garbage(on.kafka.bootstrap, on.pools, d.rng)
        await d.crowd.ask_many(16, tokens=20, pace_ms=2)  # every partition
        found = await d.judge()
    counted = sum(n for name, n in found.figures.items() if name.startswith("garbage"))
    drill.passed(found, ("garbage", counted >= sent * 0.9))
    assert d.statuses() == {"completed": 20}


async def test_f23_cancels_race_with_completion(on: stage.Stage) -> None:
    async with drill.drill(on, "f23", SEED) as d:

        async def race(i: int) -> set[str | None]:
            asked = await d.crowd.ask(tokens=tokens, pace_ms=4)
            assert asked is not None
            if i % 4 == 0:
                d.crowd.watch(asked)
                d.crowd.watch(asked)
            await asyncio.sleep(d.rng.uniform(0.0, 0.25))
            return set(await asyncio.gather(*(d.crowd.cancel(asked) for _ in range(1 + i % 2))))

        tokens = 15
        for _ in range(5):
            # As fast as this machine is just now: answers that all end before their cancels, or all
            # behind them, are no race.
            ends = set().union(*await asyncio.gather(*(race(i) for i in range(16))))
            if "cancelled" not in ends:
                tokens *= 4
            elif "completed" not in ends:
                tokens = max(1, tokens // 4)
        found = await d.judge()
    drill.passed(
        found, ("both ends", len(d.statuses()) == 2), ("cancels", found.results["R4"].count >= 80)
    )
    assert set(d.statuses()) == {"completed", "cancelled"}


@LONG
async def test_f25_readers_stall_among_two_hundred_and_nobody_else_notices(on: stage.Stage) -> None:
    push = on.services["push-1"]
    async with drill.drill(on, "f25", SEED) as d:
        # two hundred sockets in one busy process: what it does late is no fault of the service
        d.crowd.ping_s = 60.0
        big = await d.crowd.ask(tokens=40_000, pace_ms=0)
        assert big is not None
        await d.ended(60.0)
        memory, given_up = push.memory, push.metric("tailrace_outbox_closes_total")
        for asked in [await d.crowd.ask(tokens=120, pace_ms=150) for _ in range(10)]:
            assert asked is not None
            for i in range(20):
                d.crowd.watch(asked, bases=[push.url], via=("ws", "sse")[i % 2])
        await d.until("two hundred watch", lambda: push.connections >= 200)
        go_on = asyncio.Event()
        stalled = {
            d.crowd.watch(big, bases=[push.url], via=via, stall=go_on).get_name()
            for via in ("ws", "sse")
        }
        d.fault("stalled readers", "push-1")
        await d.until(
            "both were closed as slow",
            lambda: push.metric("tailrace_outbox_closes_total") >= given_up + 2,
        )
        grown = push.memory - memory
        go_on.set()
        found = await d.judge(final_reads=4)
        resumed = len(d.reconnects()) - len(d.reconnects(but=stalled))
    await d.until("all sockets are released", lambda: push.connections == 0)
    drill.passed(found, ("stalled readers came back", resumed >= 2))
    assert d.crowd.ended >= 202
    assert d.reconnects(but=stalled) == [], "no other reader lost a connection"
    assert set(d.statuses()) == {"completed"}
    assert grown < 64 << 20
    print(
        f"F25: memory of the push service grew by {grown >> 10} KiB; behind the append, ms: "
        f"{report.figure(found.samples['behind the append, ms'])}"
    )


async def test_f7_the_broker_is_killed_and_comes_back(on: stage.Stage) -> None:
    async with drill.drill(on, "f7", SEED) as d:
        asked = await d.crowd.ask_many(6, tokens=400, pace_ms=10)
        await d.streaming(asked[0], 20)
        d.fault("kill", "kafka")
        on.kafka.kill()
        unknown = [
            asyncio.create_task(d.crowd.ask(tokens=20, key=f"f7-{SEED}-{i}")) for i in range(4)
        ]
        await asyncio.sleep(BROKER_AWAY_S)
        on.kafka.launch()
        await asyncio.to_thread(on.kafka.wait_ready)
        await asyncio.gather(*unknown)
        found = await d.judge(fresh=False)
    gap = max(found.samples["longest gap a watcher saw, ms"])
    drill.passed(found, ("an outage that watchers saw", gap > 1_000))
    assert {d.outcomes[a.rid].status for a in asked} == {"completed"}


@pytest.mark.parametrize(
    "how",
    [
        pytest.param(signal.SIGSTOP, id="stopped"),
        pytest.param(signal.SIGKILL, id="killed", marks=pytest.mark.nightly),
    ],
)
async def test_f7_what_was_refused_while_the_broker_was_away_never_runs(
    on: stage.Stage, how: signal.Signals
) -> None:
    """What was sent and not acknowledged is said to be unknown, and is withdrawn: none runs to its
    end. With a key, what the log has is left as it is: its next try finds it."""
    async with drill.drill(on, f"f7-{how.name}", SEED) as d:
        await chaos.ask_without_broker(d, how)
        for asked in list(d.crowd.asked):
            d.crowd.watch(asked)
        found = await d.judge(fresh=False)
        _, outcomes = await drill.examine(on, since=d.since, only=d.name)
    unknown = [outcomes[rid] for rid in d.crowd.unknown if rid in outcomes]
    drill.passed(
        found,
        ("refused requests", d.crowd.refused),
        # Of a broker that was stopped it is never known what it has in its sockets.
        ("unknown outcomes", d.crowd.unknown or how is signal.SIGKILL),
    )
    left = [o for o in unknown if o.key is not None and not o.withdrawn]
    assert {o.status for o in left} <= {"completed"}
    assert len({o.key for o in left}) == len(left)
    # A claim may be on its way to the broker when it stops (log rule, section 10). Then the worker
    # makes tokens until it reads the CANCEL.
    withdrawn = [o for o in unknown if o not in left]
    assert {o.status for o in withdrawn} <= {"cancelled"}
    assert all(o.total < chaos.CREATE_TOKENS for o in withdrawn), withdrawn
    assert set(d.statuses()) == {"completed"}
    print(
        f"F7 {how.name}: {len(d.crowd.asked)} taken, {len(d.crowd.refused)} refused, "
        f"{len(d.crowd.unknown)} unknown, of which {len(unknown)} are in the log, {len(left)} with "
        f"a key, {sum(o.total > 0 for o in withdrawn)} withdrawn after tokens"
    )
