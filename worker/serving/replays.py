"""Reads what former owners wrote before a worker continues after it.

A parser may need milliseconds for an id, and more for a longer answer. So long answers are read in
a thread, a few at a time, and with a time limit.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from worker.engines import base
from worker.text import generation, visible

AT_ONCE_IDS = 64  # up to this number they are read on the event loop
THREADS = 2
LONGEST_S = 60.0


class Replays:
    """Reads accepted ids again. Each worker has one."""

    def __init__(self) -> None:
        self._places = asyncio.Semaphore(THREADS)

    async def run(
        self,
        target: generation.Generation,
        accepted: visible.Accepted,
        interrupted: Callable[[], bool],
        copied: Sequence[int] = (),
    ) -> None:
        """Let `target` continue after `accepted`, and after `copied`, which it writes. Returns
        early once `interrupted` says so; `target` is unusable then.

        Raises:
            NotResumable: it takes too long.
            Diverged, ParserFailed: see `Generation.resume`.
        """
        if len(accepted.ids) + len(copied) <= AT_ONCE_IDS:
            target.resume(accepted)
            target.copy(copied)
            return
        cancelled = False
        async with self._places:
            give_up = time.monotonic() + LONGEST_S

            def should_continue() -> bool:
                if time.monotonic() > give_up:
                    raise base.NotResumable
                return not (cancelled or interrupted())

            try:
                await asyncio.to_thread(_read, target, accepted, copied, should_continue)
            finally:
                cancelled = True


def _read(
    target: generation.Generation,
    accepted: visible.Accepted,
    copied: Sequence[int],
    should_continue: visible.ShouldContinue,
) -> None:
    target.resume(accepted, should_continue)
    if should_continue():
        target.copy(copied, should_continue)
