"""Whether the broker answers, by its last answer or the lack of one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from tailrace import telemetry
from tailrace.protocol import log_words

ASK_EVERY_S: Final = 2.0
ANSWER_S: Final = 3.0  # an answer takes milliseconds; a pause for garbage is no outage


class Health:
    """Asks a small question every few seconds.

    Tail readers do not tell: their client tries again without a word, and an idle log looks like a
    dead broker.

    Attributes:
        answers: the last question was answered in time; False before the first answer.
    """

    def __init__(self, ask: Callable[[], Awaitable[object]]) -> None:
        self._ask = ask
        self.answers = False

    async def run(self) -> None:
        """Ask until cancelled."""
        while True:
            self.answers = await self._answered()
            telemetry.KAFKA_AWAY.set(not self.answers)
            await asyncio.sleep(ASK_EVERY_S)

    async def _answered(self) -> bool:
        try:
            async with asyncio.timeout(ANSWER_S):
                await self._ask()
        except (log_words.LogUnavailable, TimeoutError):
            return False
        return True
