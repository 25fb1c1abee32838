"""What one principal, and one client address, may have of this process: open sockets and streams,
reads, tickets, refused credentials, messages.

Requests to generate are counted for all gateways together (`gateway/load/rate_limits.py`). These
are counted here, without a round trip.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable

from starlette.requests import HTTPConnection

from tailrace import settings, telemetry
from tailrace.auth.principal import Principal
from tailrace.connections import caps, token_buckets
from tailrace.protocol import errors

RETRY_S = 1.0
MESSAGES_BURST_S = 1.0


class OpenConnections:
    """Counts the sockets and event streams that are open.

    Attributes:
        _by_principal: how many are open, by principal key; no zeros.
    """

    def __init__(self, limits: settings.Limits) -> None:
        self._limits = limits
        self._by_principal: Counter[str] = Counter()
        self._open = 0

    def __len__(self) -> int:
        return self._open

    def check_room(self, principal: Principal) -> None:
        """Raises:
        errors.ApiError: 429, when the principal or this process has as many as it may.
        """
        if (
            self._open >= self._limits.sockets
            or self._by_principal.get(principal.key, 0) >= self._limits.sockets_per_principal
        ):
            raise errors.overloaded(RETRY_S)

    def enter(self, principal: Principal) -> None:
        """One more is open."""
        self._open += 1
        self._by_principal[principal.key] += 1

    def leave(self, principal: Principal) -> None:
        """One that was open has ended."""
        key = principal.key
        self._open -= 1
        self._by_principal[key] -= 1
        if self._by_principal[key] <= 0:
            del self._by_principal[key]

    def counted(self, principal: Principal, on_end: Callable[[], None]) -> Callable[[], None]:
        """Count one until the function that is returned was called. It calls `on_end`."""
        self.enter(principal)

        def ended() -> None:
            self.leave(principal)
            on_end()

        return ended


class Rates:
    """Token buckets. `clock`: monotonic seconds."""

    def __init__(
        self, limits: settings.Limits, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._reads = _buckets(limits.reads_rate, limits.reads_burst)
        self._tickets = _buckets(limits.tickets_rate, limits.tickets_burst)
        self._refusals = _buckets(limits.refusals_rate, limits.refusals_burst)
        self._visits = _buckets(limits.reads_rate, limits.reads_burst)
        self._messages = _buckets(limits.messages_rate, MESSAGES_BURST_S * limits.messages_rate)

    def read(self, principal: Principal) -> None:
        """Charge one visit.

        Raises:
            errors.ApiError: 429.
        """
        self._charge(self._reads, principal)

    def visit(self, connection: HTTPConnection) -> None:
        """Charge one look without a credential, to the client's address. Raises like `read`."""
        if self._visits is not None and (
            wait_s := self._visits.consume(_address(connection), self._clock())
        ):
            raise errors.rate_limit_exceeded(wait_s)

    def ticket(self, principal: Principal) -> None:
        """Charge one ticket.

        Raises:
            errors.ApiError: 429.
        """
        self._charge(self._tickets, principal)

    async def message(self, principal: Principal) -> None:
        """Charge one message of a socket that is open, and wait until the next one may be read: a
        client that sends too much is slowed down, on all of its sockets together."""
        if self._messages is None:
            return
        if wait_s := self._messages.spend(principal.key, self._clock()):
            telemetry.CLIENTS_SLOWED.labels(reason="messages").inc()
            await asyncio.sleep(wait_s)

    def check_refusals(self, connection: HTTPConnection) -> None:
        """Before a credential is checked.

        Raises:
            errors.ApiError: 429, when too many from this address were refused.
        """
        if self._refusals is not None and len(self._refusals):
            wait_s = self._refusals.wait_s(_address(connection), self._clock())
            if wait_s:
                raise errors.too_many_refusals(wait_s)

    def refused(self, connection: HTTPConnection) -> None:
        """A credential from this address was refused."""
        if self._refusals is not None:
            self._refusals.consume(_address(connection), self._clock())

    def _charge(self, buckets: token_buckets.TokenBuckets | None, principal: Principal) -> None:
        if buckets is not None and (wait_s := buckets.consume(principal.key, self._clock())):
            raise errors.rate_limit_exceeded(wait_s)


def _buckets(rate: float, burst: float) -> token_buckets.TokenBuckets | None:
    return token_buckets.TokenBuckets(rate, burst) if rate else None


def _address(connection: HTTPConnection) -> str:
    return caps.address_key(connection.client.host if connection.client else "")
