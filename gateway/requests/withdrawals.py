"""Withdraws requests whose acceptance no client knows.

A CANCEL in the token partition is enough (log rule §5): a worker that has the request, or gets it
later, finds the response DONE. The append is retried until the broker has it.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from gateway.parsing import command
from gateway.responses import response_operations
from tailrace import log, telemetry
from tailrace.protocol import records
from tailrace.retry import retry_until

RETRY_S: Final = 0.5


class Withdrawals:
    """Withdraws requests in the background.

    Attributes:
        _pending: by response id; set when its CANCEL is in the log, or the attempt was given up.
    """

    def __init__(
        self,
        operations: response_operations.ResponseOperations,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._operations = operations
        self._spawn = spawn
        self._pending: dict[str, asyncio.Event] = {}

    def __len__(self) -> int:
        return len(self._pending)

    def begin(
        self, request: records.Request, unless: Callable[[], Awaitable[bool]] | None = None
    ) -> None:
        """Withdraw the request in the background.

        Args:
            unless: returns whether the request stays; called again while it raises LogUnavailable.
        """
        done = self._pending[request.rid] = asyncio.Event()
        self._spawn(self._withdraw(request, done, unless))

    async def wait_for(self, rid: str) -> None:
        """Return when no withdrawal of this response is pending."""
        if (pending := self._pending.get(rid)) is not None:
            await pending.wait()

    async def _withdraw(
        self,
        request: records.Request,
        done: asyncio.Event,
        unless: Callable[[], Awaitable[bool]] | None,
    ) -> None:
        rid = request.rid
        # A request that has not started by then has expired.
        patient = functools.partial(
            retry_until,
            on=log.LogUnavailable,
            pause_s=RETRY_S,
            deadline_s=command.MAX_DEADLINE_MS / 1000,
        )
        try:
            if unless is not None and await patient(unless):
                return
            await patient(
                lambda: self._operations.append_cancel(
                    rid, request.owner, request.echo, withdrawn=True
                )
            )
            telemetry.log(telemetry.Action.RESPONSE_WITHDRAWN, response=rid)
        except log.LogUnavailable as error:
            telemetry.log(telemetry.Action.TASK_FAILED, response=rid, exc_info=error)
        finally:
            del self._pending[rid]
            done.set()
