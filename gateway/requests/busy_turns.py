"""What to do with a turn whose predecessor is still running: refuse it, queue it, or cancel the
predecessor."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator
from typing import Final

from gateway.parsing import command
from gateway.responses import busy, response_operations
from tailrace import log
from tailrace.auth.principal import Principal
from tailrace.delivery import delivery
from tailrace.protocol import errors, records
from tailrace.settings import shapes
from tailrace.web import access

WAIT_S: Final = 600.0
MAX_WAITING: Final = 16  # of one principal
POLL_S: Final = 0.1  # for a request that is not in the log yet
RETRY_AFTER_S: Final = 5.0
_AFTER_ANY_EVENT: Final = 2**53


class BusyTurns:
    """Waits for running turns, or cancels them.

    Attributes:
        _waiting: number of waiting requests, by principal.
        _lines: locks by conversation and predecessor. Requests that wait for the same predecessor
            start in the order of their arrival.
    """

    def __init__(
        self, deliver: delivery.Delivery, operations: response_operations.ResponseOperations
    ) -> None:
        self._delivery = deliver
        self._operations = operations
        self._waiting: Counter[str] = Counter()
        self._lines: dict[tuple[str, command.Parent | None], tuple[asyncio.Lock, list[None]]] = {}

    @contextlib.asynccontextmanager
    async def line(self, create: command.Create) -> AsyncIterator[None]:
        """Hold the head of the queue for one conversation, or for one node of it, while the block
        runs."""
        if create.conversation is None or create.if_busy != "queue":
            yield
            return
        name = (create.conversation, create.parent)
        lock, inside = self._lines.setdefault(name, (asyncio.Lock(), []))
        inside.append(None)
        try:
            async with lock:
                yield
        finally:
            inside.pop()
            if not inside:
                del self._lines[name]

    async def wait(
        self, turn: busy.Busy, if_busy: shapes.IfBusy, principal: Principal, give_up: float
    ) -> None:
        """Return when the predecessor has ended. `give_up`: the deadline, in seconds of the
        monotonic clock.

        Raises:
            errors.ApiError: it is still running at the deadline, `if_busy` says to refuse, or the
                log does not answer.
        """
        try:
            async with asyncio.timeout(give_up - time.monotonic()):
                await self.until_over(turn, if_busy, access.owner_of(principal))
        except TimeoutError:
            raise turn.error from None
        except log.HistoryLost:
            return  # nothing runs
        except log.LogUnavailable as error:
            raise errors.unavailable("The log cannot be read right now.") from error

    async def until_over(
        self, turn: busy.Busy, if_busy: shapes.IfBusy, owner: records.Owner
    ) -> None:
        """Return when the predecessor has ended, or does not exist.

        Raises:
            errors.ApiError: `if_busy` says to refuse, or too many requests of this principal wait.
            log.HistoryLost, log.LogUnavailable
            TimeoutError: it runs for too long.
        """
        if if_busy == "reject":
            raise turn.error
        if self._waiting[owner.key] >= MAX_WAITING:
            raise errors.rate_limit_exceeded(RETRY_AFTER_S)
        self._waiting[owner.key] += 1
        try:
            if if_busy == "interrupt":
                await self._operations.cancel(turn.rid, owner)
            else:
                await self._until_end(turn.rid, owner)
        except delivery.NotFound:
            await asyncio.sleep(POLL_S)
        finally:
            self._waiting[owner.key] -= 1
            if not self._waiting[owner.key]:
                del self._waiting[owner.key]

    async def _until_end(self, rid: str, owner: records.Owner) -> None:
        subscription = await self._delivery.watch(rid, owner, _AFTER_ANY_EVENT)
        try:
            while await subscription.next_events():
                pass
        finally:
            subscription.close()
