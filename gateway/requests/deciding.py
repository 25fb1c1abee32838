"""Placed, and decided: what comes before a request, and which model it is for."""

from __future__ import annotations

import asyncio
import dataclasses

from gateway.parsing import command
from gateway.requests import admitting, request_builder, stages, turns
from gateway.responses import context
from tailrace.auth.principal import Principal


class Deciding:
    """Places requests in conversations and decides their model."""

    def __init__(
        self,
        admit: admitting.Admitting,
        builder: request_builder.RequestBuilder,
        places: turns.Turns,
    ) -> None:
        self._admitting = admit
        self._builder = builder
        self._turns = places

    async def placed(self, asked: stages.Asked) -> stages.Placed:
        """Raises like `turns.Turns.following`."""
        create = asked.create
        if create.conversation is None:
            return stages.Placed(asked)
        if create.fork is not None:
            beside = await self._turns.beside(create.conversation, create.fork.rid, asked.owner)
            return stages.Placed(asked, beside)
        place, before = await self._turns.following(create.conversation, asked.owner, create.behind)
        return stages.Placed(asked, place if create.generate else None, before)

    async def decided(self, placed: stages.Placed) -> stages.Decided:
        """Raises like `RequestBuilder.before`; ApiError: no model may be chosen, or its pool
        refuses the request."""
        asked, pending = placed.asked, placed.asked.create.pending
        if pending is None:
            return stages.Decided(placed, asked.create)
        before = placed.before or await self._builder.before(
            asked.create, asked.principal, asked.remembered
        )
        create = await self._chosen(asked.create, pending, before, asked.principal)
        return stages.Decided(dataclasses.replace(placed, before=before), create)

    async def _chosen(
        self,
        create: command.Create,
        pending: command.Pending,
        before: context.History,
        principal: Principal,
    ) -> command.Create:
        """The request for the model that the rules of `auto` choose for this dialogue."""
        messages = context.last_turns(before.messages)
        # Another model reads the body again, which takes long for a large one.
        decided = await asyncio.to_thread(pending.decide, messages)
        decided = dataclasses.replace(
            decided, idempotency_key=create.idempotency_key, body_digest=create.body_digest
        )
        self._admitting.admit(decided, principal)
        return self._admitting.shortened(decided, principal)
