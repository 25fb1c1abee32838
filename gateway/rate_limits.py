"""Rates per principal: token buckets in Redis, shared by all gateways."""

from __future__ import annotations

from gateway import admission, cache, request_parsing
from tailrace import telemetry
from tailrace.protocol import errors
from tailrace.settings.shapes import Limits


class RateLimiter:
    """Charges requests and tokens to their principal's buckets.

    Without Redis nothing is charged and everything is allowed.
    """

    def __init__(self, cached: cache.Cache, bounds: Limits) -> None:
        self._cache = cached
        self._limits = bounds

    async def charge(self, create: request_parsing.Create, principal: str) -> dict[str, str]:
        """Charge one request and the tokens it may take. Returns `x-ratelimit-*` headers.

        Raises:
            errors.ApiError: 429, with the seconds until the bucket allows the request.
        """
        bounds = self._limits
        headers: dict[str, str] = {}
        if bounds.requests_rate:
            taken = await self._cache.consume_tokens(
                principal, 1.0, bounds.requests_rate, bounds.requests_burst, "requests"
            )
            if taken is not None:
                headers = admission.headers(bounds, taken.remaining)
                if not taken.allowed:
                    telemetry.REQUESTS.labels(outcome="limited").inc()
                    raise errors.rate_limit_exceeded(taken.retry_after_s, "requests", headers)
        if bounds.tokens_rate:
            taken = await self._cache.consume_tokens(
                principal,
                admission.cost(create),
                bounds.tokens_rate,
                bounds.tokens_burst,
                "tokens",
            )
            if taken is not None and not taken.allowed:
                telemetry.REQUESTS.labels(outcome="limited").inc()
                raise errors.rate_limit_exceeded(taken.retry_after_s, "tokens", headers)
        return headers
