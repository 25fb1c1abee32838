"""What a worker tells of how long requests would wait at it."""

from __future__ import annotations

from typing import Any

import pytest

from gateway import backlog
from gateway.backlog import NewRequest
from tailrace.fair_queue import Flow, waits_of
from tests.support.memory_worker import Time
from worker import load, told_waits
from worker.load import Load
from worker.read_ahead import Unserved
from worker.slots import BATCH, STARTED, Slots
from worker.told_waits import Next
from worker.workload import Workload

ALICE, BOB = (Flow(name, name) for name in ("alice", "bob"))
NONE = [Unserved({}, 0)] * 2


async def test_a_worker_tells_how_long_a_new_request_of_each_principal_would_wait() -> None:
    time, work = Time(), Workload()
    found, slots, made = Load(work, time), Slots(1, monotonic=time), 0

    def told() -> dict[str, Any]:
        return found.told(slots, NONE) | {"state": "ready"}

    running = slots.acquire(0, ALICE, 100.0)
    turns = [slots.acquire(0, ALICE, 100.0) for _ in range(20)]
    assert told()["waits_s"] == [], "something waits, and how fast it begins is not known"
    assert backlog.of([told()]).wait_s(NewRequest("interactive", "alice")) is None
    for turn in [running, *turns[:8]]:  # each holds the only slot for 5 s and makes 100 tokens
        time.advance(5.0)
        made += 100
        slots.release(turn, used=100)
        found.measure(slots, made, 5.0)
        assert not slots.holds
    assert slots.demand.rate_of_all(0) > 0
    slots.acquire(0, BOB, 100.0, again=True)  # what comes is counted elsewhere
    time.advance(1.0)
    work_ahead = backlog.of([told()])
    waiting = slots.queued - 1

    def wait_s(priority: Any, principal: str) -> float:
        seconds = work_ahead.wait_s(NewRequest(priority, principal))
        assert seconds is not None
        return seconds

    assert wait_s("interactive", "alice") == pytest.approx((waiting + 2) * 5.0, rel=0.1)
    assert wait_s("interactive", "bob") == pytest.approx(2 * 5.0, rel=0.5)
    coming = slots.demand.rate_of_all(0) / work.rate
    assert 0 < coming < 0.4, "alice may ask on"
    all_s = (waiting + 2) * 5.0
    assert wait_s("batch", "bob") == pytest.approx(all_s / (1 - coming), rel=0.2)
    assert 0 < wait_s("interactive", "carol") < 15.0
    assert told()["waits_of"] == [waits_of("alice"), waits_of("bob")]
    for name in ("interactive_next_s", "batch_next_s", "next_s"):
        assert told()[name] == [pytest.approx(5.0, rel=0.2)] * 2


async def test_of_the_time_little_is_spent_on_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    time, slots, computed = Time(), Slots(1), list[float]()
    found = Load(Workload(), time)

    def told(_queues: object) -> told_waits.Told:
        computed.append(time())
        time.advance(0.02)
        return told_waits.Told({}, (Next(3.0, 0.5), Next(4.0, 0.0)))

    monkeypatch.setattr(told_waits, "told", told)
    for _ in range(2):
        slots.acquire(0, ALICE, 100.0)
    for made in (0, 100):
        found.measure(slots, made, 1.0)
    began = time()
    for _ in range(100):
        assert found.told(slots, NONE)["waits_s"] == [3.0, 4.0]
        assert found.told(slots, NONE)["next_s"] == [0.5, 0.0]
        time.advance(0.1)
    assert len(computed) == pytest.approx((time() - began) * load.MOST_TIME / 0.02, rel=0.3)


