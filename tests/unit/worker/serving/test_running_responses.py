"""The responses under way: one task each, whatever goes wrong in one of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from tailrace import log
from tests.support import memory_worker
from tests.support.memory_log import MemoryLog
from tests.support.memory_worker import ENDLESS, answer, cues, new_request
from tests.support.waiting import eventually
from worker.engines import scripted
from worker.serving import running_responses
from worker.serving.running_responses import RunningResponses


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RETRY_S", "DEFECT_RETRY_S"):
        monkeypatch.setattr(running_responses, name, 0.001)


class Defective(scripted.Scripted):
    """An engine whose detokeniser fails for the first `failures` calls."""

    def __init__(self, failures: int) -> None:
        super().__init__(capacity=4, max_model_len=8_192)
        self.failures = failures

    def detokenizer(self, behind: Sequence[int] = ()) -> scripted.Detokenizer:
        if self.failures:
            self.failures -= 1
            raise RuntimeError("a defect")
        return scripted.Detokenizer()


async def test_a_redelivery_starts_no_second_serving() -> None:
    async with memory_worker.worker() as worker, asyncio.TaskGroup() as tasks:
        running = RunningResponses(worker.context, tasks)
        request = new_request(worker.memory, metadata=ENDLESS)
        running.deliver(request, worker.deliver(request))
        running.deliver(request, worker.deliver(request))
        assert (len(running), running.partitions, running.slot_demand) == (1, {0}, 1)
        worker.context.draining = True
        await running.hand_over(0)


async def test_a_defect_in_one_response_is_tried_again_and_disturbs_no_other() -> None:
    async with (
        memory_worker.worker(engine=Defective(failures=3)) as worker,
        asyncio.TaskGroup() as tasks,
    ):
        running = RunningResponses(worker.context, tasks)
        requests = [new_request(worker.memory, metadata=cues(3)) for _ in range(2)]
        for request in requests:
            running.deliver(request, worker.deliver(request))
        await eventually(lambda: len(running) == 0, "both are done")
        for request in requests:
            assert answer(worker.memory, request.rid).ended.status == "completed"


async def test_a_leaving_worker_does_not_try_a_defect_again() -> None:
    async with (
        memory_worker.worker(engine=Defective(failures=1_000_000)) as worker,
        asyncio.TaskGroup() as tasks,
    ):
        running = RunningResponses(worker.context, tasks)
        request = new_request(worker.memory, metadata=cues(3))
        delivery = worker.deliver(request)
        running.deliver(request, delivery)
        worker.context.draining = True
        await eventually(lambda: len(running) == 0, "it is given up")
        assert delivery.tracker.in_flight == 1


async def serve_on_a_replaced_log() -> None:
    async with memory_worker.worker() as worker, asyncio.TaskGroup() as tasks:
        worker.memory.replace("two")
        request = new_request(worker.memory)
        RunningResponses(worker.context, tasks).deliver(request, worker.deliver(request))


async def test_a_replaced_log_ends_the_worker() -> None:
    with pytest.raises(ExceptionGroup) as error:
        await serve_on_a_replaced_log()
    assert error.group_contains(log.LogChanged)


async def test_a_request_of_another_log_waits_while_the_log_is_away() -> None:
    async with memory_worker.worker() as worker, asyncio.TaskGroup() as tasks:
        running = RunningResponses(worker.context, tasks)
        other = MemoryLog("other")
        request = new_request(other)
        delivery = worker.deliver(request)
        worker.memory.go_away()
        running.deliver(request, delivery)
        asked = worker.memory.layout_reads
        await eventually(lambda: worker.memory.layout_reads > asked + 2, "it asks again")
        assert delivery.tracker.in_flight == 1
        worker.memory.come_back()
        await eventually(lambda: len(running) == 0, "it is finished")
        assert delivery.tracker.in_flight == 0
