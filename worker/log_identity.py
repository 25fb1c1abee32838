"""Which log this worker started on, and whether it is still that one."""

from __future__ import annotations

from tailrace import log
from tailrace.log import interfaces


class LogIdentity:
    """The log's incarnation at the start of this process.

    Attributes:
        tag: the incarnation as response ids carry it.
    """

    def __init__(self, layout: log.Layout, query: interfaces.LayoutQuery) -> None:
        self.tag = layout.tag
        self._incarnation = layout.incarnation
        self._query = query

    async def check(self) -> None:
        """Ask the broker which log it holds.

        Raises:
            LogChanged: another one.
            LogUnavailable: no answer.
        """
        found = await self._query()
        if found.incarnation != self._incarnation:
            raise log.LogChanged(
                f"the log's incarnation changed from {self._incarnation} to {found.incarnation}"
            )
