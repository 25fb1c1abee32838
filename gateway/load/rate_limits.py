"""Rates per principal: token buckets in Redis, shared by all gateways.

Tokens are charged before a request is written, by an estimate of its prompt and its longest answer.
The charge is settled by the actual usage when the response has ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Literal

from gateway.cache import Cache
from gateway.load import admission, local_buckets
from gateway.parsing import command
from tailrace import telemetry
from tailrace.protocol import errors
from tailrace.settings.shapes import Limits
from tailrace.store.limits import Verdict

Kind = Literal["requests", "tokens"]


@dataclass(slots=True)
class Charge:
    """The charge of a request.

    Attributes:
        tokens: consumed from the bucket of tokens.
        headers: `x-ratelimit-*` for the answer.
    """

    principal: str
    tokens: float = 0.0
    headers: dict[str, str] = field(default_factory=dict)


class RateLimiter:
    """Charges requests and tokens to their principal's buckets.

    Without Redis the buckets of this process apply, with a share of each rate.
    """

    def __init__(
        self,
        cache: Cache,
        bounds: Limits,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`spawn` runs a coroutine in the background."""
        self._cache = cache
        self._limits = bounds
        self._spawn = spawn
        self._clock = clock
        self._local = local_buckets.LocalBuckets()

    async def charge(self, create: command.Create, principal: str) -> Charge:
        """Charge one request, and the tokens that are known without its conversation.

        Raises:
            errors.ApiError: 429, with the seconds until the bucket allows the request.
        """
        charge = await self.charge_request(principal)
        await self.charge_tokens(charge, admission.cost(create))
        return charge

    async def charge_request(self, principal: str) -> Charge:
        """Charge one request without its tokens. Raises like `charge`."""
        bounds, charge = self._limits, Charge(principal)
        if bounds.requests_rate:
            consumption = await self._consume(
                principal, "requests", 1.0, bounds.requests_rate, bounds.requests_burst
            )
            charge.headers = admission.headers(bounds, consumption.remaining)
            _require(consumption, "requests", charge.headers)
        return charge

    async def charge_tokens(self, charge: Charge, tokens: float) -> None:
        """Bring the charge up to `tokens`, the estimate of the whole request.

        Raises:
            errors.ApiError: 429; earlier charges stay.
        """
        bounds = self._limits
        more = min(tokens, bounds.tokens_burst) - charge.tokens
        if not bounds.tokens_rate or more <= 0:
            return
        consumption = await self._consume(
            charge.principal, "tokens", more, bounds.tokens_rate, bounds.tokens_burst
        )
        _require(consumption, "tokens", charge.headers)
        charge.tokens += more

    def settle(self, principal: str, charge: float, usage: float) -> None:
        """Refund or charge the difference between `charge` and `usage`, in tokens. Best effort:
        Redis may be down."""
        bounds = self._limits
        if bounds.tokens_rate and usage != charge:
            self._spawn(
                self._cache.settle_tokens(
                    principal, usage - charge, bounds.tokens_rate, bounds.tokens_burst, "tokens"
                )
            )

    async def _consume(
        self, principal: str, kind: Kind, cost: float, rate: float, burst: float
    ) -> Verdict:
        consumption = await self._cache.consume_tokens(principal, cost, rate, burst, kind)
        if consumption is None:
            consumption = self._local.consume(principal, kind, cost, rate, burst, self._clock())
        return consumption


def _require(consumption: Verdict, kind: Kind, headers: dict[str, str]) -> None:
    if not consumption.allowed:
        telemetry.REQUESTS.labels(outcome="limited").inc()
        raise errors.rate_limit_exceeded(consumption.retry_after_s, kind, headers)
