"""What this process has open for principals, so that it ends when a credential is revoked."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Protocol

from tailrace import telemetry
from tailrace.auth.principal import Principal
from tailrace.delivery.revocations import Revocations


class Holder(Protocol):
    """Something that lasts, and was opened for a principal."""

    @property
    def principal(self) -> Principal:
        """For whom it is open, by the credential that was shown last."""

    def revoke(self) -> None:
        """Its credential was revoked: end now. Called once at most, and never waits."""


class Admitted:
    """Everything that is open. An idle socket costs one entry of a set here."""

    def __init__(self, revocations: Revocations) -> None:
        self._revocations = revocations
        self._open: set[Holder] = set()
        revocations.on_revoked = self._close_revoked

    def __len__(self) -> int:
        return len(self._open)

    def add(self, holder: Holder) -> None:
        """It opens. It ends at once if its credential was revoked since it was checked."""
        if self._revocations.refuses(holder.principal):
            holder.revoke()
        else:
            self._open.add(holder)

    def discard(self, holder: Holder) -> None:
        """It has ended."""
        self._open.discard(holder)

    @contextlib.contextmanager
    def revoked(self, principal: Principal) -> Iterator[asyncio.Future[None]]:
        """A future that is done when the principal's credential is revoked, for one request."""
        waiting = _Waiting(principal)
        self.add(waiting)
        try:
            yield waiting.future
        finally:
            self.discard(waiting)
            waiting.future.cancel()

    def _close_revoked(self) -> None:
        connections = [each for each in self._open if self._revocations.refuses(each.principal)]
        self._open.difference_update(connections)
        for holder in connections:
            holder.revoke()
        telemetry.log(telemetry.Action.CREDENTIALS_REVOKED, ended=len(connections))


class _Waiting:
    def __init__(self, principal: Principal) -> None:
        self.principal = principal
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def revoke(self) -> None:
        if not self.future.done():
            self.future.set_result(None)
