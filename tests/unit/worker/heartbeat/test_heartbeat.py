"""What a worker tells of itself."""

from __future__ import annotations

import asyncio
from typing import Any

import prometheus_client
import pytest

from tailrace import settings
from tailrace.fair_queue import Flow
from tailrace.store.redis_store import RedisStore
from tailrace.store.workers import Workers
from tests.support.memory_log import MemoryLog
from tests.support.memory_worker import MODEL, Time, make_context
from tests.support.waiting import eventually
from worker.engines import scripted
from worker.heartbeat.heartbeat import STRANGERS_S, Heartbeat
from worker.heartbeat.status import State, Status
from worker.queue.read_ahead import Overflow
from worker.queue.slots import STARTED

AWAY = "redis://127.0.0.1:1/0"


def make(status: Status, workers: Workers | None = None) -> Heartbeat:
    engine = scripted.Scripted(capacity=4, max_model_len=8_192)
    worker_settings = settings.worker({"TAILRACE_ENGINE": "scripted", "TAILRACE_MODEL_NAME": MODEL})
    return Heartbeat(
        workers or Workers(RedisStore(AWAY)), worker_settings, status, engine, "this/1"
    )


def test_before_the_engine_is_ready_it_tells_the_state_and_no_load() -> None:
    assert make(Status(detail="loading the engine")).info() == {
        "incarnation": "this/1",
        "state": "loading",
        "detail": "loading the engine",
        "model": MODEL,
        "model_rev": "scripted-1",
        "tokenizer_digest": "scripted-1",
        "age_s": 0,
        "stands_in_for": [],
        "features": sorted(scripted.Scripted.features),
        "not_offered": [],
        "counting_digest": "",
        "max_model_len": 8_192,
        "capacity": 4,
        "running": 0,
        "queued": 0,
        "tokens_per_s": 0.0,
        "partitions": [],
        "running_tokens": 0,
        "pausable": 0,
        "pausable_tokens": 0,
        "waiting_tokens": [0, 0],
        "request_tokens": 0.0,
        "drain_rate": 0.0,
        "waits_of": [],
        "interactive_waits_s": [],
        "batch_waits_s": [],
        "waits_s": [0.0, 0.0],
    }


async def test_a_ready_worker_tells_its_load_and_partitions() -> None:
    status = Status()
    heartbeat = make(status)
    time = Time()
    heartbeat.context = context = make_context(MemoryLog(clock=time), time, capacity=1)
    heartbeat.partitions = lambda: [2, 3]
    status.change(State.READY)
    for _ in range(3):
        context.engine_slots.acquire(0)
    info = heartbeat.info()
    assert (info["state"], info["detail"]) == ("ready", "")
    assert (info["running"], info["queued"], info["partitions"]) == (1, 2, [2, 3])


async def test_a_worker_tells_what_lies_ahead_in_tokens_and_how_fast_it_is_done() -> None:
    heartbeat = make(Status())
    time = Time()
    heartbeat.context = context = make_context(MemoryLog(clock=time), time, capacity=1)
    heartbeat.overflow = lambda rank: Overflow({"a": [1_000.0, 3_000.0][rank]}, [0, 5][rank])
    slots = context.engine_slots
    for n in range(11):  # each asks for 1,000 tokens and makes 100; requests wait all the time
        turn = slots.acquire(0, Flow(f"t{n}", f"p{n}"), 1_000.0)
        waiting = slots.acquire(0, Flow("w", "w"), 1_000.0)
        heartbeat.measure(1.0)
        context.stall_detector.record_output(100, time.now)
        slots.withdraw(waiting)
        slots.release(turn, tokens=130)
    slots.acquire(0, Flow("a", "a"), 1_000.0)
    slots.acquire(0, Flow("b", "b"), 2_000.0)
    slots.acquire(0, Flow("c", "c"), 1_000.0)
    slots.acquire(STARTED, Flow("c", "c"), 500.0)
    slots.acquire(1, Flow("c", "c"), 400.0)
    heartbeat.measure(1.0)
    info = heartbeat.info()
    assert info["drain_rate"] == pytest.approx(100, rel=0.01)
    part = heartbeat.workload.part
    assert part == pytest.approx(0.1, rel=0.1)
    assert info["request_tokens"] == pytest.approx(1_000 * part, rel=0.01)
    assert info["running_tokens"] == pytest.approx(1_000 * part / 2, abs=1)
    assert info["waiting_tokens"] == [
        pytest.approx((3_000 + 500 + 1_000) * part, abs=1),
        pytest.approx((400 + 3_000 + 5 * 1_000) * part, abs=1),
    ]
    # The metrics say the same, by pool: each pool scales by its own.
    value = prometheus_client.REGISTRY.get_sample_value
    for kind, tokens in zip(("interactive", "batch"), info["waiting_tokens"], strict=True):
        computed_value = value("tailrace_backlog_tokens", {"pool": "default", "kind": kind})
        assert computed_value == pytest.approx(tokens, abs=1)
    rate = value("tailrace_drain_tokens_per_second", {"pool": "default"})
    assert rate == pytest.approx(info["drain_rate"], abs=0.1)
    assert value("tailrace_engine_running", {"pool": "default"}) == info["running"]


