"""One attempt in the engine: frames, stalls, interruptions."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from tailrace.protocol import records, topics
from tailrace.protocol.broker_clock import BrokerClock
from tests.support.memory_log import MemoryLog
from tests.support.memory_worker import ENDLESS, Time, cues, new_request
from tests.support.waiting import eventually
from worker.engines import base, scripted
from worker.serving import attempt
from worker.serving.attempt import Attempt, Stop
from worker.serving.stall_detector import StallDetector
from worker.text import visible
from worker.text.flush_scheduler import FlushScheduler
from worker.text.generation import Generation, Phase

STALL_S = 10.0
HANGS = {"script_tokens": "5", "script_fault": "hang"}


@pytest.fixture(autouse=True)
def checks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt, "STALL_CHECK_S", 0.005)


class Rig:
    """An attempt on the log in memory, with the scripted engine and the test's own time."""

    def __init__(
        self, metadata: dict[str, str] | None = None, engine: base.Engine | None = None
    ) -> None:
        self.time = Time()
        self.memory = MemoryLog(clock=self.time)
        self.engine = engine or scripted.Scripted(capacity=1, max_model_len=1_000)
        self.detector = StallDetector(STALL_S)
        self.request = new_request(self.memory, metadata=metadata)
        attempt = Generation(
            rid=self.request.rid,
            fencing_token="a",
            view=visible.PlainText(self.engine.detokenizer()),
            max_tokens=1_000,
        )
        self.attempt = Attempt(
            attempt,
            0,
            self.memory.writer(),
            FlushScheduler(),
            BrokerClock(),
            self.time,
        )

    async def run(self, **options: Any) -> None:
        job = base.GenerationInput(self.request, "a", [1], (), 1_000)
        progressed = options.pop("progressed", lambda: None)
        running = self.attempt.run(self.engine, job, self.detector, progressed, **options)
        await asyncio.wait_for(running, 20)

    def frames(self) -> list[records.Tok]:
        found = (records.decode_token(r.value) for r in self.memory.records(topics.TOKENS, 0))
        return [record for record in found if isinstance(record, records.Tok)]


async def checked(rig: Rig, running: asyncio.Future[None]) -> None:
    """Return when the attempt has been checked since, or is over."""
    before = rig.time.reads
    await eventually(
        lambda: running.done() or rig.time.reads > before + 2, "it is checked", every_s=0.005
    )


async def silence(rig: Rig, running: asyncio.Future[None]) -> None:
    """Let more than STALL_S pass. One jump would say that this process stood still."""
    for _ in range(math.ceil(STALL_S / (attempt.STOOD_STILL_S - 0.1))):
        rig.time.advance(attempt.STOOD_STILL_S - 0.1)
        await checked(rig, running)


async def test_the_engine_s_ids_become_frames_in_order() -> None:
    rig = Rig(cues(20))
    await rig.run()
    rig.attempt.flush()
    await eventually(lambda: sum(len(f.ids) for f in rig.frames()) == 20, "all frames")
    made = [token for frame in rig.frames() for token in frame.ids]
    assert made == scripted.expected_ids(rig.request.messages, 20)
    assert rig.attempt.generation.phase is Phase.FINISHED


async def test_a_silent_engine_is_given_up_and_another_attempt_may_succeed() -> None:
    rig = Rig(HANGS)
    running = asyncio.ensure_future(rig.run())
    await eventually(lambda: getattr(rig.engine, "running", 0) == 1, "it runs")
    await silence(rig, running)
    with pytest.raises(base.Transient):
        await running
    assert rig.attempt.stop_reason is Stop.STALLED
    assert getattr(rig.engine, "running", 0) == 0


async def test_a_check_that_comes_late_blames_this_process_and_not_the_engine() -> None:
    rig = Rig(HANGS)
    running = asyncio.ensure_future(rig.run())
    await eventually(lambda: getattr(rig.engine, "running", 0) == 1, "it runs")
    rig.time.advance(STALL_S * 5)
    reads = rig.time.reads
    await eventually(lambda: rig.time.reads > reads + 5, "it is checked")
    assert rig.attempt.stop_reason is None
    rig.attempt.interrupt(Stop.DRAIN)
    await running


async def test_a_stalled_last_attempt_says_that_the_engine_hangs() -> None:
    rig = Rig(HANGS)
    running = asyncio.ensure_future(rig.run(last=True))
    await eventually(lambda: getattr(rig.engine, "running", 0) == 1, "it runs")
    await silence(rig, running)
    with pytest.raises(base.EngineDead):
        await running


async def test_an_interrupted_attempt_stops_the_engine_and_the_first_reason_counts() -> None:
    rig = Rig(ENDLESS)
    running = asyncio.ensure_future(rig.run())
    await eventually(lambda: rig.frames(), "a frame")
    rig.attempt.interrupt(Stop.OVER)
    rig.attempt.interrupt(Stop.DRAIN)
    await running
    assert rig.attempt.stop_reason is Stop.OVER
    assert rig.attempt.useless
    assert getattr(rig.engine, "running", 0) == 0
    written = len(rig.frames())
    rig.attempt.flush()
    await asyncio.sleep(0)
    assert len(rig.frames()) == written


async def test_an_engine_that_does_not_let_go_is_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt, "ABORT_S", 0.01)
    started, released = asyncio.Event(), asyncio.Event()

    class Stubborn(scripted.Scripted):
        async def generate(self, job: base.GenerationInput, on_step: base.OnStep) -> None:
            started.set()
            while not released.is_set():
                try:
                    await released.wait()
                except asyncio.CancelledError:
                    continue

    rig = Rig(engine=Stubborn(capacity=1, max_model_len=100))
    running = asyncio.ensure_future(rig.run())
    await asyncio.wait_for(started.wait(), 10)
    rig.attempt.interrupt(Stop.OVER)
    with pytest.raises(base.EngineDead):
        await running
    released.set()


async def test_an_engine_that_ends_without_an_end_may_be_tried_again() -> None:
    class Short(scripted.Scripted):
        async def generate(self, job: base.GenerationInput, on_step: base.OnStep) -> None:
            on_step(base.Step((1,)))

    rig = Rig(engine=Short(capacity=1, max_model_len=100))
    with pytest.raises(base.Transient, match="without an end"):
        await rig.run()


async def test_a_failed_append_interrupts_the_attempt() -> None:
    rig = Rig(ENDLESS)
    running = asyncio.ensure_future(rig.run())
    await eventually(lambda: rig.frames(), "a frame")
    rig.memory.fail_next_append()
    await running
    assert rig.attempt.stop_reason is Stop.APPEND_FAILED
    assert rig.attempt.useless
