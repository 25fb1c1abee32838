"""Which log a process started on, and whether the broker still has that log."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping

from tailrace import telemetry
from tailrace.log import interfaces
from tailrace.log.admin import Layout
from tailrace.protocol import log_words

TRUST_S = 5.0  # clients may ask for ids of other logs as often as they like


def require_not_rolled_back(
    topic: str, positions: Mapping[int, int], ends: Mapping[int, int]
) -> None:
    """Compare positions that were read up to with the ends that the log has now.

    Raises:
        LogChanged: a position lies above the end: the log was rolled back, as by a broker that came
            up with an older disk. The process may have lost records in memory.
    """
    for partition, end in ends.items():
        position = positions.get(partition, 0)
        if position > end:
            telemetry.LOG_ROLLED_BACK.labels(topic=topic).inc()
            telemetry.log(
                telemetry.Action.LOG_ROLLED_BACK,
                topic=topic,
                partition=partition,
                position=position,
                again_from=end,
            )
            raise log_words.LogChanged(f"{topic}[{partition}] was rolled back")


class LogIdentity:
    """Compares the log's incarnation with the one at the start of this process.

    Attributes:
        tag: the incarnation as response ids carry it.
        _query_lock: held while `require_same` queries, so that its callers share one answer.
        _trusted_until: until then (seconds of `clock`) the last answer to `require_same` counts.
        _replacement: set once `require_same` has found another log.
    """

    def __init__(
        self,
        layout: Layout,
        query: interfaces.LayoutQuery,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.tag = layout.tag
        self._incarnation = layout.incarnation
        self._query = query
        self._clock = clock
        self._query_lock = asyncio.Lock()
        self._trusted_until = 0.0
        self._replacement = asyncio.Event()

    async def run(self) -> None:
        """Wait until `require_same` finds another log.

        Raises:
            LogChanged: always.
        """
        await self._replacement.wait()
        raise log_words.LogChanged(f"the log is not {self._incarnation} any more")

    async def check(self) -> None:
        """Ask the broker once which log it holds.

        Raises:
            LogChanged: another one.
            LogUnavailable: no answer.
        """
        layout = await self._query()
        if layout.incarnation != self._incarnation:
            raise log_words.LogChanged(
                f"the log's incarnation changed from {self._incarnation} to {layout.incarnation}"
            )

    async def require_same(self) -> None:
        """Like `check`, for an id of another log that a client asked for.

        The id may be an old one. Or this process's log was replaced: a process that follows no
        partition does not notice. The caller answers one client, so it gets LogUnavailable, and
        `run` ends the process. An answer counts for TRUST_S.

        Raises:
            LogUnavailable: another log, or no answer.
        """
        async with self._query_lock:
            if self._clock() < self._trusted_until:
                return
            try:
                await self.check()
            except log_words.LogChanged as error:
                self._replacement.set()
                raise log_words.LogUnavailable("the log is another one now") from error
            self._trusted_until = self._clock() + TRUST_S
