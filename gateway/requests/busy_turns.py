"""A turn that is to follow one that runs still: refuse it, have it wait, or end the other."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from typing import Final

from gateway.parsing import command
from gateway.responses import response_operations
from tailrace.delivery import delivery
from tailrace.protocol import errors, records
from tailrace.settings import shapes

WAIT_S: Final = 600.0
MAX_WAITING: Final = 16  # of one principal
LOOK_AGAIN_S: Final = 0.1  # for a request that is not in the log yet
RETRY_AFTER_S: Final = 5.0
_AFTER_ANY_EVENT: Final = 2**53
CONVERSATION: Final = "conversation"


class Busy(Exception):
    """The turn that another one is to follow runs still.

    Attributes:
        rid: its response; it may not be in the log yet.
        param: the field that named what the new turn is to follow.
    """

    def __init__(self, rid: str, param: str) -> None:
        super().__init__(rid)
        self.rid = rid
        self.param = param

    @property
    def error(self) -> errors.ApiError:
        """What a client is told that did not ask to wait."""
        if self.param == CONVERSATION:
            return errors.conversation_locked(self.param, self.rid)
        return errors.invalid_value(self.param, f"Response '{self.rid}' is still in progress.")


class BusyTurns:
    """Waits for turns, or interrupts them.

    Attributes:
        _waiting: how many requests wait, by principal.
        _lines: by conversation and what they are to follow there: those that wait have their turn
            as they came.
    """

    def __init__(
        self, deliver: delivery.Delivery, operations: response_operations.ResponseOperations
    ) -> None:
        self._delivery = deliver
        self._operations = operations
        self._waiting: Counter[str] = Counter()
        self._lines: dict[tuple[str, command.Behind | None], tuple[asyncio.Lock, list[None]]] = {}

    @contextlib.asynccontextmanager
    async def line(self, create: command.Create) -> AsyncIterator[None]:
        """Inside of it, this request is the first of those that queue for one conversation, or
        behind one node of it."""
        if create.conversation is None or create.if_busy != "queue":
            yield
            return
        name = (create.conversation, create.behind)
        lock, inside = self._lines.setdefault(name, (asyncio.Lock(), []))
        inside.append(None)
        try:
            async with lock:
                yield
        finally:
            inside.pop()
            if not inside:
                del self._lines[name]

    async def over(self, busy: Busy, how: shapes.IfBusy, owner: records.Owner) -> None:
        """Return when the turn has ended, or is not there after all.

        Raises:
            errors.ApiError: `how` says to refuse; or too many wait for this principal.
            log.HistoryLost, log.LogUnavailable
            TimeoutError: it runs for too long.
        """
        if how == "reject":
            raise busy.error
        if self._waiting[owner.key] >= MAX_WAITING:
            raise errors.rate_limit_exceeded(RETRY_AFTER_S)
        self._waiting[owner.key] += 1
        try:
            if how == "interrupt":
                await self._operations.cancel(busy.rid, owner)
            else:
                await self._ended(busy.rid, owner)
        except delivery.NotFound:
            await asyncio.sleep(LOOK_AGAIN_S)
        finally:
            self._waiting[owner.key] -= 1
            if not self._waiting[owner.key]:
                del self._waiting[owner.key]

    async def _ended(self, rid: str, owner: records.Owner) -> None:
        subscription = await self._delivery.watch(rid, owner, _AFTER_ANY_EVENT)
        try:
            while await subscription.next_events():
                pass
        finally:
            subscription.close()
