"""Built: the request record, charged, counted, its files written, its principal still welcome."""

from __future__ import annotations

import functools
from collections.abc import Callable

from gateway.files.files import Files
from gateway.load import admission, rate_limits
from gateway.requests import charging, request_builder, stages, token_counts
from tailrace.auth.principal import Principal


class Preparing:
    """Makes request records that may be appended."""

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
        """Raises like `RequestBuilder.build`; ApiError: the rates refuse it, its prompt is too
        long, or its credential was revoked."""
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
        self._permit(arrival.principal)  # what came before may have taken seconds
        return stages.Draft(decision, request, partition, charge)

    async def count_tokens(self, decision: stages.Decision) -> int | None:
        """How many tokens the prompt is; None where a worker has to say. Raises like `build`, and
        ApiError: it is too long."""
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
