"""Ends requests that no worker claims, some time after their deadline (log rule §29).

A worker ends such a request as soon as its deadline has passed. But there may be no worker for the
pool, the log may have lost the request, or no worker can decode it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from gateway.responses import response_operations
from tailrace import log, telemetry
from tailrace.delivery import delivery, hub

CHECK_S: Final = 5.0
GRACE_S: Final = 30.0  # after the deadline, for the workers
# A client may poll rarely. A request that is seen again within this time keeps its deadline.
MEMORY_S: Final = 3_600.0
AT_ONCE: Final = 64  # appends under way


class Expiry:
    """Ends requests that have waited for too long; `run` is its only task.

    Attributes:
        _deadlines: when a request is ended, by response id (monotonic seconds). It counts from when
            this gateway first saw the request, so it is never too early.
    """

    def __init__(
        self,
        deliver: delivery.Delivery,
        operations: response_operations.ResponseOperations,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._delivery = deliver
        self._operations = operations
        self._clock = clock
        self._deadlines: dict[str, float] = {}

    async def run(self) -> None:
        """Check until cancelled."""
        while True:
            await self.check()
            await asyncio.sleep(CHECK_S)

    async def check(self) -> None:
        """End the requests whose deadline has passed."""
        now = self._clock()
        expired = []
        for stream in self._delivery.unclaimed():
            wait_s = stream.ttl_ms / 1000 + GRACE_S
            if self._deadlines.setdefault(stream.rid, now + wait_s) <= now:
                expired.append(stream)
        for at in range(0, len(expired), AT_ONCE):
            await asyncio.gather(*(self._end(stream) for stream in expired[at : at + AT_ONCE]))
        self._deadlines = {rid: at for rid, at in self._deadlines.items() if now < at + MEMORY_S}

    async def _end(self, stream: hub.Stream) -> None:
        """A failure is retried at the next check."""
        if stream.owner is None or stream.series is None:
            return
        try:
            await self._operations.append_cancel(
                stream.rid, stream.owner, stream.series.base, failed="expired"
            )
        except log.AppendFailed as error:
            telemetry.log(telemetry.Action.TASK_FAILED, response=stream.rid, exc_info=error)
