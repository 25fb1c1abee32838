"""Waiting for a condition, with a deadline that says what did not happen."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload

T = TypeVar("T")

EVERY_S = 0.05
FIRST_S = 0.002


@overload
async def eventually(
    condition: Callable[[], Awaitable[T]],
    what: str,
    *,
    within_s: float = ...,
    every_s: float = ...,
) -> T: ...


@overload
async def eventually(
    condition: Callable[[], T], what: str, *, within_s: float = ..., every_s: float = ...
) -> T: ...


async def eventually(
    condition: Callable[[], Any],
    what: str,
    *,
    within_s: float = 60.0,
    every_s: float = EVERY_S,
) -> Any:
    """Ask until the answer is true, and return it.

    Args:
        condition: A function or coroutine function. It is asked every `every_s` seconds; at first
            in shorter intervals, because most waits are short.
        what: The condition in words, for the message of the failure.

    Raises:
        AssertionError: The condition did not hold within `within_s` seconds.
    """
    end, pause_s = time.monotonic() + within_s, min(every_s, FIRST_S)
    while True:
        answer = condition()
        found = await answer if inspect.isawaitable(answer) else answer
        if found:
            return found
        assert time.monotonic() < end, f"not within {within_s:.0f} s: {what}"
        await asyncio.sleep(pause_s)
        pause_s = min(every_s, 2 * pause_s)


def eventually_blocking(
    condition: Callable[[], T],
    what: str | Callable[[], str],
    *,
    within_s: float = 60.0,
    every_s: float = EVERY_S,
) -> T:
    """Like `eventually()`, for code outside an event loop.

    Args:
        condition: A function. It is asked every `every_s` seconds.
        what: The condition in words, or a function that returns them when the wait fails.

    Raises:
        AssertionError: The condition did not hold within `within_s` seconds.
    """
    end = time.monotonic() + within_s
    while not (found := condition()):
        if time.monotonic() > end:
            words = what if isinstance(what, str) else what()
            raise AssertionError(f"not within {within_s:.0f} s: {words}")
        time.sleep(every_s)
    return found