async def test_a_change_is_told_before_the_next_heartbeat_is_due(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("worker.heartbeat.heartbeat.HEARTBEAT_S", 3600.0)
    told: list[str] = []

    class Noting(Workers):
        async def heartbeat(self, pool: str, name: str, info: Any, ttl_s: float = 5) -> None:
            told.append(info["state"])

        async def list_workers(self, pool: str) -> list[dict[str, Any]]:
            return [
                {"name": "b", "state": "draining", "incarnation": "b/1"},
                {"name": "c", "state": "ready", "incarnation": "c/1"},
                {"name": "d", "state": "draining", "incarnation": 7},
                {"name": "e", "state": "loading", "incarnation": "e/1"},
                {"name": "f", "state": "failed", "incarnation": "f/1"},
            ]

    status = Status()
    heartbeat = make(status, Noting(RedisStore(AWAY)))
    running = asyncio.create_task(heartbeat.run())
    await eventually(lambda: told == ["loading"], "the first heartbeat")
    status.change(State.DRAINING)
    heartbeat.publish_now()
    await eventually(lambda: told == ["loading", "draining"], "told at once")
    assert heartbeat.living == {"b/1", "c/1"}
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def test_a_failure_is_told_with_its_reason() -> None:
    status = Status()
    status.fail("the engine died")
    assert status.failed
    assert status.readiness() == {
        "ready": False,
        "state": "failed",
        "detail": "the engine died",
        "kafka": False,
        "features": [],
        "not_offered": [],
        "parsers": [],
        "cold_start_s": 0.0,
        "tokens_per_s": 0.0,
    }


class Beats(Workers):
    """What Redis says of the workers of other pools."""

    def __init__(self) -> None:
        self.told: dict[str, list[dict[str, Any]]] = {}

    async def list_workers(self, pool: str) -> list[dict[str, Any]]:
        return self.told.get(pool, [])


async def test_processes_of_related_pools_live_until_they_were_not_seen_for_a_while() -> None:
    """A Redis that was emptied a moment ago tells of none of them."""
    pools = '{"default":{"models":["m"]},"large":{"models":["l"],"fallback":["default"]}}'
    worker_settings = settings.worker({"TAILRACE_ENGINE": "scripted", "TAILRACE_POOLS": pools})
    assert (worker_settings.related, worker_settings.stands_in_for) == (("large",), ("l",))
    beats, engine = Beats(), scripted.Scripted(capacity=4, max_model_len=8_192)
    heartbeat = Heartbeat(beats, worker_settings, Status(), engine, "this/1")
    assert heartbeat.strangers is None
    beats.told["large"] = [{"incarnation": "a/1"}, {"incarnation": 7}]
    await heartbeat.note_strangers(0.0)
    beats.told.clear()
    await heartbeat.note_strangers(STRANGERS_S - 1)
    assert heartbeat.strangers == {"a/1"}
    await heartbeat.note_strangers(STRANGERS_S + 0.1)
    assert heartbeat.strangers == frozenset()
