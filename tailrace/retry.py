"""One loop for everything that is tried again until it succeeds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


async def retry_until(
    attempt: Callable[[], Awaitable[T]],
    *,
    on: type[Exception] | tuple[type[Exception], ...],
    pause_s: float,
    deadline_s: float = float("inf"),
    failed: Callable[[Exception], None] | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> T:
    """Make attempts until one returns, with a pause between them.

    Args:
        on: errors after which another attempt is made. Other errors end the loop.
        failed: called with each such error.

    Raises:
        The last of the errors `on`, when the next attempt would begin after the deadline.
    """
    give_up = clock() + deadline_s
    while True:
        try:
            return await attempt()
        except on as error:
            if clock() + pause_s > give_up:
                raise
            if failed is not None:
                failed(error)
        await sleep(pause_s)
