"""Waiting for a condition, with a deadline that says what did not happen."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

EVERY_S = 0.05


async def eventually(
    condition: Callable[[], T | Awaitable[T]],
    what: str,
    *,
    within_s: float = 20.0,
    every_s: float = EVERY_S,
) -> T:
    """Ask until the answer is true, and return it.

    Args:
        condition: A function or coroutine function. It is asked every `every_s` seconds.
        what: The condition in words, for the message of the failure.

    Raises:
        AssertionError: The condition did not hold within `within_s` seconds.
    """
    end = time.monotonic() + within_s
    while True:
        answer = condition()
        found = await answer if inspect.isawaitable(answer) else answer
        if found:
            return found
        assert time.monotonic() < end, f"not within {within_s:.0f} s: {what}"
        await asyncio.sleep(every_s)
