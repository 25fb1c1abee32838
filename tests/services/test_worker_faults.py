"""A worker and the log between them lose nothing: an outage, frozen workers."""

from __future__ import annotations

import asyncio
import signal
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tailrace.protocol import fold
from tailrace.store.prefixes import Prefixes, holder_name
from tailrace.store.redis_store import RedisStore
from tailrace.store.workers import Workers
from tests.support import local, waiting, workers
from worker.engines import scripted
from worker.group import membership

AWAY_S = 1.0  # how long the broker is down
SHORT = {"script_tokens": "5", "script_pace_ms": "1"}
ENDLESS = {"script_tokens": "100000", "script_pace_ms": "10"}
SESSION_MS = 1500


@pytest.fixture
async def bench(kafka: str, redis_url: str, tmp_path: Path) -> AsyncIterator[workers.Bench]:
    async with workers.bench(kafka, redis_url, tmp_path) as made:
        yield made


async def until_committed(bench: workers.Bench, partition: int, low: int) -> None:
    async def committed() -> bool:
        return (await bench.committed(partition))[0] >= low

    await waiting.eventually(committed, f"partition {partition} committed up to {low}")


async def test_a_frozen_worker_wakes_up_as_a_zombie_and_every_record_it_still_writes_is_void(
    bench: workers.Bench,
) -> None:
    a = await bench.worker(session_ms=SESSION_MS).ready()
    request = await bench.ask("zombie", cues=ENDLESS)
    await bench.tokens(request.rid, 20)
    b = await bench.serve()

    a.process.send_signal(signal.SIGSTOP)
    try:
        await bench.until(request.rid, lambda r: r.fold.epoch == 2 and r.fold.next > 60)
    finally:
        a.process.send_signal(signal.SIGCONT)
    await bench.until(request.rid, lambda r: has_ignored(r, fold.Ignored.STALE_OWNER))
    await bench.cancel(request)
    answer = await bench.done(request.rid)

    made = answer.fold.next
    assert answer.fold.ids == scripted.expected_ids(request.messages, made)
    assert scripted.expected_text(request.messages, made).startswith(answer.text)
    assert [worker.split("/")[0] for _, worker in answer.fold.claims] == [a.name, b.name]
    # The zombie lives on and serves again.
    assert await b.leave() == 0
    again = await bench.ask("still serving?", partition=7, cues=SHORT)
    assert (await bench.done(again.rid)).ended.status == "completed"
    assert a.process.poll() is None, a.logs()


def has_ignored(answer: workers.Answer, why: fold.Ignored) -> bool:
    return any(outcome is why for _, _, outcome in answer.records)


@pytest.mark.nightly
async def test_a_worker_that_stood_still_for_longer_than_its_watchdog_waits_goes_on_serving(
    bench: workers.Bench,
) -> None:
    """Symptom: its watchdog stopped the group consumer, could not start it again, and the worker
    ended (twice of twice)."""
    a = await bench.worker(session_ms=SESSION_MS).ready()
    await bench.done((await bench.ask("before", cues=SHORT)).rid)

    a.process.send_signal(signal.SIGSTOP)
    try:
        meanwhile = [await bench.ask(f"meanwhile {p}", partition=p, cues=SHORT) for p in range(8)]
        await asyncio.sleep(membership.QUIET_S + membership.WATCH_S)
    finally:
        a.process.send_signal(signal.SIGCONT)
    for request in meanwhile:
        assert (await bench.done(request.rid)).ended.status == "completed"
    later = [await bench.ask(f"later {p}", partition=p, cues=SHORT) for p in range(8)]
    for request in later:
        assert (await bench.done(request.rid)).ended.status == "completed"
    await until_committed(bench, 7, 2)
    assert a.process.poll() is None, a.logs()


async def test_a_worker_tells_redis_and_prometheus_how_it_is(bench: workers.Bench) -> None:
    a = await bench.worker().ready()
    request = await bench.ask("watch me", prefix=["d1"], cues=ENDLESS)
    await bench.tokens(request.rid, 50)
    async with RedisStore(bench.redis_url) as redis:

        async def running() -> list[dict[str, Any]]:
            beats = await Workers(redis).list_workers(bench.pool)
            return [b for b in beats if b["running"] and b["tokens_per_s"] > 0]

        (beat,) = await waiting.eventually(running, "a heartbeat of a running worker")
        assert (beat["name"], beat["state"], beat["running"], beat["capacity"], beat["model"]) == (
            a.name,
            "ready",
            1,
            64,
            workers.MODEL_NAME,
        )
        assert beat["partitions"] == list(range(8))
        await bench.cancel(request)
        hit = await waiting.eventually(
            lambda: Prefixes(redis).held(bench.pool, ["d1"]), "it tells what it holds"
        )
        assert list(hit) == [holder_name(beat["incarnation"])]
        metrics = await asyncio.to_thread(
            lambda: (
                urllib.request.urlopen(f"http://127.0.0.1:{a.port}/metrics", timeout=5)
                .read()
                .decode()
            )
        )
        assert 'tailrace_claims_total{kind="first"} 1.0' in metrics
        assert "tailrace_frames_appended_total" in metrics
        a.terminate()
        assert await a.exit_code() == 0
        assert await Workers(redis).list_workers(bench.pool) == []
    assert '"action":"response_claimed"' in a.logs()
    assert "watch me" not in a.log_path.read_text()


async def test_the_broker_is_killed_in_mid_answer_and_the_answer_goes_on_when_it_is_back(
    redis_url: str, tmp_path: Path
) -> None:
    with local.LocalKafka(settings=local.QUICK_RETURN) as broker:
        await asyncio.to_thread(broker.apply_topics)
        async with workers.bench(broker.bootstrap, redis_url, tmp_path) as bench:
            await bench.serve()
            asked = [await bench.ask(f"outage {p}", partition=p, cues=ENDLESS) for p in range(4)]
            for request in asked:
                await bench.tokens(request.rid, 20)
            await asyncio.to_thread(broker.kill)
            await asyncio.sleep(AWAY_S)
            await asyncio.to_thread(broker.start)
            later = await bench.ask("after", partition=5, cues=SHORT)
            assert (await bench.done(later.rid)).ended.status == "completed"

            for request in asked:
                seen = (await bench.read(request.rid)).fold.next
                await bench.tokens(request.rid, seen + 20)
                await bench.cancel(request)
                answer = await bench.done(request.rid)
                made = answer.fold.next
                assert answer.fold.ids == scripted.expected_ids(request.messages, made)
                assert scripted.expected_text(request.messages, made).startswith(answer.text)
                assert sum(isinstance(outcome, fold.Ended) for _, _, outcome in answer.records) == 1
