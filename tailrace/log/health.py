"""Whether the broker answers, by its last answer or the lack of one."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from typing import Final

from tailrace import telemetry
from tailrace.protocol import log_words

QUERY_INTERVAL_S: Final = 2.0
ANSWER_S: Final = 3.0  # an answer takes milliseconds; a GC pause is not an outage


class Health:
    """Asks a small question every few seconds.

    Tail readers cannot show it: their client retries silently, and an idle log looks like a dead
    broker.

    Attributes:
        answers: the last question was answered in time; False before the first answer.
        _failed: the last question was not answered in time; False before the first one.
        _back_at: when the broker answered again after it had not (seconds of `clock`).
    """

    def __init__(
        self,
        query: Callable[[], Awaitable[object]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._query = query
        self._clock = clock
        self._failed = False
        self._back_at = -math.inf
        self.answers = False

    @property
    def steady_s(self) -> float:
        """Seconds since the broker began to answer again; 0 while it does not, infinite while it
        never failed to."""
        return 0.0 if self._failed else self._clock() - self._back_at

    async def run(self) -> None:
        """Ask until cancelled."""
        while True:
            self.answers = await self._probe()
            if self.answers and self._failed:
                self._back_at = self._clock()
            self._failed = not self.answers
            telemetry.KAFKA_AWAY.set(not self.answers)
            await asyncio.sleep(QUERY_INTERVAL_S)

    async def _probe(self) -> bool:
        try:
            async with asyncio.timeout(ANSWER_S):
                await self._query()
        except (log_words.LogUnavailable, TimeoutError):
            return False
        return True
