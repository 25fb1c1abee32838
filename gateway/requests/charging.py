"""What a request holds before it is in the log. It is released unless the append succeeds."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Self

from gateway.load import rate_limits
from gateway.requests import stages


class Bill:
    """The charge of one request, and everything else to undo if the request fails.

    The charge starts in the constructor, so that it reaches Redis together with the first look-ups
    of the stages. Use it as a context manager: it undoes everything at the end, unless `commit` was
    called.
    """

    def __init__(self, rates: rate_limits.RateLimiter, arrival: stages.Arrival) -> None:
        self._rates = rates
        self._charging = asyncio.ensure_future(rates.charge(arrival.create, arrival.principal.key))
        self._charging.add_done_callback(consume_exception)
        self._undo = contextlib.ExitStack()

    async def check(self) -> None:
        """Wait until the rate limiter accepts the request. Raises ApiError: 429."""
        await self._charging

    async def charge(self) -> rate_limits.Charge:
        """The charge. It is undone with the rest. Raises ApiError: 429."""
        charge = await self._charging
        self._undo.callback(lambda: self._rates.settle(charge.principal, charge.tokens, 0.0))
        return charge

    def undo(self, call: Callable[[], None]) -> None:
        """Register a call that undoes something, unless `commit` is called."""
        self._undo.callback(call)

    def commit(self) -> None:
        """The request is in the log: nothing is undone."""
        self._undo.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._charging.cancel()
        self._undo.close()


def consume_exception(task: asyncio.Future[Any]) -> None:
    """Mark the task's exception as retrieved, because another failure may be raised instead."""
    if not task.cancelled():
        task.exception()
