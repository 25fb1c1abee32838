"""Queries that a service cannot run without."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from tailrace import log
from tailrace.retry import retry_until

T = TypeVar("T")


async def persist(query: Callable[[], Awaitable[T]]) -> T:
    """Repeat a query until the log answers."""
    return await retry_until(query, on=log.LogUnavailable, pause_s=log.RETRY_S)
