"""Scenarios that take long or hurt the stage for good: each has a stage of its own. They run with
`make nightly`."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiokafka.admin
import pytest

from tailrace import log
from tailrace.protocol import ids, topics
from tailrace.verify import replicas, report
from tests.faults import drill, link, plants, stage
from tests.faults.conftest import LONG, SEED

WAVE_S = 1.5  # between two waves of load, or two faults
NO_LEADER_S = 20.0  # how long the broker is stopped: past the writers' deadline of 15 s
NODE_AWAY_S = 6.0  # how long one of three brokers is down
BACK_IN_SYNC_S = 4.0  # then how long its replicas have to catch up

pytestmark = [
    pytest.mark.timeout(400),
    LONG,
]


@pytest.fixture
def own(tmp_path: Path) -> Iterator[stage.Stage]:
    """Three workers."""
    made = stage.Stage(tmp_path, workers=3, longest=stage.LONG_ANSWER).open()
    yield made
    made.close()


async def test_f2_a_request_that_kills_its_worker_fails_alone(own: stage.Stage) -> None:
    async with drill.drill(own, "f2", SEED) as d, d.reviving():
        poison = await d.crowd.ask(tokens=100, pace_ms=5, fault="crash", fault_at=10)
        assert poison is not None
        d.crowd.watch(poison, deadline_s=150.0)
        good = []
        for _ in range(10):
            good += await d.crowd.ask_many(6, tokens=100, pace_ms=10)
            await asyncio.sleep(WAVE_S)
        found = await d.judge(settle_s=150.0)
    drill.passed(
        found, ("three workers died of it", sum(s.starts - 1 for s in own.of("worker")) >= 3)
    )
    outcome = d.outcomes[poison.rid]
    assert (outcome.status, outcome.dead) == ("failed", 1)
    done = sum(d.outcomes[a.rid].status == "completed" for a in good)
    print(f"F2: good neighbours completed {done}/{len(good)}")
    assert done == len(good)


async def test_f17_an_engine_hangs_and_dies(own: stage.Stage) -> None:
    async with drill.drill(own, "f17", SEED) as d, d.reviving():
        hanging = await d.crowd.ask(tokens=60, pace_ms=5, fault="hang", fault_at=20)
        dying = await d.crowd.ask(tokens=60, pace_ms=5, fault="engine_death", fault_at=20)
        assert hanging is not None
        assert dying is not None
        for asked in (hanging, dying):
            d.crowd.watch(asked, deadline_s=150.0)
        good = await d.crowd.ask_many(6, tokens=600, pace_ms=10)
        found = await d.judge(settle_s=150.0)
    died = sum(s.log.read_text().count('"action":"engine_failed"') for s in own.of("worker"))
    drill.passed(
        found,
        ("attempts", d.outcomes[hanging.rid].takeovers and d.outcomes[dying.rid].takeovers),
        ("engines that died", died),
    )
    assert died <= 4, (
        "three attempts of the one that kills engines, and the other's last, which the "
        "worker does not outlive"
    )
    assert {(d.outcomes[a.rid].status, d.outcomes[a.rid].dead) for a in (hanging, dying)} == {
        ("failed", 1)
    }
    assert {d.outcomes[a.rid].status for a in good} == {"completed"}


async def test_f17_an_engine_hangs_for_everyone(own: stage.Stage) -> None:
    async with drill.drill(own, "f17-all", SEED) as d, d.reviving():
        good = await d.crowd.ask_many(9, tokens=900, pace_ms=15)
        await d.streaming(good[0], 20)
        bad = await d.crowd.ask(tokens=60, pace_ms=5, fault="engine_hang", fault_at=20)
        assert bad is not None
        d.crowd.watch(bad, deadline_s=150.0)
        found = await d.judge(settle_s=150.0)
    hung = sum(s.log.read_text().count('"action":"engine_failed"') for s in own.of("worker"))
    drill.passed(
        found, ("workers whose engine hung", hung), ("takeovers with k > 0", d.takeovers())
    )
    assert hung <= 3, "a request that hangs engines has three attempts"
    assert (d.outcomes[bad.rid].status, d.outcomes[bad.rid].dead) == ("failed", 1)
    assert {d.outcomes[a.rid].status for a in good} == {"completed"}


async def test_f15_workers_join_and_leave_all_the_time(own: stage.Stage) -> None:
    async with drill.drill(own, "f15", SEED) as d:
        asked = await d.crowd.ask_many(10, tokens=900, pace_ms=20)
        await d.streaming(asked[0], 10)
        for i in range(6):
            name = f"worker-{i % 3 + 1}"
            d.fault("term", name)
            own.send(name, signal.SIGTERM)
            child = own.services[name].child
            assert child is not None
            assert await asyncio.to_thread(child.wait, 20.0) == 0, own.services[name].tail()
            await d.restart(name)
            await asyncio.sleep(WAVE_S)
        found = await d.judge()
    drill.passed(found, ("takeovers with k > 0", len(d.takeovers()) >= 3))
    assert set(d.statuses()) == {"completed"}
    print(f"F15: takeovers {len(d.takeovers())}, ignored tokens {found.figures['ignored tokens']}")


async def test_f12_the_server_finds_half_open_connections_and_releases_their_sockets(
    own: stage.Stage,
) -> None:
    """Sockets by ping, within two intervals of 20 s; a stream that is being written by its write
    deadline."""
    push = own.services["push-2"]
    broken = link.Link(lambda: push.port)
    try:
        async with drill.drill(own, "f12", SEED) as d:
            big = await d.crowd.ask(tokens=40_000, pace_ms=0)
            slow = await d.crowd.ask(tokens=1000, pace_ms=60)
            assert big is not None
            assert slow is not None
            await d.streaming(big, 1_000)
            connections = push.connections
            for i in range(10):
                bases = [f"http://127.0.0.1:{broken.port}", own.services["push-1"].url]
                d.crowd.watch(slow, bases=bases, via="ws")
                d.crowd.watch(big, bases=bases, via="sse") if i % 2 else None
            await d.until("they are connected", lambda: push.connections >= connections + 5)
            held = push.connections
            d.fault("half-open", "push-2")
            broken.partition()
            began = time.monotonic()
            await d.until(
                "the server released them", lambda: push.connections <= connections, 150.0
            )
            print(
                f"F12: {held - connections} half-open connections released within "
                f"{time.monotonic() - began:.0f} s"
            )
            broken.heal()
            found = await d.judge()
    finally:
        broken.close()
    drill.passed(
        found, ("half-open connections", held > connections), ("reconnects", d.reconnects())
    )
    assert set(d.statuses()) == {"completed"}


async def test_f19_no_leader_for_longer_than_the_request_timeout(own: stage.Stage) -> None:
    async with drill.drill(own, "f19", SEED) as d:
        asked = await d.crowd.ask_many(6, tokens=600, pace_ms=20)
        await d.streaming(asked[0], 20)
        d.fault("stop", "kafka")
        os.kill(own.kafka.pid, signal.SIGSTOP)
        await asyncio.sleep(NO_LEADER_S)
        os.kill(own.kafka.pid, signal.SIGCONT)
        found = await d.judge(fresh=False)
    drill.passed(
        found,
        ("a stall that watchers saw", max(found.samples["longest gap a watcher saw, ms"]) > 15_000),
    )
    assert set(d.statuses()) == {"completed"}


async def test_f20_partitions_are_added_while_responses_stream(own: stage.Stage) -> None:
    async with drill.drill(own, "f20", SEED) as d:
        before = await d.crowd.ask_many(8, tokens=500, pace_ms=20)
        await d.streaming(before[0], 10)
        d.fault("partitions added", "kafka")
        admin = aiokafka.admin.AIOKafkaAdminClient(bootstrap_servers=own.kafka.bootstrap)
        await admin.start()
        try:
            for topic in (
                topics.TOKENS,
                *(topics.requests(stage.POOL, c) for c in topics.CLASSES),
            ):  # tokens first (log rule P9)
                await admin.create_partitions({topic: aiokafka.admin.NewPartitions(12)})
        finally:
            await admin.close()
        during = await d.crowd.ask_many(8, tokens=50, pace_ms=5)
        for name in (
            "gateway-1",
            "gateway-2",
            "push-1",
            "push-2",
            "worker-1",
            "worker-2",
            "worker-3",
        ):  # services learn the new count at their next start
            d.fault("term", name)
            own.send(name, signal.SIGTERM)
            child = own.services[name].child
            assert child is not None
            await asyncio.to_thread(child.wait, 20.0)
            await d.restart(name)
        after = await d.crowd.ask_many(24, tokens=50, pace_ms=5)
        found = await d.judge(final_reads=40)
    places = {ids.parse(a.rid).partition for a in after}
    drill.passed(
        found,
        ("responses on new partitions", max(places) >= 8),
        ("old responses streamed at the same time", len(before) == 8),
    )
    assert len(during) == 8
    assert set(d.statuses()) == {"completed"}


@pytest.mark.timeout(1200)
async def test_f26_everything_is_restarted_in_turn_under_load_twice(own: stage.Stage) -> None:
    async with drill.drill(own, "f26", SEED) as d:
        over = asyncio.Event()

        async def load() -> None:
            while not over.is_set():
                await d.crowd.ask_many(3, tokens=200, pace_ms=10, keyed=True)
                await asyncio.sleep(WAVE_S)

        loading = asyncio.create_task(load())
        await asyncio.sleep(WAVE_S)
        for _ in range(2):
            for service in list(own.services.values()):
                d.fault("term", service.name)
                own.send(service.name, signal.SIGTERM)
                assert service.child is not None
                assert await asyncio.to_thread(service.child.wait, 30.0) == 0, service.tail()
                await d.restart(service.name)
        over.set()
        await loading
        found = await d.judge(final_reads=20)
    drill.passed(found, ("reconnects", d.reconnects()), ("takeovers or hand-overs", d.takeovers()))
    assert set(d.statuses()) == {"completed"}, "no response failed"


@pytest.mark.parametrize("moment", plants.MOMENTS)
async def test_workers_die_between_the_end_and_what_is_written_about_it(
    tmp_path: Path, moment: str
) -> None:
    """Found by reasoning, then here: the new owner of the partition waits for the former one's end,
    which dies before it bills."""
    on = stage.Stage(tmp_path, environ={"TAILRACE_TEST_PLANT": moment}).open()
    try:
        async with drill.drill(on, moment, SEED) as d:
            fault: dict[str, Any] = (
                {"fault": "error", "fault_at": 900} if moment == "die_before_the_letter" else {}
            )
            asked = await d.crowd.ask_many(24, tokens=1000, pace_ms=20, **fault)
            await d.streaming(asked[0], 20)
            on.add("worker", 3)
            on.start(
                "worker-3"
            )  # a rebalance: what streams is delivered again, to workers that wait for the end
            await asyncio.to_thread(on.wait_ready, "worker-3")
            streaming = [await d.owner_of(a.rid) for a in asked]
            async with d.reviving():
                found = await d.judge()
        died = len(list(on.transcripts.glob("*.died")))
        drill.passed(
            found,
            ("workers died at that moment", died),
            ("former owners streamed on", "worker-3" not in streaming),
        )
    finally:
        on.close()


async def test_f9_leaders_change_while_responses_stream(tmp_path: Path) -> None:
    on = stage.Stage(tmp_path, brokers=3).open()
    try:
        async with drill.drill(on, "f9", SEED) as d:
            asked = await d.crowd.ask_many(8, tokens=1500, pace_ms=20)
            await d.streaming(asked[0], 20)
            for node in (on.kafka.nodes[1], on.kafka.nodes[2]):
                d.fault("kill", f"broker-{node.extra['node.id']}")
                node.kill()
                await asyncio.sleep(NODE_AWAY_S)
                node.start()
                await asyncio.to_thread(node.wait_ready)
                await asyncio.sleep(BACK_IN_SYNC_S)
            found = await d.judge(fresh=False)
            await replicas_agree(on, found)
        epochs = max(
            leader_epoch(node.segments(topics.TOKENS, p))
            for node in on.kafka.nodes
            for p in range(8)
        )
        drill.passed(found, ("leaders changed", epochs >= 1))
        assert set(d.statuses()) == {"completed"}
    finally:
        on.close()


def leader_epoch(segments: list[Path]) -> int:
    """Of the last batch: counts elections of this partition's leader."""
    raw = b"".join(path.read_bytes() for path in segments)
    at, epoch = 0, 0
    while at + 16 <= len(raw):
        epoch = int.from_bytes(raw[at + 12 : at + 16], "big")
        at += 12 + int.from_bytes(raw[at + 8 : at + 12], "big")
    return epoch


async def replicas_agree(on: stage.Stage, out: report.Report) -> None:
    """L8 over the files of all brokers."""
    ends = await high_watermarks(on)
    for (topic, partition), end in ends.items():
        held = {}
        for node in on.kafka.nodes:
            held[str(node.extra["node.id"])] = [
                b
                for path in node.segments(topic, partition)
                for b in replicas.batches(path.read_bytes())
            ]
        replicas.judge(out, f"{topic}[{partition}]", held, end)


async def high_watermarks(on: stage.Stage) -> dict[tuple[str, int], int]:
    offsets = log.Offsets(on.kafka.bootstrap)
    try:
        found: dict[tuple[str, int], int] = {}
        for topic in (topics.TOKENS, *(topics.requests(stage.POOL, c) for c in topics.CLASSES)):
            found |= {(topic, p): end for p, end in (await offsets.ends(topic, range(8))).items()}
        return found
    finally:
        await offsets.stop()
