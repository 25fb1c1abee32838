"""What a worker says of how long requests would wait at it."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.load import backlog
from tailrace.fair_queue import Flow, waits_of
from tests.support.memory_worker import Time
from worker.queue import load, waits
from worker.queue.load import Load
from worker.queue.read_ahead import Overflow
from worker.queue.slots import BATCH, Slots
from worker.queue.workload import Workload

ALICE, BOB = (Flow(name, name) for name in ("alice", "bob"))
NONE = [Overflow({}, 0)] * 2


async def test_a_gateway_reads_how_long_a_new_request_of_each_principal_would_wait() -> None:
    time, work = Time(), Workload()
    load, slots, made = Load(work, time), Slots(1, monotonic=time), 0

    def beat() -> dict[str, Any]:
        return load.report(slots, NONE) | {"state": "ready"}

    running = slots.acquire(0, ALICE, 100.0)
    turns = [slots.acquire(0, ALICE, 100.0) for _ in range(20)]
    assert beat()["waits_s"] == [], "something waits, and how fast it begins is not known"
    assert backlog.from_heartbeats([beat()]).wait_s("interactive", "alice") is None
    for turn in [running, *turns[:8]]:  # each holds the only slot for 5 s and makes 100 tokens
        time.advance(5.0)
        made += 100
        slots.release(turn, tokens=100)
        load.measure(slots, made, 5.0)
        assert not slots.holds
    slots.acquire(0, BOB, 100.0)
    time.advance(1.0)
    work_ahead, waiting = backlog.from_heartbeats([beat()]), slots.queued - 1
    # Before her next one are hers, that of bob, one more of his, and what runs.
    assert work_ahead.wait_s("interactive", "alice") == pytest.approx((waiting + 3) * 5.0, rel=0.1)
    # What runs ends after 4 s. Before him are his own and that of alice which has its turn with it.
    assert work_ahead.wait_s("interactive", "bob") == pytest.approx(4.0 + 2 * 5.0, rel=0.2)
    assert 0 < (work_ahead.wait_s("interactive", "carol") or 0.0) < 15.0
    assert beat()["waits_of"] == [waits_of("alice"), waits_of("bob")]


async def test_what_made_way_says_how_long_slots_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    time, seen = Time(), list[tuple[float, ...]]()

    def update_forecast(_work: Workload, _waiting: float, *ages: list[float]) -> None:
        seen.append(tuple(age for each in ages for age in each))

    monkeypatch.setattr(Workload, "update_forecast", update_forecast)
    load, slots = Load(Workload(), time), Slots(1, monotonic=time)
    first = slots.acquire(BATCH, BOB, 100.0, "r")
    slots.acquire(0, ALICE, 100.0)
    time.advance(3.0)
    slots.release(first, tokens=10, paused=True)
    time.advance(1.0)
    slots.acquire(BATCH, BOB, 100.0, "r", again=True)
    load.report(slots, NONE)
    assert seen == [(1.0, 3.0)]


async def test_what_interactive_requests_leave_is_measured() -> None:
    time, work = Time(), Workload()
    load, slots = Load(work, time), Slots(4, monotonic=time)
    for rank in (0, 0, 0, BATCH):
        slots.acquire(rank, ALICE, 100.0)
    for second in range(200):
        load.measure(slots, 40 * second, 1.0)
    assert work.batch_part == pytest.approx(0.25, abs=0.01)


async def test_of_the_time_little_is_spent_on_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    time, slots, computed = Time(), Slots(1), list[float]()
    found = Load(Workload(), time)

    def of_new(*_of: object) -> waits.Waits:
        computed.append(time())
        time.advance(0.02)
        return waits.Waits({}, (3.0, 4.0))

    monkeypatch.setattr(waits, "new_request_waits", of_new)
    for _ in range(2):
        slots.acquire(0, ALICE, 100.0)
    for made in (0, 100):
        found.measure(slots, made, 1.0)
    began = time()
    for _ in range(100):
        assert found.report(slots, NONE)["waits_s"] == [3.0, 4.0]
        time.advance(0.1)
    assert len(computed) == pytest.approx((time() - began) * load.MOST_TIME / 0.02, rel=0.3)
