"""The pools as they are now: their file is read again when it changes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from tailrace import telemetry
from tailrace.settings import pools_file
from tailrace.settings.catalog import Catalog

POLL_S: Final = 1.0

Admit = Callable[[Sequence[str]], Awaitable[None]]
"""Checks that pools with these names, which are new, can be used. Raises ValueError, which says
why not."""


class CurrentPools:
    """Holds the pools of a process. Callers read them at each use.

    A file that cannot be used changes nothing: it is reported in the log and by a metric, and read
    again until it can be used.

    Attributes:
        catalog: the pools and rules in force.
        _ever: names of all pools since the start. Their requests may run after they vanished.
        _content: the file's content that is in force; None: not known yet.
        _refusal: why the file as it is cannot be used; empty: it is in force.
    """

    def __init__(
        self,
        catalog: Catalog,
        *,
        admit: Admit | None = None,
        on_change: Callable[[Catalog], None] | None = None,
    ) -> None:
        """`on_change` is called with each new catalog."""
        self.catalog = catalog
        self._admit = admit
        self._on_change = on_change
        self._ever = dict.fromkeys(catalog.names)
        self._content: bytes | None = None
        self._refusal = ""

    def ever(self) -> Sequence[str]:
        """The names of all pools since the start."""
        return list(self._ever)

    async def run(self) -> None:
        """Poll the file once a second until cancelled. Ends at once if there is none."""
        while self.catalog.file is not None:
            await self.poll()
            await asyncio.sleep(POLL_S)

    async def poll(self) -> None:
        """Apply the content of the file if it differs from the one in force."""
        file = self.catalog.file
        assert file is not None
        try:
            # The content decides: Kubernetes swaps a symbolic link, and clocks may be coarse.
            data = await asyncio.to_thread(pools_file.content, file)
            if data == self._content:
                self._accept()
                return
            catalog = pools_file.decode(data, file)
            if catalog != self.catalog:
                if self._admit is not None:
                    names = self.catalog.names
                    await self._admit([name for name in catalog.names if name not in names])
                self._apply(catalog)
        except ValueError as error:
            self._refuse(str(error))
            return
        self._content = data
        self._accept()

    def _apply(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self._ever |= dict.fromkeys(catalog.names)
        telemetry.POOLS_READ.labels(outcome="taken").inc()
        telemetry.log(
            telemetry.Action.POOLS_CHANGED, pools=list(catalog.names), rules=len(catalog.rules)
        )
        if self._on_change is not None:
            self._on_change(catalog)

    def _accept(self) -> None:
        self._refusal = ""
        telemetry.POOLS_STALE.set(0)

    def _refuse(self, why: str) -> None:
        if why == self._refusal:
            return
        self._refusal = why
        telemetry.POOLS_READ.labels(outcome="refused").inc()
        telemetry.POOLS_STALE.set(1)
        telemetry.log(telemetry.Action.POOLS_REFUSED, detail=why)
