"""Which log this process delivers from, and whether it is still that one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tailrace import log
from tailrace.delivery.persist import persist
from tailrace.log import interfaces

TRUST_S = 5.0  # clients may ask for ids of other logs as often as they like


class LogIdentity:
    """Asks which log it is.

    Attributes:
        _trusted_until: until then (seconds of `clock`) the last answer counts.
        _replaced: set once the log is another one.
    """

    def __init__(
        self, layout: log.Layout, query: interfaces.LayoutQuery, clock: Callable[[], float]
    ) -> None:
        self._layout = layout
        self._query = query
        self._clock = clock
        self._asking = asyncio.Lock()
        self._trusted_until = 0.0
        self._replaced = asyncio.Event()

    async def run(self) -> None:
        """Wait until `require_same` finds another log.

        Raises:
            log.LogChanged: always.
        """
        await self._replaced.wait()
        raise log.LogChanged(f"the log is not {self._layout.incarnation} any more")

    async def require_same(self) -> None:
        """Called when an id of another log was asked for. The id may be an old one. Or this
        process's log is gone: without streams it follows no partition that would tell.

        Raises:
            log.LogUnavailable: the log is another one now, or it does not answer.
        """
        async with self._asking:
            if self._clock() < self._trusted_until:
                return
            if (await self._query()).incarnation != self._layout.incarnation:
                self._replaced.set()
                raise log.LogUnavailable("the log is another one now")
            self._trusted_until = self._clock() + TRUST_S

    async def check(self) -> None:
        """Called when a position is not in the log any more; asks until there is an answer.

        Raises:
            log.LogChanged: the log is another one.
        """
        found = await persist(self._query)
        if found.incarnation != self._layout.incarnation:
            raise log.LogChanged(
                f"the log's incarnation changed from {self._layout.incarnation} to "
                f"{found.incarnation}"
            )
