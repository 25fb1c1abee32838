"""Built: the request record, charged, counted, its files written, its principal still welcome."""

from __future__ import annotations

import functools
from collections.abc import Callable

from gateway.files import files
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
        kept_files: files.Files,
        permit: Callable[[Principal], None],
    ) -> None:
        """`permit` raises ApiError when the principal's credential was revoked."""
        self._builder = builder
        self._rates = rates
        self._counts = counts
        self._files = kept_files
        self._permit = permit

    async def built(self, decided: stages.Decided, bill: charging.Bill) -> stages.Built:
        """Raises like `RequestBuilder.build`; ApiError: the rates refuse it, its prompt is too
        long, or its credential was revoked."""
        create, placed = decided.create, decided.placed
        asked = placed.asked
        request, partition = await self._builder.build(
            create, asked.principal, asked.remembered, placed.before
        )
        bill.undo(functools.partial(self._builder.dropped, partition, create, asked.principal))
        charge = await bill.charged()
        if asked.looks_up:
            await self._rates.charge_tokens(charge, admission.cost_of(request))
        await self._counts.check(create, request)
        request = await self._files.apart(request)
        self._permit(asked.principal)  # what came before may have taken seconds
        return stages.Built(decided, request, partition, charge)

    async def counted(self, decided: stages.Decided) -> int | None:
        """How many tokens the prompt is; None where a worker has to say. Raises like `build`, and
        ApiError: it is too long."""
        create, asked = decided.create, decided.placed.asked
        if not self.able(create.pool):
            return None
        request, partition = await self._builder.build(
            create, asked.principal, before=decided.placed.before
        )
        self._builder.dropped(partition, create, asked.principal)
        return await self._counts.count(create, request)

    def able(self, pool: str) -> bool:
        """Whether prompts for a pool can be counted here."""
        return self._counts.able(pool)
