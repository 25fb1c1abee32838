"""The end of a credential on something that is open for longer than a request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

WARNED_S: Final = 60.0


class Timer(Protocol):
    """A call that is scheduled."""

    def cancel(self) -> None:
        """The call is not made."""


Later = Callable[[float, Callable[[], None]], Timer]


def on_loop(after_s: float, call: Callable[[], None]) -> Timer:
    """A timer of the running event loop."""
    return asyncio.get_running_loop().call_later(after_s, call)


class CredentialTimer:
    """One timer: first for the warning, if there is one, then for the end.

    Attributes:
        _on_expired: None after `cancel`: what is called refers to this timer, and together they
            would wait for the garbage collector.
        _timer: the one that runs; None before `start` and after the end.
    """

    __slots__ = ("_clock", "_expires_at", "_later", "_on_expired", "_on_expiring", "_timer")

    def __init__(
        self,
        clock: Callable[[], float],
        on_expired: Callable[[], None],
        on_expiring: Callable[[float], None] | None = None,
        later: Later = on_loop,
    ) -> None:
        """
        Args:
            clock: seconds since the epoch.
            on_expired: called once, when the credential has expired.
            on_expiring: called with the seconds that are left: `WARNED_S` before the end, or at
                half of the time, if that is later. So credentials of a short life, or the same one
                again, cause no endless exchange.
            later: schedules a call, in seconds from now.
        """
        self._clock = clock
        self._on_expired: Callable[[], None] | None = on_expired
        self._on_expiring = on_expiring
        self._later = later
        self._expires_at = 0.0
        self._timer: Timer | None = None

    def start(self, expires_at: float) -> None:
        """Watch a credential, and no former one. No effect after `cancel`."""
        if self._on_expired is None:
            return
        self._expires_at = expires_at
        remaining_s = expires_at - self._clock()
        if self._on_expiring is None:
            self._schedule(remaining_s, self._expire)
        else:
            self._schedule(max(remaining_s - WARNED_S, remaining_s / 2), self._warn)

    def cancel(self) -> None:
        """Call nothing from now on; idempotent."""
        self._stop()
        self._on_expired = self._on_expiring = None

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule(self, after_s: float, call: Callable[[], None]) -> None:
        self._stop()
        self._timer = self._later(max(0.0, after_s), call)

    def _warn(self) -> None:
        remaining_s = self._expires_at - self._clock()
        self._schedule(remaining_s, self._expire)
        if self._on_expiring is not None and remaining_s > 0:
            self._on_expiring(remaining_s)

    def _expire(self) -> None:
        self._timer = None
        if self._on_expired is not None:
            self._on_expired()
