"""The responses that this worker serves now, one task each."""

from __future__ import annotations

import asyncio

from tailrace import log, telemetry
from tailrace.protocol import records
from worker.queue.delivery import Delivery
from worker.queue.offer_selection import Waiting
from worker.queue.read_ahead import Footprint
from worker.serving.attempt import Stop
from worker.serving.response_state import ResponseState
from worker.serving.response_task import ResponseTask
from worker.serving.worker_context import WorkerContext

RETRY_S = 0.5
# Pause before a response that failed by a defect is served again; doubled each time.
DEFECT_RETRY_S = 1.0
MAX_DEFECT_RETRY_S = 60.0
YIELD_S = 2.0  # how long interrupted responses may take to append YIELD


class RunningResponses:
    """Starts a `ResponseTask` per response and keeps it running.

    Attributes:
        _running: response tasks and their asyncio tasks, by response id.
    """

    def __init__(self, context: WorkerContext, tasks: asyncio.TaskGroup) -> None:
        self._context = context
        self._tasks = tasks
        self._running: dict[str, tuple[ResponseTask, asyncio.Task[None]]] = {}

    def __len__(self) -> int:
        return len(self._running)

    @property
    def slot_demand(self) -> int:
        """Number of responses that have or want an engine slot."""
        return sum(each.response.wants_slot for each, _ in self._running.values())

    @property
    def footprints(self) -> list[Footprint]:
        """The memory of requests that have or want an engine slot."""
        return [each.footprint for each, _ in self._running.values() if each.response.wants_slot]

    def serves(self, rid: str) -> bool:
        """Whether the response is served here."""
        return rid in self._running

    @property
    def partitions(self) -> set[int]:
        """Partitions of the responses served here."""
        return {each.response.partition for each, _ in self._running.values()}

    @property
    def waiting(self) -> list[Waiting]:
        """Requests that wait for a slot, that no worker has claimed, and that the group assigned to
        this worker; those of a principal in their order."""
        return [
            Waiting(
                response.rank,
                response.request.owner.key,
                turn.cost,
                response.partition,
                response.deliveries[-1].offset,
            )
            for each, _ in self._running.values()
            if (turn := (response := each.response).turn) is not None and response.assigned
        ]

    @property
    def orphans(self) -> list[ResponseState]:
        """Responses that wait for a worker of the model that began them, and that the group
        assigned to this worker."""
        return [
            each.response
            for each, _ in self._running.values()
            if each.response.orphan_model is not None and each.response.assigned
        ]

    @property
    def handed_over_count(self) -> int:
        """Number of responses here that other workers handed over."""
        return sum(each.response.handed_over for each, _ in self._running.values())

    def deliver(self, request: records.Request, delivery: Delivery) -> None:
        """Serve the request. A redelivery joins the task that serves it."""
        running = self._running.get(request.rid)
        if running is not None and running[0].response.partition == delivery.partition:
            running[0].join(delivery)
            return
        response_task = ResponseTask(self._context, request, delivery)
        task = self._tasks.create_task(self._run(response_task), name=request.rid)
        self._running[request.rid] = response_task, task

    async def wait(self, timeout_s: float) -> None:
        """Return when all responses of this moment have ended, or when the time is over."""
        tasks = [task for _, task in self._running.values()]
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_s)

    async def hand_over(self, after_s: float) -> None:
        """Stop the responses that have not ended after `after_s`, at a token boundary, with a
        YIELD each. Call it after the group was left: then other workers have the requests, and take
        the yielded responses over without waiting for a rebalance."""
        await self.wait(after_s)
        for each, _ in list(self._running.values()):
            each.interrupt(Stop.DRAIN)
        await self.wait(YIELD_S)
        for _, task in list(self._running.values()):
            task.cancel()

    async def _run(self, response_task: ResponseTask) -> None:
        """Serve until the response is done here.

        Raises:
            LogChanged: the worker must end.
        """
        rid, pause_s = response_task.response.rid, DEFECT_RETRY_S
        try:
            while True:
                try:
                    await response_task.run()
                except log.LogChanged:
                    raise
                except log.LogUnavailable:
                    await asyncio.sleep(RETRY_S)
                except Exception as error:
                    # A defect of this program. It affects no other response. The offset stays
                    # unfinished, and the response is tried again at growing intervals.
                    telemetry.log(telemetry.Action.TASK_FAILED, response=rid, exc_info=error)
                    if self._context.leaving:
                        return
                    await asyncio.sleep(pause_s)
                    pause_s = min(MAX_DEFECT_RETRY_S, pause_s * 2)
                else:
                    return
        finally:
            self._running.pop(rid, None)
