"""The responses that this worker serves now, one task each."""

from __future__ import annotations

import asyncio

from tailrace import log, telemetry
from tailrace.protocol import records
from worker.queue.delivery import Delivery
from worker.queue.offers import Waiting
from worker.queue.read_ahead import Kept
from worker.serving.attempt import Stop
from worker.serving.served_response import ServedResponse
from worker.serving.serving import Serving
from worker.serving.worker_context import WorkerContext

RETRY_S = 0.5
# Pause before a serving that failed by a defect is tried again; doubled each time.
DEFECT_RETRY_S = 1.0
MAX_DEFECT_RETRY_S = 60.0
YIELD_S = 2.0  # how long interrupted responses may take to append YIELD


class Servings:
    """Starts a `Serving` per response and keeps it running.

    Attributes:
        _running: servings and their tasks, by response id.
    """

    def __init__(self, context: WorkerContext, tasks: asyncio.TaskGroup) -> None:
        self._context = context
        self._tasks = tasks
        self._running: dict[str, tuple[Serving, asyncio.Task[None]]] = {}

    def __len__(self) -> int:
        return len(self._running)

    @property
    def wanting_slots(self) -> int:
        """Number of responses that have or want an engine slot."""
        return sum(serving.response.wants_slot for serving, _ in self._running.values())

    @property
    def kept(self) -> list[Kept]:
        """What the requests that have or want an engine slot take of this worker's memory."""
        return [
            serving.kept for serving, _ in self._running.values() if serving.response.wants_slot
        ]

    def serves(self, rid: str) -> bool:
        """Whether the response is served here."""
        return rid in self._running

    @property
    def partitions(self) -> set[int]:
        """Partitions of the responses served here."""
        return {serving.response.partition for serving, _ in self._running.values()}

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
            for serving, _ in self._running.values()
            if (turn := (response := serving.response).turn) is not None and response.assigned
        ]

    @property
    def orphaned(self) -> list[ServedResponse]:
        """Responses that wait for a worker of the model that began them, and that the group
        assigned to this worker."""
        return [
            serving.response
            for serving, _ in self._running.values()
            if serving.response.orphaned is not None and serving.response.assigned
        ]

    @property
    def handed_over(self) -> int:
        """Number of responses here that other workers handed over."""
        return sum(serving.response.handed_over for serving, _ in self._running.values())

    def deliver(self, request: records.Request, delivery: Delivery) -> None:
        """Serve the request. A redelivery joins the serving that is under way."""
        found = self._running.get(request.rid)
        if found is not None and found[0].response.partition == delivery.partition:
            found[0].join(delivery)
            return
        serving = Serving(self._context, request, delivery)
        task = self._tasks.create_task(self._keep_serving(serving), name=request.rid)
        self._running[request.rid] = serving, task

    async def wait(self, timeout_s: float) -> None:
        """Return when all servings of this moment have ended, or when the time is over."""
        tasks = [task for _, task in self._running.values()]
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_s)

    async def hand_over(self, after_s: float) -> None:
        """Stop the responses that have not ended after `after_s`, at a token boundary, with a
        YIELD each. Call it after the group was left: then other workers have the requests, and take
        over what is yielded without waiting for a rebalance."""
        await self.wait(after_s)
        for serving, _ in list(self._running.values()):
            serving.interrupt(Stop.DRAIN)
        await self.wait(YIELD_S)
        for _, task in list(self._running.values()):
            task.cancel()

    async def _keep_serving(self, serving: Serving) -> None:
        """Serve until the response is done here.

        Raises:
            LogChanged: the worker must end.
        """
        rid, pause_s = serving.response.rid, DEFECT_RETRY_S
        try:
            while True:
                try:
                    await serving.run()
                except log.LogChanged:
                    raise
                except log.LogUnavailable:
                    await asyncio.sleep(RETRY_S)
                except Exception as error:
                    # A defect of this program. It disturbs no other response; the offset stays
                    # unfinished, and the response is tried again ever more rarely.
                    telemetry.log(telemetry.Action.TASK_FAILED, response=rid, exc_info=error)
                    if self._context.leaving:
                        return
                    await asyncio.sleep(pause_s)
                    pause_s = min(MAX_DEFECT_RETRY_S, pause_s * 2)
                else:
                    return
        finally:
            self._running.pop(rid, None)
