"""Builds the request record, charges it, counts its prompt and writes its files."""

from __future__ import annotations

import functools
from collections.abc import Callable

from gateway.files.files import Files
from gateway.load import admission, rate_limits
from gateway.requests import charging, request_builder, stages, token_counts
from tailrace.auth.principal import Principal


class Preparing:
    """Builds request records that may be appended."""

    def __init__(
        self,
        builder: request_builder.RequestBuilder,
        rates: rate_limits.RateLimiter,
        counts: token_counts.TokenCounts,
        files: Files,
        permit: Callable[[Principal], None],
    ) -> None:
        """`permit` raises ApiError when the principal's credential was revoked."""
        self._builder = builder
        self._rates = rates
        self._counts = counts
        self._files = files
        self._permit = permit

    async def build(self, decision: stages.Decision, bill: charging.Bill) -> stages.Draft:
        """The record, charged to its principal.

        Raises:
            errors.ApiError: the rate limiter refuses it, its prompt is too long, or its credential
                was revoked. Others like `RequestBuilder.build`.
        """
        create, placement = decision.create, decision.placement
        arrival = placement.arrival
        request, partition = await self._builder.build(
            create, arrival.principal, arrival.memory, placement.before
        )
        bill.undo(functools.partial(self._builder.discard, partition, create, arrival.principal))
        charge = await bill.charge()
        if arrival.looks_up:
            await self._rates.charge_tokens(charge, admission.cost_of(request))
        await self._counts.check(create, request)
        request = await self._files.apart(request)
        self._permit(arrival.principal)  # the steps before may have taken seconds
        return stages.Draft(decision, request, partition, charge)

    async def count_tokens(self, decision: stages.Decision) -> int | None:
        """The number of tokens of the prompt; None where a worker has to count.

        Raises:
            errors.ApiError: the prompt is too long. Others like `build`.
        """
        create, arrival = decision.create, decision.placement.arrival
        if not self.can_count(create.pool):
            return None
        request, partition = await self._builder.build(
            create, arrival.principal, before=decision.placement.before
        )
        self._builder.discard(partition, create, arrival.principal)
        return await self._counts.count(create, request)

    def can_count(self, pool: str) -> bool:
        """Whether prompts for a pool can be counted here."""
        return self._counts.can_count(pool)
