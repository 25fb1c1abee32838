"""Questions that a service cannot start or go on without."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from tailrace import log
from tailrace.retry import retry_until

T = TypeVar("T")


async def persist(ask: Callable[[], Awaitable[T]]) -> T:
    """Ask until the log answers."""
    return await retry_until(ask, on=log.LogUnavailable, pause_s=log.RETRY_S)
