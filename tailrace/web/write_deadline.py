"""The one mechanism that detects a client that reads nothing.

A connection puts each write between `with deadline:`; one timer for all open connections asks each
of them now and then. A timer per write would cost a tenth of what an event costs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final, Protocol

from tailrace import telemetry

WRITE_DEADLINE_S: Final = 10.0
CHECK_S: Final = 2.5
# Observing each write is 5 % of what a message to one of many watchers costs.
OBSERVED_EACH: Final = 16

_EGRESS_SECONDS: Final = telemetry.STAGE_SECONDS.labels(stage="egress")


class WriteDeadline:
    """When the writes to one client began and ended. Several tasks may write at once.

    Attributes:
        _waiting: how many writes have begun and not ended.
        _writes: how many writes have ended.
        _progress: when a write last began with none before it, or ended (seconds, by `clock`).
    """

    __slots__ = ("_clock", "_progress", "_waiting", "_writes")

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._waiting = 0
        self._progress = 0.0
        self._writes = 0

    def __enter__(self) -> None:
        if not self._waiting:
            self._progress = self._clock()
        self._waiting += 1

    def __exit__(self, *_: object) -> None:
        self._waiting -= 1
        now = self._clock()
        if not self._writes % OBSERVED_EACH:
            _EGRESS_SECONDS.observe(now - self._progress)
        self._writes += 1
        self._progress = now

    def overdue(self, now: float) -> bool:
        """Whether the client has taken nothing for too long, while something waits for it."""
        return self._waiting > 0 and now - self._progress >= WRITE_DEADLINE_S

    def idle_s(self, now: float) -> float:
        """How long nothing has been written, in seconds; 0 while something waits."""
        return 0.0 if self._waiting else now - self._progress


class Connection(Protocol):
    """Something open that has deadlines."""

    def check_deadlines(self, now: float) -> None:
        """End overdue writes. `now`: seconds, by the clock of `DeadlineChecks`."""


class DeadlineChecks:
    """Calls `check_deadlines` of every open connection, every `interval_s` seconds.

    Attributes:
        _open: the connections.
        _timer: of the next check; None while there is no connection.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, interval_s: float = CHECK_S
    ) -> None:
        self._clock = clock
        self._interval_s = interval_s
        self._open: set[Connection] = set()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, connection: Connection) -> None:
        """Check it from now on."""
        self._open.add(connection)
        if self._timer is None:
            self._schedule()

    def discard(self, connection: Connection) -> None:
        """Check it no more."""
        self._open.discard(connection)

    def _schedule(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._interval_s, self._check)

    def _check(self) -> None:
        now = self._clock()
        for connection in list(self._open):
            connection.check_deadlines(now)
        self._timer = None
        if self._open:
            self._schedule()
