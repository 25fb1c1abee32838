"""What a request takes before it is in the log, given back unless it gets there."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Self

from gateway.load import rate_limits
from gateway.requests import stages


class Bill:
    """The charge of one request, and what else it has to give back.

    The charge begins with the bill, so that it reaches Redis together with the first look-ups of
    the stages. Use it as a context: what was taken is given back at its end, unless `stands` was
    called.
    """

    def __init__(self, rates: rate_limits.RateLimiter, arrival: stages.Arrival) -> None:
        self._rates = rates
        self._charging = asyncio.ensure_future(rates.charge(arrival.create, arrival.principal.key))
        self._charging.add_done_callback(consume_exception)
        self._undo = contextlib.ExitStack()

    async def check(self) -> None:
        """Return once the rates allow the request. Raises ApiError: 429."""
        await self._charging

    async def charge(self) -> rate_limits.Charge:
        """The charge, from now on given back with the rest. Raises ApiError: 429."""
        charge = await self._charging
        self._undo.callback(lambda: self._rates.settle(charge.principal, charge.tokens, 0.0))
        return charge

    def undo(self, call: Callable[[], None]) -> None:
        """Call this at the end, unless the request stands."""
        self._undo.callback(call)

    def commit(self) -> None:
        """The request is in the log: nothing is given back."""
        self._undo.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._charging.cancel()
        self._undo.close()


def consume_exception(task: asyncio.Future[Any]) -> None:
    """Mark the task's exception as seen: another failure may come first and be raised instead."""
    if not task.cancelled():
        task.exception()
