"""The pools as they are now: their file is read again when it changes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from tailrace import telemetry
from tailrace.settings import pools_file
from tailrace.settings.catalog import Catalog

LOOK_S: Final = 1.0

Admit = Callable[[Sequence[str]], Awaitable[None]]
"""Checks that pools with these names, which are new, can be used. Raises ValueError, which says
why not."""


class CurrentPools:
    """Holds the pools of a process. Who needs them asks each time.

    A file that cannot be used changes nothing: it is told in the log and by a metric, and looked at
    again until it can be.

    Attributes:
        catalog: the pools and rules in force.
        _ever: names of all pools since the start. Their requests may run after they vanished.
        _content: the file's content that is in force; None: not known yet.
        _refused: why the file as it is cannot be used; empty: it is in force.
    """

    def __init__(
        self,
        catalog: Catalog,
        *,
        admit: Admit | None = None,
        changed: Callable[[Catalog], None] | None = None,
    ) -> None:
        """`changed` is told of each new catalog."""
        self.catalog = catalog
        self._admit = admit
        self._changed = changed
        self._ever = dict.fromkeys(catalog.names)
        self._content: bytes | None = None
        self._refused = ""

    def ever(self) -> Sequence[str]:
        """The names of all pools since the start."""
        return list(self._ever)

    async def run(self) -> None:
        """Look at the file once a second until cancelled. Ends at once where there is none."""
        while self.catalog.file is not None:
            await self.look()
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        """Take what the file says, if that is something else than what is in force."""
        file = self.catalog.file
        assert file is not None
        try:
            # The content decides: Kubernetes swaps a symbolic link, and clocks may be coarse.
            data = await asyncio.to_thread(pools_file.content, file)
            if data == self._content:
                self._accepted()
                return
            found = pools_file.decoded(data, file)
            if found != self.catalog:
                if self._admit is not None:
                    known = self.catalog.names
                    await self._admit([name for name in found.names if name not in known])
                self._take(found)
        except ValueError as error:
            self._refuse(str(error))
            return
        self._content = data
        self._accepted()

    def _take(self, found: Catalog) -> None:
        self.catalog = found
        self._ever |= dict.fromkeys(found.names)
        telemetry.POOLS_READ.labels(outcome="taken").inc()
        telemetry.log(
            telemetry.Action.POOLS_CHANGED, pools=list(found.names), rules=len(found.rules)
        )
        if self._changed is not None:
            self._changed(found)

    def _accepted(self) -> None:
        self._refused = ""
        telemetry.POOLS_STALE.set(0)

    def _refuse(self, why: str) -> None:
        if why == self._refused:
            return
        self._refused = why
        telemetry.POOLS_READ.labels(outcome="refused").inc()
        telemetry.POOLS_STALE.set(1)
        telemetry.log(telemetry.Action.POOLS_REFUSED, detail=why)