async def test_what_was_told_wrongly_is_corrected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits are told as 4 s, and 4 s more for each that came since; they are half as long again,
    and half of that is corrected."""
    time = Time()
    slots = Slots(1, monotonic=time)
    found = Load(Workload(), time)
    told = told_waits.Told({"alice": (Next(4.0, 4.0),) * 2}, (Next(1.0, 0.0), Next(6.0, 0.0)))
    monkeypatch.setattr(told_waits, "told", lambda _queues: told)
    running = slots.acquire(0, BOB, 100.0)
    waits = [slots.acquire(0, ALICE, 100.0)]
    assert waits[0].expected_s is None, "nothing is told yet"
    for made in (0, 100):
        found.measure(slots, made, 1.0)
    for _ in range(60):
        before = found.told(slots, NONE)
        waits += [slots.acquire(0, ALICE, 100.0) for _ in range(4)]
        assert [turn.expected_s for turn in waits[-4:]] == [4.0, 8.0, 12.0, 16.0]
        while waits:
            time.advance(6.0)
            slots.release(running, used=10)
            running = waits.pop(0)
        waits = [slots.acquire(0, ALICE, 100.0)]
    assert before["interactive_waits_s"] == [pytest.approx(4.9, rel=0.05)]
    assert before["interactive_next_s"] == [pytest.approx(4.9, rel=0.05)]
    assert before["batch_waits_s"] == [4.0], "of batch nothing came"
    assert before["waits_s"] == [pytest.approx(1.22, rel=0.05), 6.0]


async def test_what_is_not_in_the_slots_yet_is_not_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is in what was told already, before itself."""
    slots, found = Slots(1), Load(Workload(), Time())
    told = told_waits.Told({}, (Next(4.0, 0.0), Next(4.0, 0.0)))
    monkeypatch.setattr(told_waits, "told", lambda _queues: told)
    for _ in range(2):
        slots.acquire(0, BOB, 100.0)
    for made in (0, 100):
        found.measure(slots, made, 1.0)
    found.told(slots, [Unserved({"alice": 100.0}, 0), Unserved({}, 3)])
    expected = [
        slots.acquire(rank, flow, 100.0).expected_s for rank in (0, 1) for flow in (ALICE, BOB)
    ]
    assert expected == [None, 4.0, None, None]
    assert slots.acquire(0, BOB, 100.0, again=True).expected_s is None
    assert slots.acquire(STARTED, BOB, 100.0).expected_s is None


async def test_a_request_that_is_withdrawn_was_compared_if_it_waited_for_too_long() -> None:
    time = Time()
    slots = Slots(1, monotonic=time)
    slots.expected_s = lambda rank, _principal: 10.0 * (rank + 1)
    running = slots.acquire(0, ALICE, 100.0)
    turns = [slots.acquire(rank, ALICE, 100.0) for rank in (STARTED, 0, 1)]
    assert [turn.expected_s for turn in turns] == [None, 10.0, 20.0]
    time.advance(15.0)
    for turn in turns:
        slots.withdraw(turn)
    slots.release(running, used=10)
    assert [each.waited_s for each in slots.calibrations] == [15.0, 0.0]


async def test_what_is_expected_of_a_request_is_what_is_told_of_its_tenant(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slots, work = Slots(1), Workload()
    found = Load(work, Time())
    told = told_waits.Told({"issuer|acme": (Next(7.0, 0.0),) * 2}, (Next(4.0, 0.0), Next(4.0, 0.0)))
    monkeypatch.setattr(told_waits, "told", lambda _queues: told)
    turns = [slots.acquire(BATCH, BOB, 100.0) for _ in range(2)]
    for made in (0, 100):
        found.measure(slots, made, 1.0)
    found.told(slots, NONE)
    assert work.crowded == 0.0, "only batch waits"
    of_acme, other = Flow("issuer|acme", "issuer|acme|ann"), Flow("issuer|b", "issuer|b|ben")
    turns += [slots.acquire(0, flow, 100.0) for flow in (of_acme, other)]
    assert [turn.expected_s for turn in turns] == [None, None, 7.0, 4.0]
    found.measure(slots, 200, 1.0)
    assert work.crowded > 0.0
    for turn in turns:
        slots.release(turn, used=10)
    slots.acquire(0, BOB, 100.0)
    found.told(slots, NONE)
    assert slots.acquire(0, BOB, 100.0).expected_s is None, "nothing waited when it was told"
